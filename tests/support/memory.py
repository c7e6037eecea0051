"""Limits and peaks of memory, as ``tracemalloc`` counts them here, and a mark for one allocator."""

from __future__ import annotations

import platform
import tracemalloc
from collections.abc import Callable
from typing import Any, TypeVar

import dask
import pytest

T = TypeVar("T")

ATTEMPTS = 3

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")


def traced(call: Callable[[], T]) -> tuple[T, int]:
    """Return the result of a call, and the peak in bytes of what the process allocated in it."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_peak(call: Callable[[], T], most: float) -> T:
    """Return the result of a call that allocates at most this many bytes.

    Threads that other tests left also allocate, so a call that took more runs again.
    """
    peaks = []
    for _ in range(ATTEMPTS):
        result, peak = traced(call)
        if peak <= most:
            return result
        peaks.append(peak)
    raise AssertionError(f"expected at most {most:,.0f} bytes, got {peaks}")


def bounded(limit: float | None) -> Any:
    """Let devices have so many bytes, all of which may be used."""
    return dask.config.set({"dgpu.memory.limit": limit, "dgpu.memory.safety-margin": 0.0})
