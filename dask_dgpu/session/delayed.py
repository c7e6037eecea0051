"""``Array.to_delayed``, which must not see gangs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import dask
from dask.array.optimization import optimize


def plain_to_delayed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Array.to_delayed`` so that it optimizes with Dask's own passes alone.

    Its blocks may be computed one by one, and with a gang behind them each would
    run the whole product.
    """
    if hasattr(original, "__wrapped__"):
        return original

    @functools.wraps(original)
    def to_delayed(self: Any, optimize_graph: bool = True) -> Any:
        with dask.config.set(array_optimize=optimize):
            return original(self, optimize_graph=optimize_graph)

    return to_delayed
