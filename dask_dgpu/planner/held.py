"""What workers keep beside what a gang reads: memory that it cannot have."""

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
"""Returns the most bytes of results that a worker keeps in memory, some blocks not counted."""


def nothing(keys: Collection[Key]) -> int:
    """Return 0, where there are no workers."""
    return 0


def scheduler_here(scheduler_id: str | None) -> Scheduler | None:
    """Return the scheduler of this id, if it is in this process.

    Parameters
    ----------
    scheduler_id : str or None
        ``Scheduler.id``; ``None`` without a cluster.
    """
    if scheduler_id is None:
        return None
    from distributed.scheduler import Scheduler

    return next((each for each in list(Scheduler._instances) if each.id == scheduler_id), None)


def held_here(scheduler_id: str | None) -> Held | None:
    """Return what the workers of a scheduler keep, if it is in this process.

    Parameters
    ----------
    scheduler_id : str or None
        ``Scheduler.id``; ``None`` without a cluster.
    """
    if scheduler_id is None:
        return nothing
    scheduler = scheduler_here(scheduler_id)
    return None if scheduler is None else partial(_beside, dask_scheduler=scheduler)


def held_by(client: Client | None, scheduler_id: str | None) -> Held:
    """Return the same from anywhere: a scheduler in another process is asked."""
    here = held_here(scheduler_id)
    if here is not None or client is None:
        return here or nothing

    def ask(keys: Collection[Key]) -> int:
        return int(client.run_on_scheduler(_beside, keys=list(keys)))

    return ask


def _beside(keys: Collection[Key], dask_scheduler: Scheduler) -> int:
    """Return the bytes of the worker that keeps most; of what is spilled none count.

    It runs in a thread beside the scheduler's own, so containers are copied before they are
    gone through.
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
