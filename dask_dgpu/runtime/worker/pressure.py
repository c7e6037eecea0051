"""Memory pressure: what a worker keeps for later gangs is freed when Dask begins to spill."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from tornado.ioloop import PeriodicCallback

if TYPE_CHECKING:
    from distributed.worker import Worker

REST_SECONDS = 10.0
"""Seconds between two releases while the pressure lasts."""


class Pressure:
    """Calls ``release`` if the process of a worker needs more memory than Dask's threshold.

    The threshold is that for spilling, ``distributed.worker.memory.spill``, or if there is none
    that for pausing. Without both, or without a memory limit, nothing is watched.
    """

    def __init__(self, worker: Worker, release: Callable[[], None]) -> None:
        self._worker, self._release = worker, release
        self._last = -REST_SECONDS

    @property
    def limit(self) -> float | None:
        """The bytes of the process above which it must free memory, ``None`` for any."""
        manager = self._worker.memory_manager
        fraction = manager.memory_spill_fraction or manager.memory_pause_fraction
        return manager.memory_limit * fraction if manager.memory_limit and fraction else None

    def watch(self) -> None:
        """Check as often as Dask does; Dask stops this with the worker."""
        interval = self._worker.memory_manager.memory_monitor_interval
        if self.limit is not None and interval:
            check = PeriodicCallback(self.check, interval * 1000)
            self._worker.periodic_callbacks["dgpu-pressure"] = check
            check.start()

    def check(self) -> None:
        """Release memory if the process needs too much and the last release is long past."""
        limit, now = self.limit, monotonic()
        if limit is None or now < self._last + REST_SECONDS:
            return
        if self._worker.monitor.get_process_memory() > limit:
            self._last = now
            self._release()
