"""What the arguments of a call mean, or an error at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.utils import typename

from dask_dgpu.algorithms.halo import Boundary
from dask_dgpu.arguments import expected, is_number, unknown
from dask_dgpu.kernels.stencil import Taps
from graph_opt.model.node import CONTAINERS

NAMES = ("zero", "periodic", "reflect", "mirror", "nearest")
WIDEST = np.complex128


def check_array(name: str, x: Array) -> None:
    """Raise if an array cannot be swept."""
    if not x.ndim:
        raise ValueError(f"{name} has no axes, it must have one at least")
    for axis, length in enumerate(x.shape):
        if math.isnan(length):
            raise ValueError(
                f"{name} has unknown chunk sizes along axis {axis}, which must be known; "
                "compute_chunk_sizes() finds them out"
            )
    dtype = np.dtype(x.dtype)
    if dtype.kind not in "biufc" or np.result_type(dtype, WIDEST) != WIDEST:
        raise TypeError(
            f"{name} has the dtype {dtype}, it must be of real or complex numbers of double "
            "precision at most"
        )
    container = typename(type(x._meta))
    if container not in CONTAINERS:
        raise TypeError(
            f"{name} has blocks of type {container}, which must be one of NumPy or CuPy"
        )


def taps_of(kernel: Any, shape: tuple[int, ...]) -> Taps:
    """Return the taps of a kernel for an array of this shape."""
    try:
        weights = np.asarray(kernel)
    except ValueError:  # rows of several lengths
        expected("kernel", "an array", kernel)
    if weights.dtype.kind not in "biufc":
        raise TypeError(f"kernel has the dtype {weights.dtype}, it must be of numbers")
    if weights.ndim != len(shape):
        raise ValueError(f"kernel has {weights.ndim} axes, it must have {len(shape)} as x has")
    for axis, (length, n) in enumerate(zip(weights.shape, shape, strict=True)):
        if length % 2 == 0:
            raise ValueError(f"kernel has the length {length} along axis {axis}, it must be odd")
        if length // 2 > n:
            raise ValueError(
                f"kernel reaches {length // 2} elements along axis {axis}, it must be {n} at "
                "most, the length of x"
            )
    if not np.isfinite(weights).all():
        raise ValueError("kernel has weights that are not finite, all must be")
    wide = weights.astype(complex if weights.dtype.kind == "c" else float)
    return Taps.of(wide)


def working_dtype(dtype: Any, weights: Sequence[complex]) -> np.dtype[Any]:
    """Return the dtype in which sweeps of such an array are computed."""
    real = np.dtype(dtype) if np.dtype(dtype).kind in "fc" else np.dtype("float64")
    least = "complex64" if any(isinstance(weight, complex) for weight in weights) else "float32"
    return np.result_type(real, least)


def boundaries(boundary: Any, ndim: int, dtype: np.dtype[Any]) -> tuple[Boundary, ...]:
    """Return what is beyond the array along each axis, of numbers that ``dtype`` can hold."""
    several = isinstance(boundary, Sequence) and not isinstance(boundary, str)
    each = tuple(boundary) if several else (boundary,) * ndim
    if len(each) != ndim:
        raise ValueError(f"boundary has {len(each)} entries, the array has {ndim} axes")
    found = tuple(map(_boundary, each))
    for one, value in zip(each, found, strict=True):
        if isinstance(value, complex) and dtype.kind != "c":
            raise ValueError(f"boundary is {one!r}, it must be real as the array of {dtype} is")
    return found


def _boundary(boundary: Any) -> Boundary:
    if isinstance(boundary, str) and boundary in NAMES:
        return 0.0 if boundary == "zero" else boundary
    if is_number(boundary):
        value = complex(boundary)
        return value if value.imag else value.real
    if not isinstance(boundary, str):
        what = f"one of {', '.join(NAMES)}, or a number"
        expected("boundary", what, boundary, TypeError)
    raise ValueError(f"{unknown('boundary', boundary, NAMES)}, or a number")
