"""The error of a rank on its way to the caller: as it was raised, past a scheduler.

The scheduler may lack the package that an error comes from, so it gets a :class:`GangError`
with the text, and the error itself as bytes that it only hands on.
"""

from __future__ import annotations

import pickle
import traceback
from typing import cast

from distributed.core import error_message
from distributed.exceptions import Reschedule

from dask_dgpu.errors import CommError, GangError, UndeclaredError

IN_PROGRAM = "program"
"""What the phase of a rank begins with while it runs steps."""


class RankError(GangError):
    """What a step raised, for whoever need not know it.

    Parameters
    ----------
    reason : str
        Type and text of the error.
    rank : int or None, optional
        The rank that raised it.
    worker : str or None, optional
        The address of its worker.
    phase : str or None, optional
        What the rank was doing.

    Attributes
    ----------
    raised : bytes
        The error, pickled.
    undeclared : bool
        Whether a block is not what the graph declares, which does not matter to Dask.
    """

    raised = b""
    undeclared = False


def failure_of(error: BaseException, rank: int, worker: str, phase: str) -> GangError:
    """Return what the scheduler is told of an error; call it where the error is handled.

    An error that a step has raised stays what it is, as in plain Dask, with a note that says
    where. What ends a worker or reruns a task in Dask would do so for one rank of many, so it
    becomes the gang's error, and so does a broken transfer.
    """
    notes = getattr(error, "__notes__", [])
    reason = ", ".join([f"{type(error).__name__}: {error}", *notes])
    if isinstance(error, Reschedule):
        reason = "a block function raised Reschedule, and a gang runs no block elsewhere"
    own = isinstance(error, CommError | Reschedule | SystemExit | KeyboardInterrupt)
    if own or not phase.startswith(IN_PROGRAM):
        failure = GangError(reason, rank, worker, phase)
        failure.add_note("".join(traceback.format_exception(error)))  # a cause does not pickle
        return failure
    error.add_note(f"on rank {rank} of a gang, worker {worker}, phase {phase}")
    failure = RankError(reason, rank, worker, phase)
    failure.undeclared = isinstance(error, UndeclaredError)
    failure.raised = cast(bytes, error_message(error)["exception"].data)  # as Dask pickles errors
    return failure


def pickled(failure: GangError) -> bytes:
    """Return the error that the caller gets, pickled."""
    return failure.raised if isinstance(failure, RankError) else pickle.dumps(failure)


def opened(payload: bytes) -> BaseException:
    """Return the error that the caller gets of a pickled failure.

    It stays a :class:`GangError` if only the rank's worker can import the error's class.
    """
    failure: GangError = pickle.loads(payload)
    if not isinstance(failure, RankError):
        return failure
    try:
        error: BaseException = pickle.loads(failure.raised)
    except Exception:  # whatever an error's own code raises
        return GangError(*failure.args)
    return error
