"""The scheduler's side of ``out`` tasks: the worker on which each one runs.

An ``out`` runs on the worker that made its block. Dask makes ``out`` tasks anew whenever a
client drops some and asks for them again, without our restrictions, so these are set at every
such moment. They are for speed alone: an ``out`` elsewhere asks here for the worker of its
block, and fetches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any


def restrict(scheduler: Scheduler, run: Run) -> None:
    """Have each block of the result taken by the worker that makes it, if that runs tasks."""
    running = {ws.address for ws in scheduler.running}
    for out in scheduler.tasks[run.key].dependents:
        worker = run.worker_of(_block(run, out))
        out.loose_restrictions = worker not in running
        scheduler.set_restrictions({out.key: {worker}})


def free_stuck(scheduler: Scheduler, runs: Mapping[Key, Run]) -> None:
    """Have other workers take the blocks that a paused worker has made.

    Blocks in a paused worker's memory are among the reasons for which it is paused.
    """
    for run in list(runs.values()):  # transitions end runs
        gang = scheduler.tasks.get(run.key)
        if not run.finished or gang is None or gang.state != "memory":
            continue
        stuck = [out for out in gang.dependents if _is_stuck(scheduler, out)]
        for out in stuck:
            out.loose_restrictions = True
        if stuck:
            released: dict[Key, Any] = {out.key: "released" for out in stuck}
            scheduler.transitions(released, stimulus_id=f"dgpu-paused-{run.run_id}")


def _is_stuck(scheduler: Scheduler, out: TaskState) -> bool:
    """Whether an ``out`` waits for a worker that is paused."""
    if out.state == "processing":
        return out.processing_on not in scheduler.running
    return out.state == "no-worker" and not out.loose_restrictions


def _block(run: Run, out: TaskState) -> Key:
    return run.program.block(cast(tuple[Any, ...], out.key))
