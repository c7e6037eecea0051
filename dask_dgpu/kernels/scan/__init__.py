"""Running sums and products of a block along an axis."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = Any


def cumsum(x: Array, axis: int | None = None, dtype: Any = None) -> Array:
    """Return the running sum; as :func:`numpy.cumsum` but for rounding."""
    return _running(np.cumsum, x, axis, dtype)


def cumprod(x: Array, axis: int | None = None, dtype: Any = None) -> Array:
    """Return the running product; as :func:`numpy.cumprod` but for rounding."""
    return _running(np.cumprod, x, axis, dtype)


def _running(function: Any, x: Array, axis: int | None, dtype: Any) -> Array:
    cupy = sys.modules.get("cupy")
    if cupy is not None and type(x) is cupy.ndarray and axis is not None:
        from dask_dgpu.kernels.scan.cuda import scanned

        wanted = function(np.ones(0, x.dtype), dtype=dtype).dtype
        result = scanned("+" if function is np.cumsum else "*", x, axis % x.ndim, wanted)
        if result is not None:
            return result
    return function(x, axis=axis, dtype=dtype)


FUNCTIONS: Mapping[Any, Callable[..., Array]] = {np.cumsum: cumsum, np.cumprod: cumprod}
"""What is quicker than CuPy for these functions of NumPy."""
