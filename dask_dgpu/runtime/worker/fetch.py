"""The result of a ``gang`` task, and blocks of it on other workers."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
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


async def fetch(here: Worker, handle: Handle, block: Key, out: Key) -> Array:
    """Fetch a block from the worker that computed it, for the ``out`` task with this key.

    Raises
    ------
    Reschedule
        If no worker has it. The scheduler starts the gang over, and this task with it.
    """
    what = {"key": handle.key, "run_id": handle.run_id, "block": block}
    where = partial(here.scheduler.dgpu_where, **what, out=out, worker=here.address)
    try:
        place = await where(missing=here.address)
        if place is not None:
            try:
                answer = await here.rpc(place).dgpu_take(**what)
            except OSError:  # the worker is lost, perhaps before the scheduler knows
                answer = {}
            if "block" in answer:
                return answer["block"]
            await where(missing=place)
    except OSError:  # this worker closes
        pass
    raise Reschedule
