"""Transforms and other work on blocks by plain Dask tasks, and the layer that a gang replaces."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.utils import funcname

from dask_dgpu.algorithms.pencil_fft.plan import PencilPlan, in_passes, result_dtype
from dask_dgpu.array.chunks import rechunked
from dask_dgpu.kernels import fft as kernel
from graph_opt.dask_graph.layers import array_of, deferred
from graph_opt.model.layout import ArrayNode, Chunks
from graph_opt.pieces.fft import FftPiece


def apply(x: Array, plan: PencilPlan, name: str) -> Array:
    """Return the transform of an array, as one layer if blocks must move.

    The input has the chunks and the dtype of the plan; ``name`` is the prefix of the keys.
    """
    chunks, dtype = plan.output_chunks, plan.output_dtype
    meta = np.empty_like(x._meta, dtype=dtype)
    if math.prod(x.shape) == 0:  # nothing to move, and padding is zeros
        return da.zeros_like(meta, shape=tuple(map(sum, chunks)), chunks=chunks, dtype=dtype)
    if all(exchange.local for exchange in plan.exchanges):
        return x if not plan.stages else _stages(x, plan, meta)
    return deferred(
        name,
        (x,),
        chunks,
        dtype,
        plan,
        partial(_piece, plan=plan),
        expand,
        passes,
    )


def _piece(output: ArrayNode, sources: tuple[ArrayNode, ...], plan: PencilPlan) -> FftPiece:
    return FftPiece(output, sources[0], plan)


def moved(x: Array, chunks: Chunks) -> Array:
    """Drop elements beyond the ends of some chunks, and rechunk to these.

    This is at most one layer in the graph; the scheduler creates its tasks.
    """
    y = x[tuple(slice(0, sum(sizes)) for sizes in chunks)]
    return apply(y, PencilPlan(y.chunks, y.dtype.name, (), chunks, y.dtype.name), "exchange")


def expand(piece: FftPiece) -> Array:
    """Return the output by plain Dask, for blocks of any type."""
    source = piece.source
    plan, meta = cast(PencilPlan, piece.plan), np.empty((0,) * source.ndim)
    return cast(Array, _stages(array_of(source), plan, meta))


def passes(piece: FftPiece) -> Array | None:
    """Return the transform by several, one after another, if it has several stages."""
    plans, source, output = in_passes(piece.plan), piece.source, piece.output
    if len(plans) < 2:
        return None
    x = array_of(source)
    name = output.name.rpartition("-")[0]
    for plan in plans:
        x = deferred(
            name,
            (x,),
            plan.output_chunks,
            plan.output_dtype,
            plan,
            partial(_piece, plan=plan),
            expand,
            key=output.name if plan is plans[-1] else None,
            container=source.container,
        )
    return x


def _stages(x: Any, plan: PencilPlan, meta: Any) -> Any:
    """Rechunk and transform in the order of a plan; ``meta`` has the type of the blocks."""
    for stage in plan.stages:
        x = _rechunked(x, stage.chunks)
        dtype = result_dtype(x.dtype.name, stage.transforms)
        x = x.map_blocks(
            kernel.transform,
            transforms=stage.transforms,
            chunks=stage.output_chunks,
            dtype=dtype,
            meta=np.empty_like(meta, dtype=dtype),
            token="-".join(transform.kind for transform in stage.transforms),
        )
    return _rechunked(x, plan.output_chunks)


def _rechunked(x: Array, chunks: Chunks) -> Array:
    """Drop elements beyond the new chunks, and rechunk."""
    return rechunked(x[tuple(slice(0, sum(sizes)) for sizes in chunks)], chunks)


def map_with_start(
    function: Callable[..., Any], x: Array, *arguments: Any, dtype: Any = None
) -> Array:
    """Map ``function(block, start, *arguments)`` over the blocks of an array.

    ``start`` is the position of the block's first element along each axis.
    """
    dtype = x.dtype if dtype is None else dtype
    return da.map_blocks(
        _with_start,
        x,
        function=function,
        starts=tuple(tuple(accumulate(sizes, initial=0)) for sizes in x.chunks),
        arguments=arguments,
        token=funcname(function),
        dtype=dtype,
        meta=np.empty_like(x._meta, dtype=dtype),
    )


def _with_start(
    block: Any,
    function: Callable[..., Any],
    starts: tuple[tuple[int, ...], ...],
    arguments: tuple[Any, ...],
    block_id: tuple[int, ...],
) -> Any:
    start = tuple(along[at] for along, at in zip(starts, block_id, strict=True))
    return function(block, start, *arguments)
