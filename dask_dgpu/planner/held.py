"""Memory of workers that a gang cannot use: results other than its inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client
    from distributed.scheduler import Scheduler

Key = Any
Held = Callable[[Collection[Key]], int]
"""Returns the most bytes of results in memory on one worker, without those of some keys."""


def nothing(keys: Collection[Key]) -> int:
    """Return 0, for no workers."""
    return 0


def scheduler_here(scheduler_id: str | None) -> Scheduler | None:
    """Return the scheduler of this id if it is in this process."""
    if scheduler_id is None:
        return None
    from distributed.scheduler import Scheduler

    return next((each for each in list(Scheduler._instances) if each.id == scheduler_id), None)


def held_here(scheduler_id: str | None) -> Held | None:
    """Return the :data:`Held` of a scheduler in this process; without a cluster nothing is."""
    if scheduler_id is None:
        return nothing
    scheduler = scheduler_here(scheduler_id)
    return None if scheduler is None else partial(_other_results, dask_scheduler=scheduler)


def held_by(client: Client | None, scheduler_id: str | None) -> Held:
    """Return the same, from a scheduler in any process."""
    here = held_here(scheduler_id)
    if here is not None or client is None:
        return here or nothing

    def ask(keys: Collection[Key]) -> int:
        return int(client.run_on_scheduler(_other_results, keys=list(keys)))

    return ask


def _other_results(keys: Collection[Key], dask_scheduler: Scheduler) -> int:
    """Return the bytes on the worker with the most, without spilled ones.

    This runs outside of the event loop's thread, so it copies containers before iterating.
    """
    counted: Counter[str] = Counter()
    for key in keys:
        ts = dask_scheduler.tasks.get(key)
        if ts is not None:
            for ws in list(ts.who_has or ()):
                counted[ws.address] += max(0, ts.nbytes)
    return max(
        (
            max(0, ws.memory.managed - counted[ws.address])
            for ws in list(dask_scheduler.workers.values())
        ),
        default=0,
    )
