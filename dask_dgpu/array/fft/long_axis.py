"""Transforms by plans, and apart from them along an axis that no plan can cut enough.

A plan makes an axis whole and cuts others in its place. Where the others are too short for
that, above all where there are none, blocks would be much larger than those of the input.
Along such an axis the transform is done by the four-step algorithm, or by Bluestein's where
its length does not factor, and no block along the way has all of it.
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
from dask_dgpu.array.fft.bluestein import bluestein
from dask_dgpu.array.fft.fallback import apply
from dask_dgpu.array.fft.four_step import four_step, meta_like, moved
from dask_dgpu.array.fft.matrix import matrix_for
from dask_dgpu.kernels.fft import half_complex as kernel
from dask_dgpu.kernels.fft.trigonometric import Recipe

SMALL = 16 * 2**20
"""Bytes of a block that is small enough, whatever share of the array it is."""
TOO_LARGE = 2
"""A block is too large when it has so many times the elements of the input's on average ..."""
MUCH_MORE = 1.5
"""... and so many times those of the largest: one that is nearly all may as well be all."""

FROM_REAL = ("rfft", "ihfft")
TO_REAL = ("irfft", "hfft")


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
        One an axis, at most one of them from or to real numbers.
    name : str
        What the keys of a plan's layer begin with.
    output_layout : {"any", "input"}, optional
        Whether the result is to be in the chunks of the input.
    chunks : tuple of tuple of int, optional
        Chunks in the place of the input's; with ``output_layout="any"`` the result is in
        these if that moves no more bytes.

    Returns
    -------
    dask.array.Array
        Of the dtype that NumPy gives it. Along an axis that is too long for a plan it has
        as many chunks as the input, about even ones, unless ``output_layout`` says more.
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
    (alone,) = (each for each in transforms if each.axis == long)
    others = tuple(each for each in transforms if each.axis != long)
    # from real numbers first, to real numbers last, cosines and sines while they are real
    before = TO_REAL if alone.kind in TRIGONOMETRIC else FROM_REAL
    if alone.kind in TO_REAL or any(each.kind in before for each in others):
        y = along_long_axis(transform_axes(x, others, name), alone)
    else:
        y = transform_axes(along_long_axis(x, alone), others, name)
    return moved(y, plan.output_chunks) if output_layout == "input" else y


def too_long(plan: PencilPlan, *, small: int) -> int | None:
    """Return the axis that should be transformed without being whole in a block.

    Parameters
    ----------
    plan : PencilPlan
        The best plan for all axes.
    small : int
        Bytes of a block up to which it is never too large.

    Returns
    -------
    int or None
        The longest one of a stage whose blocks are too large, among those that the input
        has in several chunks. A block is too large if it has twice the elements of the
        input's largest, both counted as shares where an array is padded.
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
    """Transform along one axis, of which no block has all.

    Parameters
    ----------
    x : dask.array.Array
        The input.
    transform : Transform
        Of any kind: one from real numbers is one half of the complex one, one to real
        numbers the real part of that of a one-sided spectrum, a cosine or sine transform
        one from or to real numbers of twice the length.
    length : int, optional
        Elements of the result that are wanted, from the first on; all by default.

    Returns
    -------
    dask.array.Array
        Of the dtype that NumPy gives it.
    """
    if transform.kind in TRIGONOMETRIC:
        return _trigonometric(x, transform)
    axis, n = transform.axis, transform.n
    parts = len(x.chunks[axis])
    sides = parts if length is None else -(-parts * n // length)  # what is wanted has as many
    length = length or transform.output_length
    kind = "fft" if transform.kind in ("fft", "rfft", "hfft") else "ifft"
    to_complex = replace(transform, kind=kind)
    y = _one_sided(x, to_complex) if transform.kind in TO_REAL else x
    cuts = tuple(np.cumsum(x.chunks[axis])[:-1].tolist())
    others = _largest((*x.chunks[:axis], *x.chunks[axis + 1 :]))
    itemsize = np.dtype(to_complex.output_dtype(x.dtype.name)).itemsize
    matrix = matrix_for(n, sides, cuts, enough=SMALL // (others * itemsize))
    if matrix is None:
        y = bluestein(y, to_complex, parts=parts, length=length)
    else:
        y = four_step(y, to_complex, matrix, parts=parts, length=length)
    if transform.kind in TO_REAL:
        dtype = transform.output_dtype(x.dtype.name)
        meta = meta_like(y, y.ndim, dtype)
        y = da.map_blocks(kernel.real_part, y, out=dtype, dtype=dtype, meta=meta)
    return y


def _one_sided(x: Array, transform: Transform) -> Array:
    axis, used = transform.axis, transform.n // 2 + 1
    x = x[(slice(None),) * axis + (slice(0, used),)]
    dtype = transform.output_dtype(x.dtype.name)
    return da.map_blocks(
        _one_sided_block,
        x,
        axis=axis,
        starts=_starts(x, axis),
        n=transform.n,
        out=dtype,
        dtype=dtype,
        meta=meta_like(x, x.ndim, dtype),
    )


def _one_sided_block(
    block: Any,
    axis: int,
    starts: tuple[int, ...],
    n: int,
    out: str,
    block_id: tuple[int, ...],
) -> Any:
    return kernel.one_sided(block, axis, starts[block_id[axis]], n, out)


def _trigonometric(x: Array, transform: Transform) -> Array:
    """Transform as :mod:`dask_dgpu.kernels.fft.trigonometric` does a block."""
    if x.dtype.kind == "c":
        return _trigonometric(x.real, transform) + 1j * _trigonometric(x.imag, transform)
    axis, n = transform.axis, transform.n
    dtype = transform.output_dtype(x.dtype.name)
    recipe = Recipe(transform.kind, n, transform.norm)
    y = x[(slice(None),) * axis + (slice(0, n),)].astype(dtype)
    given = np.result_type(dtype, 1j) if recipe.fft in ("irfft", "fft") else np.dtype(dtype)
    y = _with_places(_before, y, axis, recipe, given)
    first, length = recipe.first, recipe.first + n
    if recipe.fft == "irfft":
        shape = (*y.shape[:axis], first, *y.shape[axis + 1 :])
        chunks = (*y.chunks[:axis], (first,), *y.chunks[axis + 1 :])
        y = da.concatenate([da.zeros_like(y, shape=shape, chunks=chunks), y], axis) if first else y
        first, length = 0, n
    y = along_long_axis(y, Transform(recipe.fft, axis, recipe.period), length=length)
    y = y[(slice(None),) * axis + (slice(first, length),)]
    return _with_places(_after, y, axis, recipe, dtype)


def _with_places(function: Any, x: Array, axis: int, recipe: Recipe, dtype: Any) -> Array:
    return da.map_blocks(
        function,
        x,
        axis=axis,
        starts=_starts(x, axis),
        recipe=recipe,
        dtype=dtype,
        meta=meta_like(x, x.ndim, dtype),
    )


def _starts(x: Array, axis: int) -> tuple[int, ...]:
    return tuple(np.cumsum((0, *x.chunks[axis])).tolist())


def _before(
    block: Any, axis: int, starts: tuple[int, ...], recipe: Recipe, block_id: tuple[int, ...]
) -> Any:
    return recipe.before(block, axis, starts[block_id[axis]])


def _after(
    block: Any, axis: int, starts: tuple[int, ...], recipe: Recipe, block_id: tuple[int, ...]
) -> Any:
    # of a copy, for the block may be somebody else's too; and no view of complex numbers
    real = recipe.after(block.copy(), axis, starts[block_id[axis]])
    return real.astype(real.dtype, order="C", copy=False)
