"""Transforms by plans, and separately along an axis that is too long for a plan.

A plan makes an axis whole and splits others instead. If the others are too short, or there are
none, blocks would be much larger than those of the input. Such an axis is transformed by the
four-step algorithm, or by Bluestein's if its length has large prime factors. Then no block
contains the whole axis.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.algorithms.pencil_fft import (
    TRIGONOMETRIC,
    Chunks,
    PencilPlan,
    Transform,
    plan_pencil_fft,
)
from dask_dgpu.array.fft.arguments import REAL_INPUT, REAL_OUTPUT
from dask_dgpu.array.fft.blocks import map_with_start, meta_like
from dask_dgpu.array.fft.bluestein import bluestein
from dask_dgpu.array.fft.fallback import apply
from dask_dgpu.array.fft.four_step import four_step, moved
from dask_dgpu.array.fft.matrix import matrix_for
from dask_dgpu.kernels.fft import half_complex as kernel
from dask_dgpu.kernels.fft.trigonometric import Recipe

SMALL = 16 * 2**20
"""Blocks of at most these bytes are never too large."""
TOO_LARGE = 2
"""A block is too large if it exceeds the average input block by this factor ..."""
MUCH_MORE = 1.5
"""... and the largest input block by this factor."""


def transform_axes(
    x: Array,
    transforms: tuple[Transform, ...],
    name: str,
    *,
    output_layout: Literal["any", "input"] = "any",
    chunks: Chunks | None = None,
) -> Array:
    """Transform along some axes of any chunking.

    Parameters
    ----------
    x : dask.array.Array
        The input, of known chunks.
    transforms : tuple of Transform
        One per axis, at most one of them from or to real numbers.
    name : str
        Prefix of the keys of a plan's layer.
    output_layout : {"any", "input"}, optional
        ``"input"`` restores the chunks of the input.
    chunks : tuple of tuple of int, optional
        Chunks to restore in place of the input's; with ``output_layout="any"`` only if that
        moves no more bytes.

    Returns
    -------
    dask.array.Array
        Of NumPy's dtype. By default an axis that is too long for a plan has about even
        chunks, as many as in the input.
    """
    dtype = x.dtype.name
    plan = plan_pencil_fft(x.chunks, dtype, transforms, output_layout=output_layout)
    if chunks is not None:
        other = plan_pencil_fft(x.chunks, dtype, transforms, output_chunks=chunks)
        if output_layout == "input" or other.moved(x.npartitions) <= plan.moved(x.npartitions):
            plan = other
    long = too_long(plan, small=SMALL)
    if long is None:
        return apply(x, plan, name)
    (separate,) = (each for each in transforms if each.axis == long)
    others = tuple(each for each in transforms if each.axis != long)
    # transforms from real numbers first, to real numbers last, cosines and sines between
    before = REAL_OUTPUT if separate.kind in TRIGONOMETRIC else REAL_INPUT
    if separate.kind in REAL_OUTPUT or any(each.kind in before for each in others):
        y = along_long_axis(transform_axes(x, others, name), separate)
    else:
        y = transform_axes(along_long_axis(x, separate), others, name)
    return moved(y, plan.output_chunks) if output_layout == "input" else y


def too_long(plan: PencilPlan, *, small: int) -> int | None:
    """Return the axis to transform without whole blocks, ``None`` if the plan is good.

    It is the longest axis of a stage with too large blocks, among those that the input has
    in several chunks. A block is too large if it exceeds ``small`` bytes and, relative to
    padded arrays, ``TOO_LARGE`` average and ``MUCH_MORE`` largest blocks of the input.
    """
    size = math.prod(map(sum, plan.input_chunks))
    if size == 0:
        return None
    average = size / math.prod(map(len, plan.input_chunks))
    most = max(TOO_LARGE * average, MUCH_MORE * _largest(plan.input_chunks))
    for stage, before, after in zip(plan.stages, plan.exchanges, plan.exchanges[1:], strict=False):
        growth = max(1.0, math.prod(map(sum, stage.output_chunks)) / size)
        nbytes = max(
            _largest(chunks) * np.dtype(exchange.dtype).itemsize
            for chunks, exchange in ((stage.chunks, before), (stage.output_chunks, after))
        )
        elements = max(_largest(stage.chunks), _largest(stage.output_chunks))
        if nbytes > small and elements >= growth * most:
            cut = [each for each in stage.transforms if len(plan.input_chunks[each.axis]) > 1]
            if cut:
                return max(cut, key=lambda each: each.n).axis
    return None


def _largest(chunks: Chunks) -> int:
    return math.prod(map(max, chunks))


def along_long_axis(x: Array, transform: Transform, *, length: int | None = None) -> Array:
    """Transform along one axis without whole blocks, to NumPy's dtype.

    Parameters
    ----------
    x : dask.array.Array
        The input.
    transform : Transform
        Of any kind. A transform from real numbers is one half of the complex one, a transform
        to real numbers the real part of the transform of a one-sided spectrum. Cosines and
        sines are transforms from or to real numbers of twice the length.
    length : int, optional
        Number of elements to compute, from the first one; by default all.
    """
    if transform.kind in TRIGONOMETRIC:
        return _trigonometric(x, transform)
    axis, n = transform.axis, transform.n
    parts = len(x.chunks[axis])
    sides = (
        parts if length is None else -(-parts * n // length)
    )  # so that ``length`` elements have as many
    length = length or transform.output_length
    kind = "fft" if transform.kind in ("fft", "rfft", "hfft") else "ifft"
    to_complex = replace(transform, kind=kind)
    y = _one_sided(x, to_complex) if transform.kind in REAL_OUTPUT else x
    cuts = tuple(np.cumsum(x.chunks[axis])[:-1].tolist())
    others = _largest((*x.chunks[:axis], *x.chunks[axis + 1 :]))
    itemsize = np.dtype(to_complex.output_dtype(x.dtype.name)).itemsize
    matrix = matrix_for(n, sides, cuts, enough=SMALL // (others * itemsize))
    if matrix is None:
        y = bluestein(y, to_complex, parts=parts, length=length)
    else:
        y = four_step(y, to_complex, matrix, parts=parts, length=length)
    if transform.kind in REAL_OUTPUT:
        dtype = transform.output_dtype(x.dtype.name)
        meta = meta_like(y, y.ndim, dtype)
        y = da.map_blocks(kernel.real_part, y, out=dtype, dtype=dtype, meta=meta)
    return y


def _one_sided(x: Array, transform: Transform) -> Array:
    axis, used = transform.axis, transform.n // 2 + 1
    x = x[(slice(None),) * axis + (slice(0, used),)]
    dtype = transform.output_dtype(x.dtype.name)
    return map_with_start(kernel.one_sided, x, axis, transform.n, dtype, dtype=dtype)


def _trigonometric(x: Array, transform: Transform) -> Array:
    """Transform with the steps of :mod:`dask_dgpu.kernels.fft.trigonometric`."""
    if x.dtype.kind == "c":
        return _trigonometric(x.real, transform) + 1j * _trigonometric(x.imag, transform)
    axis, n = transform.axis, transform.n
    dtype = transform.output_dtype(x.dtype.name)
    recipe = Recipe(transform.kind, n, transform.norm)
    y = x[(slice(None),) * axis + (slice(0, n),)].astype(dtype)
    given = np.result_type(dtype, 1j) if recipe.fft in ("irfft", "fft") else np.dtype(dtype)
    y = map_with_start(recipe.before, y, axis, dtype=given)
    first, length = recipe.first, recipe.first + n
    if recipe.fft == "irfft":
        shape = (*y.shape[:axis], first, *y.shape[axis + 1 :])
        chunks = (*y.chunks[:axis], (first,), *y.chunks[axis + 1 :])
        y = da.concatenate([da.zeros_like(y, shape=shape, chunks=chunks), y], axis) if first else y
        first, length = 0, n
    y = along_long_axis(y, Transform(recipe.fft, axis, recipe.period), length=length)
    y = y[(slice(None),) * axis + (slice(first, length),)]
    return map_with_start(_after, y, axis, recipe, dtype=dtype)


def _after(block: Any, axis: int, start: int, recipe: Recipe) -> Any:
    # a copy, since other tasks may use the block; the result is no view of complex numbers
    real = recipe.after(block.copy(), axis, start)
    return real.astype(real.dtype, order="C", copy=False)
