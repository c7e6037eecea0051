"""A transform by plain Dask tasks: rechunk and transform in the order of a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.algorithms.pencil_fft import PencilPlan
from dask_dgpu.array.inputs import deferred
from dask_dgpu.kernels import fft as kernel
from graph_opt.dask_graph.internals import GraphNode, convert_legacy_graph
from graph_opt.model.node import ArrayNode
from graph_opt.pieces.fft import FftPiece


def apply(x: Array, plan: PencilPlan, name: str) -> Array:
    """Return the transform of an array, as one layer if blocks must move.

    The input has the chunks and the dtype of the plan; ``name`` is the prefix of the keys.
    """
    meta = np.empty_like(x._meta, dtype=plan.output_dtype)
    if math.prod(x.shape) == 0:  # nothing to move, and padding is zeros
        shape = tuple(map(sum, plan.output_chunks))
        return da.zeros_like(meta, shape=shape, chunks=plan.output_chunks, dtype=plan.output_dtype)
    if all(exchange.local for exchange in plan.exchanges):
        return x if not plan.stages else _stages(x, plan, meta)

    def piece(output: ArrayNode, sources: tuple[ArrayNode, ...]) -> FftPiece:
        (source,) = sources
        return FftPiece(output, source, plan)

    chunks, dtype = plan.output_chunks, plan.output_dtype
    return deferred(name, (x,), chunks, dtype, plan, piece, expand)


def expand(piece: FftPiece) -> tuple[str, Mapping[Any, GraphNode]]:
    """Return the name of the output and all its tasks, for blocks of any type."""
    source = piece.source
    x = Array({}, source.name, source.chunks, dtype=source.dtype)
    y = _stages(x, cast(PencilPlan, piece.task), np.empty((0,) * source.ndim))
    return y.name, convert_legacy_graph(dict(y.dask))


def _stages(x: Any, plan: PencilPlan, meta: Any) -> Any:
    """Rechunk and transform; ``meta`` has the type of the blocks."""
    for stage in plan.stages:
        x = _rechunked(x, stage.chunks)
        dtype = x.dtype.name
        for transform in stage.transforms:
            dtype = transform.output_dtype(dtype)
        x = x.map_blocks(
            kernel.transform,
            transforms=stage.transforms,
            chunks=stage.output_chunks,
            dtype=dtype,
            meta=np.empty_like(meta, dtype=dtype),
            token="-".join(transform.kind for transform in stage.transforms),
        )
    return _rechunked(x, plan.output_chunks)


def _rechunked(x: Array, chunks: tuple[tuple[int, ...], ...]) -> Array:
    """Drop elements beyond the new chunks, and rechunk.

    By tasks: P2P needs the client and a worker's plugin, and both are missing where a layer
    is expanded. It does not support CuPy blocks either.
    """
    kept = tuple(slice(0, sum(sizes)) for sizes in chunks)
    return x[kept].rechunk(chunks, method="tasks")
