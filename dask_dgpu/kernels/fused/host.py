"""Expressions on NumPy blocks, tile by tile in cache.

::

    NumPy                       tiles
    -----                       -----
    a = x * x     (64 MiB)      for each 512 KiB of x:
    b = a * x     (64 MiB)          a = x * x; b = a * x; y = tanh(b)
    y = tanh(b)   (64 MiB)

The functions are NumPy's own, so bits, dtypes, errors and warnings are NumPy's. Reductions that
leave an axis free of them, as those of rows, are computed within the tile, with all that follows.
Others are merged from their parts, in a pass of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_dgpu.kernels.fused.nodes import evaluate_nodes, viewed
from dask_dgpu.kernels.fused.planning import Planner, Shape
from dask_dgpu.kernels.fused.reductions import divisible
from dask_dgpu.kernels.fused.tiles import TilePass
from graph_opt.model.expression import Apply, Cast, Constant, Expression, Input, Reduce, View

Array = Any

TILE_BYTES = 1 << 19
"""Of a tile of the widest dtype among blocks: two fit in the L2 cache of a core."""

SMALL = 16
"""Tiles of a small block: memory for its temporaries is reused, and stays in the L3 cache."""

FEW = 4
"""Functions that a small block with reductions must have, or tiles take longer than NumPy."""


def evaluate_host(
    expression: Expression,
    blocks: Sequence[Array],
    tile_bytes: int = TILE_BYTES,
) -> tuple[Array, ...]:
    """Evaluate an expression on NumPy blocks; blocks below two tiles are evaluated at once."""
    elements = tile_bytes // max([block.itemsize for block in blocks], default=1)
    shapes = _tiled_shapes(expression, blocks, elements)
    if shapes is None:
        return evaluate_nodes(expression, blocks)
    known: dict[int, Array] = {}  # what needs no work
    for i, node in enumerate(expression.nodes):
        match node:
            case Input(number):
                known[i] = blocks[number]
            case Constant(value):
                known[i] = value
            case View(argument, axes) if isinstance(known.get(argument), np.ndarray):
                known[i] = viewed(known[argument], axes)
    planner = Planner(expression, shapes, [block.strides for block in blocks], elements)
    for plan in planner.passes({*expression.results} - known.keys()):
        known |= TilePass(plan, expression.nodes, known).run()
    return tuple([known[at] for at in expression.results])


def _tiled_shapes(
    expression: Expression, blocks: Sequence[Array], elements: int
) -> list[Shape] | None:
    """Return the shape of each node, or None if tiles would not pay or would not do."""
    largest = max([block.size for block in blocks], default=0)
    if largest < 2 * elements and not expression.has_views:  # else a value may be larger
        shapes = {block.shape for block in blocks if block.ndim}
        if len(shapes) <= 1:
            return None
    try:
        tiled = expression.shapes([block.shape for block in blocks])
    except ValueError:  # NumPy's message is better
        return None
    sizes = [math.prod(shape) for shape in tiled]
    if max(sizes) < 2 * elements or not min(sizes):
        return None
    if not all(map(_is_plain, blocks)):
        return None
    reductions = [node for node in expression.nodes if isinstance(node, Reduce)]
    nodes = zip(expression.nodes, sizes, strict=True)
    functions = sum(isinstance(node, Apply | Cast) and n == max(sizes) for node, n in nodes)
    if reductions and functions < FEW and max(sizes) < SMALL * elements:
        return None
    return (
        tiled
        if all(divisible(reduction, tiled[reduction.argument]) for reduction in reductions)
        else None
    )


def _is_plain(block: Array) -> bool:
    """Whether the bits of NumPy's results depend on the elements of a block only.

    Those of reversed views depend on shapes: NumPy has other loops for some of them.
    """
    known = type(block) is np.ndarray or isinstance(block, np.generic)
    return known and block.dtype.kind in "biufc" and min(block.strides, default=0) >= 0
