"""The blocks of gangs on workers: where they are, and where ``stage`` and ``out`` tasks put them.

An ``out`` runs on the worker that computed its block. If a client releases and requests ``out``
tasks again, Dask creates them without our restrictions, so these are set again each time. They
only affect speed: an ``out`` elsewhere asks the scheduler for the worker of its block, and fetches
the block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.scheduler.messages import send
from graph_opt.dask_graph.emit import serves
from graph_opt.dask_graph.internals import DataNode, Task

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any
Runs = Mapping[Any, "Run"]


class Staging:
    """Follows ``stage`` tasks, and drops the blocks of released ones."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.workers: dict[Key, str] = {}

    def moved(self, key: Key, finish: str, worker: str | None) -> None:
        """Note a transition; a task that is released while it runs may still stage its block."""
        if finish == "processing":
            ts = self.scheduler.tasks[key]
            worker = ts.processing_on.address if ts.processing_on else None
        if finish in ("processing", "memory") and worker is not None:
            self.workers[key] = worker
        elif finish in ("released", "forgotten", "erred") and key in self.workers:
            # after Dask's messages of this event, of which one may start the task
            asyncio.get_running_loop().call_soon(self._drop, key, self.workers.pop(key))

    def _drop(self, key: Key, worker: str) -> None:
        if self.workers.get(key) != worker:  # else the task runs there again
            send(self.scheduler, [worker], {"op": "dgpu-drop", "keys": [key]})

    def taken(self, keys: Iterable[Key]) -> None:
        """Forget the blocks of a gang."""
        for key in keys:
            self.workers.pop(key, None)

    def remove_worker(self, worker: str) -> None:
        """Forget the blocks of a lost worker."""
        self.taken([key for key, address in self.workers.items() if address == worker])


def restrict(scheduler: Scheduler, run: Run) -> None:
    """Place each ``out`` on the worker that computes its block, if that worker runs tasks."""
    running = {ws.address for ws in scheduler.running}
    for out in scheduler.tasks[run.key].dependents:
        worker = run.worker_of(block_of(out))
        out.loose_restrictions = worker not in running
        scheduler.set_restrictions({out.key: {worker}})


def outs_of(scheduler: Scheduler, run: Run) -> dict[str, list[tuple[Key, Key]]]:
    """Return for each member the blocks that it computes, with the key of their ``out``.

    Without those that do more than to return the block.
    """
    found: dict[str, list[tuple[Key, Key]]] = {}
    for out in scheduler.tasks[run.key].dependents:
        if out.state == "waiting" and is_out(out):
            block = block_of(out)
            found.setdefault(run.worker_of(block), []).append((block, out.key))
    return found


def is_out(ts: TaskState) -> bool:
    """Return whether a task does no more than to return a block of a gang."""
    return isinstance(ts.run_spec, Task) and ts.run_spec.func is tasks.out


def block_read(stage: TaskState) -> Key | DataNode:
    """Return the key of the block that a ``stage`` task reads, or the block itself if it has it.

    In a Delayed the key is another than in the task within.
    """
    for each in stage.dependencies:
        if not serves(each.key):
            return each.key
    return DataNode(None, _within(stage).args[0])


def worker_with(block: TaskState) -> str | None:
    """Return a worker with a block in memory, the same whenever it is asked for."""
    return min((ws.address for ws in list(block.who_has or ())), default=None)


def place_of(block: TaskState, runs: Runs) -> str | None:
    """Return the worker that has a block, or will have it soon; none if that is unknown.

    A block will exist soon if its task is on a worker, or if a run that needs no task computes it.
    Blocks that wait for other tasks may need the very place of a gang that waits for them. Other
    threads than that of the event loop may call this.
    """
    if block.state == "memory":
        return worker_with(block)
    if block.state == "processing" and block.processing_on is not None:
        return block.processing_on.address
    gangs = list(block.waiting_on or ())
    if block.state != "waiting" or len(gangs) != 1 or not is_out(block):
        return None
    run = runs.get(gangs[0].key)
    if run is None or run.holder is None or run.outcome.done():
        return None
    computed = block_of(block)
    return run.worker_of(computed) if run.placed else run.likely[computed]


def free_stuck(scheduler: Scheduler, runs: Runs) -> None:
    """Let other workers fetch the blocks of a paused worker; they may be why it is paused."""
    for run in list(runs.values()):  # transitions change the runs
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
    """Return whether an ``out`` waits for a paused worker."""
    if out.state == "processing":
        return out.processing_on not in scheduler.running
    return out.state == "no-worker" and not out.loose_restrictions


def block_of(out: TaskState) -> Key:
    """Return the block of an ``out``: an argument of the task, which may have another name."""
    _, block = _within(out).args
    return block


def _within(ts: TaskState) -> Task:
    """Return the task of a gang, which that of an array in a Delayed holds."""
    task = cast(Task, ts.run_spec)
    while len(task.args) == 1:
        (task,) = task.args
    return task
