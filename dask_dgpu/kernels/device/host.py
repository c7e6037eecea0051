"""A host: NumPy arrays; both lanes are the calling thread. And the allocator of its C library."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np

from dask_dgpu.kernels.device import Mark
from dask_dgpu.kernels.device.sequences import Sequences

Array = Any
T = TypeVar("T")

KEPT_BYTES = 64 << 20
"""Larger workspaces are freed after each program; glibc may cache as much freed memory."""

FROM_HEAP = 4 << 20
"""Largest allocation from glibc's cache."""

NOTHING = nullcontext()

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""


class HostDevice:
    """NumPy in the calling thread, or in ``threads`` for independent work."""

    kind = "cpu"
    batch = 1  # each has a thread of its own
    sequences: Sequences | None = None

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._kept: dict[str, Array] = {}

    def empty(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        return np.zeros(shape, dtype)

    def workspace(self, name: str, size: int, dtype: str) -> Array:
        nbytes = size * np.dtype(dtype).itemsize
        kept = self._kept.get(name)
        if kept is None or len(kept) < nbytes:
            # new memory costs a page fault every 4 KiB, as much as a copy
            kept = np.empty(nbytes, np.uint8)
            if nbytes <= KEPT_BYTES:
                self._kept[name] = kept
        return kept[:nbytes].view(dtype)

    def constant(self, value: Array) -> Array:
        return value

    def owns(self, array: Array) -> bool:
        return type(array) is np.ndarray and array.flags.owndata and array.flags.writeable

    def again(self, known: dict[Hashable, Any], key: Hashable, work: Callable[[], T]) -> T:
        return work()

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        work = list(items)
        if self._threads == 1 or len(work) < 2:
            return [function(item) for item in work]  # map would stop at a StopIteration
        with ThreadPoolExecutor(min(self._threads, len(work))) as pool:
            under_way = [pool.submit(function, item) for item in work]
            try:
                return [each.result() for each in under_way]
            finally:
                for each in under_way:
                    each.cancel()  # if one fails, those that have not started

    def join(self) -> None:
        pass

    def computing(self) -> AbstractContextManager[Any]:
        return NOTHING

    def transferring(self) -> AbstractContextManager[Any]:
        return NOTHING

    def named(self, name: str) -> AbstractContextManager[Any]:
        return NOTHING

    def begin(self) -> None:
        pass

    def mark(self) -> Mark:
        return None

    def after(self, mark: Mark) -> None:
        pass

    def clock(self) -> None:
        return None

    def watch(self) -> None:
        return None

    def borrow(self, block: Array) -> Array:
        return block

    def hand_over(self, block: Array) -> Array:
        return block

    def synchronize(self) -> None:
        pass

    def recover(self) -> None:
        self._kept.clear()

    def release(self) -> None:
        self._kept.clear()
        return_memory()

    def to_device(self, block: Array) -> Array:
        return np.asarray(block)

    def to_host(self, block: Array) -> Array:
        return np.asarray(block)


def keep_small_memory() -> bool:
    """Let glibc cache some freed memory if the environment disables that.

    Dask's nanny starts workers with ``MALLOC_TRIM_THRESHOLD_=65536``, so glibc returns all freed
    memory to the system and maps every allocation from 128 KiB on anew. SciPy's transforms allocate
    a workspace for each line: half of their time were page faults. Memory of large arrays is still
    returned.

    Return whether anything changed: only under glibc, with a lower threshold in the environment.
    """
    threshold = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    if not _is_glibc() or not threshold.isdigit() or int(threshold) >= KEPT_BYTES:
        return False
    set_option = ctypes.CDLL(None).mallopt
    return bool(set_option(MMAP_THRESHOLD, FROM_HEAP) and set_option(TRIM_THRESHOLD, KEPT_BYTES))


def return_memory() -> None:
    """Have glibc return freed memory that it caches to the system."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
