"""The errors of dask_dgpu, subclasses of :class:`DgpuError`."""

from __future__ import annotations

from typing import Any


class DgpuError(Exception):
    """Base class of all errors of dask_dgpu."""


class CommError(DgpuError):
    """A transfer between ranks failed because of a lost peer or a timeout."""


class CommAbortedError(CommError):
    """The communicator was aborted; this and every later call on it fail."""


class UndeclaredError(DgpuError):
    """A block differs from the declaration of its array."""


class UndeclaredTypeError(UndeclaredError, TypeError):
    """A block has another type or dtype than its array declares."""


class UndeclaredShapeError(UndeclaredError, ValueError):
    """A block has another shape than its array declares."""


class GangError(DgpuError):
    """A gang could not finish.

    Parameters
    ----------
    reason : str
        The cause.
    rank : int or None, optional
        The failed or missing rank, if known.
    worker : str or None, optional
        The address of the Dask worker of that rank.
    phase : str or None, optional
        The phase of the rank: ``"launch"``, ``"stage"``, ``"queued"``, ``"connect"`` or
        ``"program"``, in a program with the step, as in ``"program (c, 2 of 8)"``.

    Notes
    -----
    The parameters are attributes too. The message contains the known ones.
    """

    def __init__(
        self,
        reason: str,
        rank: int | None = None,
        worker: str | None = None,
        phase: str | None = None,
    ) -> None:
        super().__init__(reason, rank, worker, phase)
        self.reason = reason
        self.rank = rank
        self.worker = worker
        self.phase = phase

    def __str__(self) -> str:
        """Reason, then rank, worker and phase if known."""
        named = {"rank": self.rank, "worker": self.worker, "phase": self.phase}
        known = [f"{name} {value}" for name, value in named.items() if value is not None]
        return f"{self.reason} ({', '.join(known)})" if known else self.reason


class OutOfMemoryError(MemoryError, DgpuError):  # DgpuError first would not unpickle
    """A gang, or a call of ``run``, ran out of memory, and again when it was planned with less.

    Parameters
    ----------
    message : str
        One sentence, for a gang with the error of a rank in the second run.
    first_bytes, second_bytes : int
        The bytes planned on the rank that needs most, in the first and in the second run; equal if
        a call of :func:`run` could not be planned with less.

    Notes
    -----
    The parameters are attributes too. For a gang a note names the rank, its worker and its phase.
    """

    def __init__(self, message: str, first_bytes: int, second_bytes: int) -> None:
        super().__init__(message, first_bytes, second_bytes)
        self.message = message
        self.first_bytes = first_bytes
        self.second_bytes = second_bytes

    def __str__(self) -> str:
        """The message."""
        return self.message


class RunManyError(DgpuError):
    """Calls of :func:`dask_dgpu.run_many` failed; the others have results.

    Parameters
    ----------
    results : list
        The result of each call, and for those that failed the exception.
    failed : list of int
        The indices of these calls.

    Notes
    -----
    The parameters are attributes too. The first exception is the cause.
    """

    def __init__(self, results: list[Any], failed: list[int]) -> None:
        super().__init__(results, failed)
        self.results = results
        self.failed = failed

    def __str__(self) -> str:
        """How many failed, and the error of the first."""
        first = self.failed[0]
        error = self.results[first]
        return (
            f"{len(self.failed)} of {len(self.results)} calls failed, first call {first}: "
            f"{type(error).__name__}: {error}"
        )
