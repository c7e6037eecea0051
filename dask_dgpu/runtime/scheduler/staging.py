"""Where the blocks are that were handed over and that no gang has taken yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

Key = Any


class Staging:
    """Follows ``stage`` tasks, and has the blocks of those that are released dropped."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.workers: dict[Key, str] = {}

    def moved(self, key: Key, finish: str, worker: str | None) -> None:
        """Note a transition; one that is released in its midst may stage its block yet."""
        if finish == "processing":
            ts = self.scheduler.tasks[key]
            worker = ts.processing_on.address if ts.processing_on else None
        if finish in ("processing", "memory") and worker is not None:
            self.workers[key] = worker
        elif finish in ("released", "forgotten", "erred"):
            address = self.workers.pop(key, None)
            if address in self.scheduler.workers:
                self.scheduler.worker_send(address, {"op": "dgpu-drop", "keys": [key]})

    def taken(self, keys: Iterable[Key]) -> None:
        """Forget blocks that a gang has."""
        for key in keys:
            self.workers.pop(key, None)

    def remove_worker(self, worker: str) -> None:
        """Forget what a lost worker had."""
        self.taken([key for key, address in self.workers.items() if address == worker])
