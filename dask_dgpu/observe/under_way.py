"""What is under way on a scheduler: tasks, and the steps of gangs. Runs on the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from graph_opt.model.names import is_gang, serves

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any

ANSWER_SECONDS = 2.0
"""Seconds that a worker has to report its step."""

ENDED = ("memory", "erred", "released", "forgotten")
"""States of tasks that Dask does not have to run any more."""


class Bar(NamedTuple):
    """What is done of some tasks, or of the steps of a gang."""

    number: int
    name: str
    done: int
    total: int


def has_plugin(dask_scheduler: Scheduler, name: str) -> bool:
    """Whether a plugin is registered."""
    return name in dask_scheduler.plugins


def awaited(keys: Collection[Key], dask_scheduler: Scheduler) -> tuple[list[Key], list[Key]]:
    """Return the tasks that some keys need and that have not ended, and their gangs.

    The keys themselves are among the tasks. Tasks that only serve a gang are not.
    """
    needed = _needed(keys, dask_scheduler)
    wanted = {*keys}
    tasks = [
        ts.key
        for ts in needed
        if ts.key in wanted
        or not (ts.state in ENDED or is_gang(ts.key) or serves(ts.key) or _is_out(ts))
    ]
    return tasks, [ts.key for ts in needed if is_gang(ts.key)]


async def reached(
    tasks: Collection[Key], gangs: Collection[Key], dask_scheduler: Scheduler
) -> tuple[int, list[Bar]]:
    """Return how many of some tasks have ended, and the running ones of some gangs."""
    from dask_dgpu.runtime.tasks import PLUGIN

    states = (dask_scheduler.tasks.get(key) for key in tasks)
    ended = sum(ts is None or ts.state in ENDED for ts in states)
    plugin: Any = dask_scheduler.plugins[PLUGIN]
    started = [plugin.runs[key] for key in gangs if key in plugin.runs]
    runs = [run for run in started if not run.outcome.done()]
    done = await asyncio.gather(*(_steps_done(dask_scheduler, run) for run in runs))
    return ended, [
        Bar(r.run_id, r.launch.title, n, len(r.program.nodes))
        for r, n in zip(runs, done, strict=True)
    ]


def _needed(keys: Collection[Key], scheduler: Scheduler) -> set[TaskState]:
    """Return the tasks of some keys, and those that they depend on."""
    seen: set[TaskState] = set()
    stack = [scheduler.tasks[key] for key in keys if key in scheduler.tasks]
    while stack:
        ts = stack.pop()
        if ts not in seen:
            seen.add(ts)
            stack += ts.dependencies
    return seen


def _is_out(ts: TaskState) -> bool:
    return any(is_gang(dependency.key) for dependency in ts.dependencies)


async def _steps_done(scheduler: Scheduler, run: Run) -> int:
    """Return the number of steps that all ranks have finished."""
    from dask_dgpu.runtime.scheduler.run import look

    if run.epoch is None:
        return 0
    answers = await asyncio.gather(
        *(look(scheduler, run, worker, ANSWER_SECONDS) for worker in list(run.awaited))
    )
    return min((answer["steps"] for answer in answers if answer), default=0)
