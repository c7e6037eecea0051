"""What ranks did, shown where Dask shows tasks: the task stream, and the scheduler's events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.task_stream import TaskStreamPlugin

from dask_dgpu.runtime.observer import TOPIC, Span

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


def publish(
    scheduler: Scheduler, key: Any, run_id: int, worker: str, spans: Sequence[Span]
) -> None:
    """Show the steps of a rank as if each were a task of its worker."""
    for plugin in scheduler.plugins.values():
        if isinstance(plugin, TaskStreamPlugin):
            for span in spans:
                plugin.transition(
                    (span.name, run_id),
                    "processing",
                    "memory",
                    worker=worker,
                    thread=TOPIC,
                    type="",
                    nbytes=span.nbytes,
                    startstops=[{"action": span.action, "start": span.start, "stop": span.stop}],
                )
    steps = [(s.name, s.action, s.start, s.stop, s.nbytes) for s in spans]
    scheduler.log_event(TOPIC, {"gang": key[0], "run_id": run_id, "worker": worker, "steps": steps})
