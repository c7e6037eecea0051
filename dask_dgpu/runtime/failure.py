"""Failed gangs on the side of workers: the errors of ranks, and the fallback to Dask's own tasks.

The errors reach the caller unchanged. The scheduler may lack the package of an error. So it gets a
:class:`GangError` with the text, and the error itself as bytes, which it only forwards.
"""

from __future__ import annotations

import pickle
import traceback
from typing import Any, cast

import cloudpickle
from distributed.core import error_message
from distributed.exceptions import Reschedule

from dask_dgpu.errors import CommError, GangError, UndeclaredError
from dask_dgpu.kernels.device.memory import lacks_memory
from dask_dgpu.runtime.again import Tried
from dask_dgpu.runtime.program import Key
from graph_opt.dask_graph.plain import Plain

IN_PROGRAM = "program"
"""The start of a rank's phase while it runs steps."""


class RankError(GangError):
    """An error of a step, or a lack of memory, for processes that cannot unpickle the error."""

    raised = b""  # the error, pickled
    undeclared = False  # whether a block differs from its declaration, which Dask allows
    out_of_memory = False


def failure_of(
    error: BaseException,
    rank: int,
    worker: str,
    phase: str,
    tried: tuple[str, int, int] | None = None,
) -> GangError:
    """Return the scheduler's form of an error; call it within the ``except`` block.

    The error of a step stays as it is, as in plain Dask, with a note of the place. Exceptions that
    end a worker or rerun a task in Dask would affect one rank of many, so they become the gang's
    error, and so do a broken transfer and errors before the first step. A lack of memory may come
    in any phase; if the gang has been ``tried`` as in :class:`Tried`, it has an error of its own.
    """
    notes = getattr(error, "__notes__", [])
    reason = ", ".join([f"{type(error).__name__}: {error}", *notes])
    if isinstance(error, Reschedule):
        reason = "a block function raised Reschedule, and a gang runs no block elsewhere"
    short = lacks_memory(error)
    own = isinstance(error, CommError | Reschedule | SystemExit | KeyboardInterrupt)
    if not short and (own or not phase.startswith(IN_PROGRAM)):
        failure = GangError(reason, rank, worker, phase)
        failure.add_note("".join(traceback.format_exception(error)))  # a cause does not pickle
        return failure
    if short and tried is not None:
        error = Tried(*tried).error(error)
    error.add_note(f"on rank {rank} of a gang, worker {worker}, phase {phase}")
    failure = RankError(reason, rank, worker, phase)
    failure.undeclared = isinstance(error, UndeclaredError)
    failure.out_of_memory = short
    failure.raised = cast(bytes, error_message(error)["exception"].data)  # as Dask pickles errors
    return failure


def pickled(failure: GangError) -> bytes:
    """Return the pickled error for the caller."""
    return failure.raised if isinstance(failure, RankError) else pickle.dumps(failure)


def opened(payload: bytes) -> BaseException:
    """Return the error for the caller from a pickled failure.

    It stays a :class:`GangError` if only the rank's worker can import the class of the error.
    """
    failure: GangError = pickle.loads(payload)
    if not isinstance(failure, RankError):
        return failure
    try:
        error: BaseException = pickle.loads(failure.raised)
    except Exception:  # unpickling runs the error's own code
        return GangError(*failure.args)
    return error


def compute_plainly(answer: dict[str, Any]) -> dict[Key, Any]:
    """Let Dask compute the wanted blocks; return them by name and place.

    The tasks have new names, because ``out`` tasks have Dask's. They read the inputs by the keys
    that Dask gave them; Dask recomputes inputs that it has dropped since they were staged.
    """
    from distributed import worker_client

    plain: Plain = cloudpickle.loads(answer["plain"])
    given = dict(zip(plain.given, answer["given"], strict=True))
    tasks, keys = plain.tasks(f"plain-{answer['run_id']}-", given)
    with worker_client() as client:
        blocks = client.get(tasks, keys, workers=answer["workers"] or None)
    return dict(zip(plain.wanted, blocks, strict=True))
