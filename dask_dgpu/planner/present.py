"""Results on the workers of a cluster, and the rates that it has measured."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from math import ceil
from threading import current_thread
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dask_dgpu.environment.facts import ClusterFacts, memory_of
from dask_dgpu.environment.settings import Settings
from dask_dgpu.planner.predict import Places
from dask_dgpu.runtime.scheduler.states import place_of
from dask_dgpu.runtime.tasks import PLUGIN

if TYPE_CHECKING:
    from distributed import Client
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.scheduler.plugin import GangSchedulerPlugin

Key = Any
Figures = tuple[tuple[str, float], ...]


LEAST_OTHERS = 1
"""Bytes of other results that count if there are none, since the first one would change plans."""

ROOM_STEPS = 64
"""Free memory counts in such fractions of the limit, so equal programs have equal plans."""

MEMORIES = range(1 << 62)
"""Bytes that a device may have."""

OFFLOADED = "Dask-Offload"
"""How the names of the threads begin in which a scheduler reads graphs."""


def left_of(most: float, others: float) -> float:
    """Return the bytes that are left of ``most`` for a gang beside other results."""
    step = max(1.0, most / ROOM_STEPS)
    return max(0.0, most - ceil(others / step) * step)


def room_of(most: float | None, others: float) -> float | None:
    """Return the same, ``None`` without a limit."""
    return None if most is None else left_of(most, others)


class LeastMemory(NamedTuple):
    """The least bytes of a setting under which something fits, ``None`` if it is no less now."""

    limit: int | None
    cap: int | None


def enough(needed: float, others: float, facts: ClusterFacts, settings: Settings) -> LeastMemory:
    """Return settings under which so many bytes are left beside other results."""

    def least(share: float) -> int:
        """Return the least bytes of which a share leaves enough: more of them leave more."""
        leaves = partial(left_of, others=others)
        return bisect_left(MEMORIES, True, key=lambda nbytes: leaves(nbytes * share) >= needed)

    memory, cap = memory_of(facts, settings), settings.memory_cap
    least_limit, least_cap = least(1 - settings.memory_safety_margin), least(1.0)
    return LeastMemory(
        least_limit if memory is not None and memory < least_limit else None,
        least_cap if cap is not None and cap < least_cap else None,
    )


@dataclass(frozen=True)
class Present:
    """Results on the workers of a cluster.

    ``others(keys)`` returns the most bytes of results in memory on one worker, without those of
    ``keys``; ``places(keys)`` returns the workers of those of the keys that exist.
    """

    others: Callable[[Collection[Key]], int]
    places: Callable[[Collection[Key]], Places]


NOTHING = Present(lambda keys: 0, lambda keys: {})
"""No results, as without a cluster."""


def scheduler_here(scheduler_id: str | None) -> Scheduler | None:
    """Return the scheduler of this id if it is in this process."""
    if scheduler_id is None:
        return None
    from distributed.scheduler import Scheduler

    return next(
        (instance for instance in list(Scheduler._instances) if instance.id == scheduler_id), None
    )


def plugin_on(scheduler_id: str | None) -> GangSchedulerPlugin | None:
    """Return the plugin of a scheduler in this process, ``None`` if there is none."""
    scheduler = scheduler_here(scheduler_id)
    return None if scheduler is None else _plugin(scheduler)


def _plugin(scheduler: Scheduler) -> GangSchedulerPlugin | None:
    return cast("GangSchedulerPlugin | None", scheduler.plugins.get(PLUGIN))


def is_offloaded() -> bool:
    """Whether a scheduler's thread asks, so the graph was sent to it and is a copy.

    Other threads compute a user's own graph, whose functions may change what they refer to.
    """
    return current_thread().name.startswith(OFFLOADED)


def other_scheduler(scheduler_id: str | None) -> Scheduler | None:
    """Return the scheduler that reads a graph in this thread if it has another id, or ``None``."""
    if not is_offloaded():
        return None
    from distributed.scheduler import Scheduler

    reading = [
        instance for instance in list(Scheduler._instances) if instance._active_graph_updates
    ]
    if not reading or any(each.id == scheduler_id for each in reading):
        return None
    return reading[0]


def present_on(scheduler_id: str | None, client: Client | None = None) -> Present:
    """Return the results of a scheduler, here or of a client; nothing without a cluster."""
    ask = _asking(scheduler_id, client)
    if ask is None:
        return NOTHING
    return Present(lambda keys: ask(_other_results, keys), lambda keys: ask(_places, keys))


def figures_of(facts: ClusterFacts, client: Client | None = None) -> Figures:
    """Return the measured rates of a cluster, none if they are unknown so far."""
    ask = _asking(facts.scheduler, client)
    return () if ask is None else ask(_figures, facts.kind)


def _asking(scheduler_id: str | None, client: Client | None) -> Callable[..., Any] | None:
    """Return what calls a function on a scheduler, here or of a client; ``None`` without one."""
    scheduler = scheduler_here(scheduler_id)
    if scheduler is not None:
        return lambda function, value: function(value, dask_scheduler=scheduler)
    return None if client is None or scheduler_id is None else client.run_on_scheduler


def _figures(kind: str, dask_scheduler: Scheduler) -> Figures:
    plugin = _plugin(dask_scheduler)
    return () if plugin is None else tuple(plugin.rates.known.get(kind, {}).items())


def _other_results(keys: Collection[Key], dask_scheduler: Scheduler) -> int:
    """Return the bytes on the worker with the most, without spilled ones; at least one.

    This runs outside of the event loop's thread, so it copies containers before iterating.
    """
    counted: Counter[str] = Counter()
    for key in keys:
        ts = dask_scheduler.tasks.get(key)
        if ts is not None:
            for ws in list(ts.who_has or ()):
                counted[ws.address] += max(0, ts.nbytes)
    workers = list(dask_scheduler.workers.values())
    return max([LEAST_OTHERS, *(ws.memory.managed - counted[ws.address] for ws in workers)])


def _places(keys: Collection[Key], dask_scheduler: Scheduler) -> dict[Key, int]:
    """Return the number of a worker that has each block or will soon, in a fixed order."""
    numbers = {address: i for i, address in enumerate(sorted(dask_scheduler.workers))}
    plugin = _plugin(dask_scheduler)
    runs = {} if plugin is None else plugin.runs
    known = {key: ts for key in keys if (ts := dask_scheduler.tasks.get(key)) is not None}
    places = {key: place_of(ts, runs) for key, ts in known.items()}
    return {key: numbers[place] for key, place in places.items() if place in numbers}
