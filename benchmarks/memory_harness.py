"""How much memory a program needs beyond what its process has: sampled, or counted by a pool.

Classes begin to watch when they are made; ``stop`` returns the most bytes since then.
"""

from __future__ import annotations

import threading
from typing import Any

import psutil
from worker_harness import PLUGIN

INTERVAL = 2e-3
"""Seconds between two samples."""


class HostPeak:
    """The growth of the resident memory of this process, sampled by a thread."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._first = self._most = self._process.memory_info().rss
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._done.wait(INTERVAL):
            self._most = max(self._most, self._process.memory_info().rss)

    def stop(self) -> int:
        """Return the most bytes beyond the first sample."""
        last = self._process.memory_info().rss
        self._done.set()
        self._thread.join()
        return int(max(self._most, last) - self._first)


class RmmPeak:
    """What RMM allocates in this process, counted by RMM."""

    def __init__(self) -> None:
        from rmm import statistics

        statistics.enable_statistics()
        statistics.push_statistics()

    def stop(self) -> int:
        """Return the most bytes beyond those allocated before."""
        from rmm import statistics

        found = statistics.pop_statistics()
        return max(0, int(found.peak_bytes)) if found else 0


class CupyPeak:
    """What CuPy's own pool takes from the GPU; it keeps what is freed, so its size is its peak."""

    def __init__(self) -> None:
        import cupy

        self._pool: Any = cupy.get_default_memory_pool()
        self._pool.free_all_blocks()
        self._first = self._pool.total_bytes()

    def stop(self) -> int:
        """Return the bytes by which the pool has grown."""
        return int(self._pool.total_bytes() - self._first)


def watch(device: str, dask_worker: Any) -> None:
    """Begin to watch the memory of an idle worker, without what it keeps for later gangs."""
    plugin = dask_worker.plugins.get(PLUGIN)
    if plugin is not None:
        plugin.member.device.release()
    dask_worker.benchmark_peak = HostPeak() if device == "cpu" else RmmPeak()


def watched(dask_worker: Any) -> int:
    """Return the peak of a worker since :func:`watch`."""
    peak = dask_worker.benchmark_peak
    del dask_worker.benchmark_peak
    return int(peak.stop())
