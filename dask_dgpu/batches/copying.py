"""Copies of large arrays by several threads, and memory that is used again.

One thread reaches a part of the memory's bandwidth, and the first touch of new pages takes longer
than a copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, wait
from functools import partial
from math import prod
from threading import Lock
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_dgpu.batches.windows.ring import pieces

THREADS = min(8, CPU_COUNT)
LEAST = 1 << 20
"""Bytes of the smallest copy that is shared by threads."""


def copy(executor: Executor, target: Any, source: Any) -> None:
    """Copy an array to one of the same shape."""
    most = max(LEAST, -(-source.nbytes // THREADS))
    works = [
        partial(np.copyto, target[index], source[index])
        for index in pieces(source.shape, source.itemsize, most)
    ]
    in_threads(executor, works, len(works) - 1, lambda: None)


def in_threads(
    executor: Executor,
    works: Iterable[Callable[[], None]],
    helpers: int,
    stop: Callable[[], None],
) -> None:
    """Do works, begun in their order, in this thread and in free ones of an executor.

    No work may need that a later one has begun: there may be no free thread. After an error
    ``stop`` is called, so that works which wait can end, and no other begins. The first error is
    raised once all have ended.
    """
    left, lock = iter(works), Lock()
    errors: list[BaseException] = []

    def begun() -> Callable[[], None] | None:
        with lock:
            return None if errors else next(left, None)

    def go() -> None:
        try:
            while (work := begun()) is not None:
                work()
        except BaseException as error:
            errors.append(error)
            stop()

    others = [executor.submit(go) for _ in range(helpers)]
    go()
    wait(each for each in others if not each.cancel())
    if errors:
        first = errors[0]
        errors.clear()
        try:
            raise first
        finally:
            del first  # its frames hold arrays


class Staging:
    """Host memory for arrays on their way; that of arrays which have died is used again."""

    def __init__(self) -> None:
        self._free: dict[int, Any] = {}  # changed by single calls: finalizers run at any time
        self._lock = Lock()

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an array of any content."""
        nbytes = prod(shape) * dtype.itemsize
        if not nbytes:
            return np.empty(shape, dtype)
        with self._lock:
            large = [memory for memory in list(self._free.values()) if memory.nbytes >= nbytes]
            memory = min(large, key=lambda each: each.nbytes, default=None)
            if memory is None:
                memory = np.empty(nbytes, np.uint8)
            self._free.pop(id(memory), None)
        used = _Used(memory)
        weakref.finalize(used, self._free.setdefault, id(memory), memory).atexit = False
        return np.asarray(used)[:nbytes].view(dtype).reshape(shape)


class _Used:
    """The base of an array and of all its views: it dies with the last of them."""

    def __init__(self, memory: Any) -> None:
        self.__array_interface__ = memory.__array_interface__
