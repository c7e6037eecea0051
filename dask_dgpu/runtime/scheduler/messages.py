"""Messages of the scheduler: to workers, and to clients about fallbacks to Dask."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable
from time import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

TOPIC = "dgpu-fallback"
"""Topic of the scheduler's events: the names of the arrays, and the reason."""

RUNS = "dgpu"
"""Topic of the scheduler's events: one for each finished run of a gang. Also the thread of steps
and of results without tasks, in what Dask shows of threads."""

DASK_WARNINGS = "warn"
"""Topic of the events that Dask's clients show as warnings."""

MEASUREMENT = "dgpu-measure"
"""Prefix of the keys of tasks that measure a cluster."""

MOST_NAMES = 20
"""Most names of arrays in one event."""


def announce(scheduler: Scheduler, names: Collection[str], reason: str, message: str) -> None:
    """Log an event for ``explain``, and make all clients warn."""
    warning = {"message": pickle.dumps(message), "category": pickle.dumps(UserWarning)}
    scheduler.log_event(TOPIC, {"names": list(names)[:MOST_NAMES], "reason": reason})
    scheduler.log_event(DASK_WARNINGS, warning)


def send(scheduler: Scheduler, workers: Iterable[str], message: dict[str, Any]) -> None:
    """Send a message to workers, except the lost ones."""
    for worker in workers:
        if worker in scheduler.workers:
            scheduler.worker_send(worker, message)


def known_as(scheduler: Scheduler, worker: str) -> str:
    """Return the scheduler's address of a worker, which may call itself by a host's name."""
    return worker if worker in scheduler.workers else str(scheduler.coerce_address(worker))


def runs_on(scheduler: Scheduler, key: Any, worker: str) -> bool:
    """Whether a task is processed on a worker."""
    ts = scheduler.tasks.get(key)
    return ts is not None and getattr(ts.processing_on, "address", None) == worker


def no_time() -> dict[str, Any]:
    """Return the times of a task that Dask has not run: its dashboard expects some.

    Those of the steps of a gang are shown separately.
    """
    now = time()
    return {"startstops": [{"action": "transfer", "start": now, "stop": now}], "thread": RUNS}
