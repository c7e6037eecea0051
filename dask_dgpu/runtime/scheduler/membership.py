"""The members of a run, which are its ranks, and messages to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Run


def members(scheduler: Scheduler, run: Run) -> tuple[str, ...]:
    """Return all workers that the gang's task may use, and those with its blocks.

    A paused worker, usually one that is short of memory, gets no further blocks.
    """
    allowed = _allowed(scheduler, scheduler.tasks[run.key])
    running = {ws.address for ws in scheduler.running}
    chosen = run.holders | ((allowed & running) or allowed)
    found = [address for address in scheduler.workers if address in chosen]
    return (*found, *(run.holders - set(found)))


def send(scheduler: Scheduler, workers: Iterable[str], message: dict[str, Any]) -> None:
    """Send a message to workers, except the lost ones."""
    for worker in workers:
        if worker in scheduler.workers:
            scheduler.worker_send(worker, message)


def _allowed(scheduler: Scheduler, gang: TaskState) -> set[str]:
    allowed = scheduler.valid_workers(gang)
    if allowed is None or (gang.loose_restrictions and not allowed):
        return set(scheduler.workers)
    return {ws.address for ws in allowed}
