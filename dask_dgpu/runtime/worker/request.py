"""What the worker of a ``gang`` task asks of the scheduler, and that of an ``out`` task."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed.exceptions import Reschedule
from distributed.utils import sync

from dask_dgpu.runtime.failure import compute_plainly, opened

if TYPE_CHECKING:
    from distributed.worker import Worker

    from dask_dgpu.runtime.program import Launch

Array = Any
Key = Any


@dataclass(frozen=True)
class Handle:
    """The result of a ``gang`` task: the run whose blocks ``out`` tasks return."""

    key: Key
    run_id: int


def request(
    here: Worker, key: Key, launch: Launch, staged: Sequence[list[Any]]
) -> Handle | dict[Key, Array]:
    """Ask the scheduler to run a program on the workers; return when all are done.

    Returns a handle, or the blocks by name and place if Dask has computed them instead.

    Raises
    ------
    Reschedule
        If the gang starts over.
    """
    try:
        answer = sync(
            here.loop,
            here.scheduler.dgpu_gang,
            key=key,
            launch=pickle.dumps(launch),
            staged=[list(tokens) for tokens in staged],
            worker=here.address,
        )
    except OSError:  # this worker closes, and others take over its tasks
        raise Reschedule from None
    if answer["outcome"] == "restarted":
        raise Reschedule
    if answer["outcome"] == "failed":
        raise opened(answer["error"])
    if answer["outcome"] == "plain":
        return compute_plainly(answer)
    return Handle(key, answer["run_id"])


async def miss(here: Worker, handle: Handle, out: Key) -> None:
    """Tell the scheduler that this worker lacks the block of an ``out`` task; raise.

    Raises
    ------
    Reschedule
        Always. The scheduler starts the gang over, and this task with it.
    """
    with suppress(OSError):  # this worker closes
        what = {"key": handle.key, "run_id": handle.run_id, "out": out, "worker": here.address}
        await here.scheduler.dgpu_missing(**what)
    raise Reschedule
