"""Functions that Numba compiles when they are first called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numba

Function = Callable[..., Any]


def compiled(function: Function) -> Any:
    """Return a function that is compiled at its first call, and runs without the GIL.

    The code is kept on disk, where Python keeps its own or in the user's cache, so that
    only the first of all processes compiles; where neither can be written, each does.
    """
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # Numba found no place
        return numba.njit(nogil=True)(function)


def one_compiles(function: Any) -> Function:
    """Return a compiled function whose first call waits for another process that compiles it.

    Workers of one host begin at the same time as a rule, and would all compile.
    """
    called = False

    def call(*arguments: Any) -> Any:
        nonlocal called
        if called:
            return function(*arguments)
        with _alone(function):
            result = function(*arguments)
        called = True
        return result

    return call


@contextmanager
def _alone(function: Any) -> Iterator[None]:
    """Keep others from compiling a function meanwhile, unless its code is on disk already."""
    place = function.stats.cache_path
    name = function.py_func.__qualname__
    if place is None or any(Path(place).glob(f"*.{name}-*.nbi")):
        yield
        return
    with ExitStack() as stack:
        with suppress(ImportError, OSError):  # where there are no such locks, each compiles
            import fcntl

            Path(place).mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((Path(place) / f"{name}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
