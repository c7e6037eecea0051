"""Stencils on a whole array."""

from __future__ import annotations

from typing import Any

from dask_dgpu.algorithms.halo.plan import Boundary
from dask_dgpu.kernels.stencil import Taps, padded, weighted

Array = Any


def stencil_reference(
    array: Array, taps: Taps, boundary: tuple[Boundary, ...], iterations: int
) -> Array:
    """Apply a stencil to a whole array in NumPy, one tap after the other."""
    for _ in range(iterations):
        array = one_sweep(array, taps, boundary)
    return array


def one_sweep(array: Array, taps: Taps, boundary: tuple[Boundary, ...]) -> Array:
    """Return the sums over an array that is padded along one axis after the other."""
    for axis, (reach, each) in enumerate(zip(taps.radius, boundary, strict=True)):
        array = padded(array, axis, (reach, reach), 0.0 if each is None else each)
    return weighted(array, taps)
