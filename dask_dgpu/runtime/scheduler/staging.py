"""The workers of staged blocks that no gang has taken yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dask_dgpu.runtime.scheduler.membership import send

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

Key = Any


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
            send(self.scheduler, [self.workers.pop(key)], {"op": "dgpu-drop", "keys": [key]})

    def taken(self, keys: Iterable[Key]) -> None:
        """Forget the blocks of a gang."""
        for key in keys:
            self.workers.pop(key, None)

    def remove_worker(self, worker: str) -> None:
        """Forget the blocks of a lost worker."""
        self.taken([key for key, address in self.workers.items() if address == worker])
