"""Checks of the arrays that users pass, and of values for each of their axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Number
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.utils import typename

from dask_dgpu.arguments import sequence
from graph_opt.model.layout import CONTAINERS


def check_dtype(
    name: str, x: Any, *, kinds: str = "biufc", what: str = "real or complex numbers"
) -> None:
    """Raise unless the dtype of an array is of one of these kinds."""
    if np.dtype(x.dtype).kind not in kinds:
        raise TypeError(f"expected {name} to be of {what}, got {x.dtype}")


def check_chunk_sizes(name: str, x: Array, axes: Iterable[int] | None = None) -> None:
    """Raise unless all chunk sizes along some axes, by default all, are known."""
    for axis in range(x.ndim) if axes is None else axes:
        if math.isnan(x.shape[axis]):
            raise ValueError(
                f"expected {name} with known chunk sizes, got unknown ones along axis {axis}: "
                "compute_chunk_sizes() determines them"
            )


def per_axis(name: str, value: Any, ndim: int) -> tuple[Any, ...]:
    """Return one value for each axis, from these values or from one for all axes."""
    if isinstance(value, Number | str | bytes | None):
        return (value,) * ndim
    each = sequence(name, value, "one value, or one for each axis")
    if len(each) != ndim:
        raise ValueError(f"expected {name} to have one entry per axis, {ndim}, got {len(each)}")
    return each


def check_container(name: str, x: Array) -> None:
    """Raise unless the blocks of an array are NumPy or CuPy arrays."""
    container = typename(type(x._meta))
    if container not in CONTAINERS:
        raise TypeError(f"expected {name} with blocks of NumPy or CuPy, got {container}")
