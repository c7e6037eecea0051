"""Arguments of stencils and iterations as taps, boundaries and dtypes, or an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from dask.array.core import Array

from dask_dgpu.algorithms.halo import Boundary
from dask_dgpu.arguments import expected, is_number, unknown
from dask_dgpu.array.inputs import check_chunk_sizes, check_container, check_dtype, per_axis
from dask_dgpu.kernels.stencil import Taps

NAMES = ("zero", "periodic", "reflect", "mirror", "nearest")
WIDEST = np.complex128


def check_array(name: str, x: Array) -> None:
    """Raise if a stencil cannot be applied to an array."""
    if not x.ndim:
        raise ValueError(f"expected {name} with at least 1 axis, got 0")
    check_chunk_sizes(name, x)
    what = "real or complex numbers of at most double precision"
    check_dtype(name, x, what=what)
    if np.result_type(x.dtype, WIDEST) != WIDEST:
        raise TypeError(f"expected {name} to be of {what}, got {x.dtype}")
    check_container(name, x)


def taps_of(kernel: Any, shape: tuple[int, ...]) -> Taps:
    """Return the taps of a kernel for an array of this shape."""
    try:
        weights = np.asarray(kernel)
    except ValueError:  # rows of several lengths
        expected("kernel", "an array", kernel)
    check_dtype("kernel", weights)
    if weights.ndim != len(shape):
        raise ValueError(f"expected kernel to have {len(shape)} axes as x, got {weights.ndim}")
    for axis, (length, n) in enumerate(zip(weights.shape, shape, strict=True)):
        if length % 2 == 0:
            raise ValueError(f"expected kernel of odd length along axis {axis}, got {length}")
        if length // 2 > n:
            raise ValueError(
                f"expected kernel to reach at most {n} elements along axis {axis}, the length "
                f"of x, got {length // 2}"
            )
    if not np.isfinite(weights).all():
        raise ValueError("expected kernel with finite weights, got NaN or infinity")
    wide = weights.astype(complex if weights.dtype.kind == "c" else float)
    return Taps.of(wide)


def working_dtype(dtype: Any, weights: Sequence[complex]) -> np.dtype[Any]:
    """Return the dtype in which sweeps are computed."""
    real = np.dtype(dtype) if np.dtype(dtype).kind in "fc" else np.dtype("float64")
    least = "complex64" if any(isinstance(weight, complex) for weight in weights) else "float32"
    return np.result_type(real, least)


def boundaries(boundary: Any, ndim: int, dtype: np.dtype[Any]) -> tuple[Boundary, ...]:
    """Return the boundary of each axis, with numbers that ``dtype`` can hold."""
    each = per_axis("boundary", boundary, ndim)
    found = tuple(map(_boundary, each))
    for one, value in zip(each, found, strict=True):
        if isinstance(value, complex) and dtype.kind != "c":
            raise ValueError(f"expected boundary to be real for an array of {dtype}, got {one!r}")
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
