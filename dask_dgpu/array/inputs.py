"""Checks of the arrays that users pass: dtype, chunk sizes and type of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.utils import typename

from graph_opt.model.node import CONTAINERS


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


def check_container(name: str, x: Array) -> None:
    """Raise unless the blocks of an array are NumPy or CuPy arrays."""
    container = typename(type(x._meta))
    if container not in CONTAINERS:
        raise TypeError(f"expected {name} with blocks of NumPy or CuPy, got {container}")
