"""Functions that trees call; a reproduction prints the source of those it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import ndimage

Array = np.ndarray[Any, Any]


def numbers(seed: int, shape: tuple[int, ...], dtype: str, special: Sequence[float] = ()) -> Any:
    """Small numbers, whose sums and products are exact, with some special ones among them."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-4, 5, shape).astype("f8")
    if dtype.startswith("u"):
        values = abs(values)
    if dtype.startswith("c"):
        values = values + 1j * rng.integers(-4, 5, shape)
    for each in special:
        values[rng.random(shape) < 0.06] = each
    return values.astype(dtype)


def neighbours(x: Any, depth: Sequence[int]) -> Any:
    """Sum each element and those around it along each axis; the edges are repeated."""
    total = x
    for axis, reach in enumerate(depth):
        if reach and x.shape[axis]:
            widths = [(0, 0)] * x.ndim
            widths[axis] = (reach, reach)
            wide = np.pad(x, widths, mode="edge")
            for offset in (0, 2 * reach):
                at = [slice(None)] * x.ndim
                at[axis] = slice(offset, offset + x.shape[axis])
                total = total + wide[tuple(at)]
    return total


def neighbours_beyond(x: Any, depth: Sequence[int], boundary: Sequence[Any]) -> Any:
    """Do what ``map_overlap(neighbours)`` does, to a NumPy array."""
    modes = {"periodic": "wrap", "reflect": "symmetric", "nearest": "edge", "none": "edge"}
    wide = x
    for axis, (reach, beyond) in enumerate(zip(depth, boundary, strict=True)):
        widths = [(0, 0)] * x.ndim
        widths[axis] = (reach, reach)
        if beyond in modes:
            wide = np.pad(wide, widths, mode=modes[beyond])
        else:
            wide = np.pad(wide, widths, mode="constant", constant_values=beyond)
    inner = tuple(slice(reach, reach + n) for reach, n in zip(depth, x.shape, strict=True))
    return neighbours(wide, depth)[inner]


def numbered(x: Any, block_info: Any = None) -> Any:
    """Add to each element the sum of its indices in the whole array."""
    location = block_info[0]["array-location"] if block_info else [(0, n) for n in x.shape]
    at = np.meshgrid(*(np.arange(*ends) for ends in location), indexing="ij")
    return x + sum(at, np.zeros(x.shape)).astype(x.dtype)


def affine(x: Any, factor: int) -> Any:
    return x * factor + x.dtype.type(1)


def widened(x: Any) -> Any:
    return x[np.newaxis]


def correlated(x: Any, kernel: Any, boundary: Sequence[Any], iterations: int) -> Any:
    """Do what ``dgpu.stencil`` does, to a NumPy array."""
    modes = {"periodic": "wrap", "reflect": "reflect", "mirror": "mirror", "nearest": "nearest"}
    dtype = x.dtype if x.dtype.kind in "fc" else np.dtype("f8")
    wide = np.asarray(x, dtype)
    reach = [n // 2 for n in kernel.shape]
    taps = [at for at in np.ndindex(kernel.shape) if kernel[at] != 0]
    for _ in range(iterations):
        beyond = wide
        for axis, (depth, kind) in enumerate(zip(reach, boundary, strict=True)):
            index = np.arange(-depth, x.shape[axis] + depth)
            inside = (index >= 0) & (index < x.shape[axis])
            if kind in modes:
                line = np.arange(x.shape[axis]) + 0.0
                places = ndimage.map_coordinates(
                    line, [index], order=0, mode="grid-wrap" if kind == "periodic" else modes[kind]
                )
                beyond = np.take(beyond, places.astype(int), axis=axis)
            else:
                beyond = np.take(beyond, np.where(inside, index, 0), axis=axis)
                value = 0 if kind == "zero" else kind
                mask = inside.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
                beyond = np.where(mask, beyond, np.asarray(value, beyond.dtype))
        total = np.zeros(x.shape, dtype)
        for at in taps:
            part = tuple(slice(i, i + n) for i, n in zip(at, x.shape, strict=True))
            total = total + beyond[part] * kernel[at]
        wide = total.astype(dtype)
    return wide


def convolved(
    x: Any, weight: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Any:
    """Do what ``dgpu.conv2d`` does, to an image of several channels."""
    wide = np.pad(x, [(0, 0), *((n, n) for n in padding)])
    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    total: Any = 0
    for at in np.ndindex(weight.shape[2:]):
        starts = [d * i for d, i in zip(dilation, at, strict=True)]
        stops = [n - r + i for n, r, i in zip(wide.shape[1:], reach, starts, strict=True)]
        part = wide[:, starts[0] : stops[0] : stride[0], starts[1] : stops[1] : stride[1]]
        total = total + np.tensordot(weight[(..., *at)].astype(x.dtype), part, axes=1)
    return total


def assigned(x: Any, index: Any, value: Any) -> Any:
    """Return a copy with some elements set."""
    y = x.copy()
    y[index] = value
    return y


def both_neighbours(x: Any, y: Any, depth: Sequence[int]) -> Any:
    return neighbours(x, depth) - neighbours(y, depth)


def line_sum(line: Any) -> Any:
    return line.sum(dtype=line.dtype)


def added(x: Any, y: Any) -> Any:
    return x + y


def squared(x: Any) -> Any:
    """Return what a matrix and its triangular factor have in common."""
    return x.conj().T @ x
