"""Arrays of Dask whose chunks the user cannot choose, and blocks beside others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from graph_opt.model.layout import Chunks

THRESHOLD = 4
"""Growth of the number of tasks from which Dask goes by way of others, not dask_array's 32."""

_largest_between: ContextVar[int | None] = ContextVar("largest_between", default=None)


@contextmanager
def any_chunks() -> Iterator[None]:
    """Let Dask build an array of many more chunks than its operands have, without a warning.

    An outer product has so many, and its caller cannot choose others.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", da.PerformanceWarning)
        yield


@contextmanager
def small_steps(nbytes: int) -> Iterator[None]:
    """Let :func:`rechunked` go by way of blocks of at most so many bytes, in this thread."""
    token = _largest_between.set(nbytes)
    try:
        yield
    finally:
        _largest_between.reset(token)


def rechunked(x: Array, chunks: Chunks) -> Array:
    """Rechunk by tasks, by way of blocks no larger than the larger of both arrays.

    They may be as large as Dask's ``array.chunk-size``, except within :func:`small_steps`. Dask's
    P2P needs the client and a worker's plugin, and both are missing where a layer is expanded. It
    does not support CuPy blocks either.
    """
    largest = _largest_between.get()
    threshold = None if largest is None else THRESHOLD
    return x.rechunk(chunks, threshold, largest, method="tasks")


def beside(block: Any, like: Any) -> Any:
    """Return a block on the device of another; Dask may have declared the wrong one for either."""
    if not isinstance(like, np.ndarray):
        return np.asarray(block, like=like)
    return block.get() if hasattr(block, "get") else block
