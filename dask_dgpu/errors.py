"""The errors a user may meet, all under :class:`DgpuError`."""

from __future__ import annotations


class DgpuError(Exception):
    """Base class of every error raised by dask_dgpu."""


class CommError(DgpuError):
    """A transfer between ranks failed: a peer is lost, or a time limit passed."""


class CommAbortedError(CommError):
    """The communicator was aborted, so this and every later call on it fails."""


class UndeclaredError(DgpuError):
    """A block is not what the graph declares it to be."""


class UndeclaredTypeError(UndeclaredError, TypeError):
    """A block has another type or dtype than the graph declares."""


class UndeclaredShapeError(UndeclaredError, ValueError):
    """A block has another shape than the graph declares."""


class GangError(DgpuError):
    """A gang could not finish.

    Parameters
    ----------
    reason : str
        What happened.
    rank : int or None, optional
        The rank that failed or was awaited, if one is known.
    worker : str or None, optional
        The address of the Dask worker of that rank.
    phase : str or None, optional
        What the rank was doing: ``"launch"``, ``"stage"``, ``"queued"``, ``"connect"`` or
        ``"program"``; in a program also the step, as in ``"program (c, 2 of 8)"``.

    Notes
    -----
    The parameters are attributes too. The text of the error names all that are known.
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
        """Reason, then rank, worker and phase as far as they are known."""
        known = [
            f"{name} {value}"
            for name, value in (
                ("rank", self.rank),
                ("worker", self.worker),
                ("phase", self.phase),
            )
            if value is not None
        ]
        return f"{self.reason} ({', '.join(known)})" if known else self.reason
