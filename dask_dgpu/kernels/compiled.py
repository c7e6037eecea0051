"""Functions that Numba compiles when they are first called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is compiled at its first call, and runs without the GIL.

    The code is kept on disk, where Python keeps its own or in the user's cache, so that
    only the first of all processes compiles; where neither can be written, each does.
    """
    try:
        cached: Callable[..., Any] = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # Numba found no place
        cached = numba.njit(nogil=True)(function)
    return cached
