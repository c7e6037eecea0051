"""Functions of blocks that depend on the position of the block in its array."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.utils import funcname


def map_with_start(
    function: Callable[..., Any], x: Array, axis: int, *arguments: Any, dtype: Any
) -> Array:
    """Map ``function(block, axis, start, *arguments)`` over the blocks of an array.

    ``start`` is the index of the block's first element along the axis.
    """
    return da.map_blocks(
        _with_start,
        x,
        function=function,
        axis=axis,
        starts=tuple(accumulate(x.chunks[axis], initial=0)),
        arguments=arguments,
        token=funcname(function),
        dtype=dtype,
        meta=meta_like(x, x.ndim, dtype),
    )


def _with_start(
    block: Any,
    function: Callable[..., Any],
    axis: int,
    starts: tuple[int, ...],
    arguments: tuple[Any, ...],
    block_id: tuple[int, ...],
) -> Any:
    return function(block, axis, starts[block_id[axis]], *arguments)


def meta_like(x: Array, ndim: int, dtype: Any) -> Any:
    """Return an empty array of the type of the blocks of ``x``."""
    return np.empty_like(x._meta, shape=(0,) * ndim, dtype=dtype)
