"""Numba compilation at the first call, with a cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numba

Function = Callable[..., Any]


def compiled(function: Function, **options: Any) -> Any:
    """Return a function that Numba compiles at its first call and that releases the GIL.

    The code is cached on disk, beside Python's own cache or in the user's, so that only one
    process compiles. If neither is writable, every process does. ``options`` are those of
    ``numba.njit``.
    """
    try:
        return numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # no writable cache
        return numba.njit(nogil=True, **options)(function)


def one_compiles(function: Any) -> Function:
    """Return a compiled function whose first call waits if another process compiles it.

    The workers of a host usually start at the same time, and all of them would compile.
    """
    called = False

    def call(*arguments: Any) -> Any:
        nonlocal called
        if called:
            return function(*arguments)
        with _compile_lock(function):
            result = function(*arguments)
        called = True
        return result

    return call


@contextmanager
def _compile_lock(function: Any) -> Iterator[None]:
    """Lock a function against compilation by other processes, unless its code is cached."""
    cache = function.stats.cache_path
    name = function.py_func.__qualname__
    if cache is None or any(Path(cache).glob(f"*.{name}-*.nbi")):
        yield
        return
    with ExitStack() as stack:
        with suppress(ImportError, OSError):  # without such locks every process compiles
            import fcntl

            Path(cache).mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((Path(cache) / f"{name}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
