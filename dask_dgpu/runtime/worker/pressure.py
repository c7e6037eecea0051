"""When a worker returns memory: what it keeps under pressure, and what is freed if it is idle."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, process_time
from typing import TYPE_CHECKING, Literal

from tornado.ioloop import PeriodicCallback

from dask_dgpu.kernels.device.host import return_memory

if TYPE_CHECKING:
    from distributed.worker import Worker

REST_SECONDS = 10.0
"""Seconds between two releases while the pressure lasts."""

IDLE_SECONDS = 30.0
"""Seconds after which an idle worker returns freed memory."""

BUSY = 0.2
"""Fraction of a core that an idle worker's process does not need."""


def watch_memory(worker: Worker, release: Callable[[], None]) -> None:
    """Watch the memory of a worker until it closes; ``release`` frees what is kept for gangs."""
    pressure, idle = Pressure(worker, release), Idle()
    callbacks = {"dgpu-idle": PeriodicCallback(idle.check, IDLE_SECONDS * 1000)}
    interval = worker.memory_manager.memory_monitor_interval
    if pressure.limit is not None and interval:  # as often as Dask checks
        callbacks["dgpu-pressure"] = PeriodicCallback(pressure.check, interval * 1000)
    for callback in callbacks.values():
        callback.start()
    worker.periodic_callbacks.update(callbacks)


class Idle:
    """Returns freed memory once the process has been idle from one check to the next."""

    def __init__(self) -> None:
        self._used = process_time()
        self._returned = False

    def check(self) -> None:
        """Return memory, unless that was done since the process was busy."""
        before, self._used = self._used, process_time()
        if self._used - before > BUSY * IDLE_SECONDS:
            self._returned = False
        elif not self._returned:
            self._returned = True
            return_memory()


class Pressure:
    """Returns freed memory while Dask spills results, and calls ``release`` when that begins.

    It begins if the process of a worker needs more memory than a threshold of Dask:
    ``distributed.worker.memory.spill``, or if there is none that for pausing. It ends below
    ``distributed.worker.memory.target``. Until then memory is returned at each check, because Dask
    would spill all results if freed memory stayed in the process. Without thresholds, or without a
    memory limit, nothing is watched.
    """

    def __init__(self, worker: Worker, release: Callable[[], None]) -> None:
        self._worker, self._release = worker, release
        self._last = -REST_SECONDS
        self._lasts = False

    @property
    def limit(self) -> float | None:
        """The bytes of the process above which it must free memory, ``None`` for any."""
        manager = self._worker.memory_manager
        return self._bytes(manager.memory_spill_fraction or manager.memory_pause_fraction)

    def _bytes(self, fraction: float | Literal[False]) -> float | None:
        limit = self._worker.memory_manager.memory_limit
        return limit * fraction if limit and fraction else None

    def check(self) -> None:
        """Return memory while the process needs too much; release it once in a while."""
        limit, now = self.limit, monotonic()
        if limit is None:
            return
        enough = self._bytes(self._worker.memory_manager.memory_target_fraction)
        needed = self._worker.monitor.get_process_memory()
        self._lasts = needed > (enough or limit if self._lasts else limit)
        if not self._lasts:
            return
        return_memory()
        if needed > limit and now >= self._last + REST_SECONDS:
            self._last = now
            self._release()
