"""Numba compilation at the first call, with a cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.compiler_lock import global_compiler_lock

Function = Callable[..., Any]


def compiled(function: Function, **options: Any) -> Any:
    """Return a function that Numba compiles at its first call and that releases the GIL.

    The code is cached on disk, beside Python's own cache or in the user's. Other processes that
    need it at the same time wait, so that only one of a host compiles. If no cache is writable,
    every process compiles. ``options`` are those of ``numba.njit``.
    """
    try:
        dispatcher = numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # no writable cache
        return numba.njit(nogil=True, **options)(function)
    compile_or_load = dispatcher.compile
    file = Path(dispatcher.stats.cache_path) / f"{function.__qualname__}.lock"

    def compile_alone(signature: Any) -> Any:
        # Numba's lock first: threads that wait for it must not keep the file locked
        with global_compiler_lock, _locked(file):
            return compile_or_load(signature)

    dispatcher.compile = compile_alone  # called for each new signature
    return dispatcher


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock a file against other processes, on systems that can."""
    try:
        import fcntl

        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.open("w")
    except (ImportError, OSError):
        yield
        return
    with stream:
        with suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
