"""Convolutions as tasks of plain Dask: one for each block, and one for each part that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian
from math import prod
from operator import getitem
from typing import Any

import numpy as np
from dask.array.core import Array

from dask_dgpu.array.chunks import rechunked
from dask_dgpu.kernels import conv
from graph_opt.dask_graph.internals import GraphNode, List, Task, TaskRef
from graph_opt.dask_graph.layers import array_of
from graph_opt.model.layout import ArrayNode, Cuts, overlaps
from graph_opt.model.window import Convolution, Window
from graph_opt.pieces.conv2d import Conv2dPiece

Block = Any
Tasks = dict[Any, GraphNode]


def expand(piece: Conv2dPiece) -> Array:
    """Return the output by tasks of plain Dask.

    Parts of blocks are tasks too, so that workers send halos and no whole blocks.
    """
    output, tasks = piece.output, Tasks()
    weight, *bias = (_whole(node, tasks) for node in piece.inputs[1:])
    for index in output.indices:
        box = [along[at] for along, at in zip(piece.windows, index, strict=True)]
        under = [_under(*each) for each in zip(piece.cuts, box, strict=True)]
        parts = [
            _part(piece.source, each, (f"part-{output.name}", *index, i), tasks)
            for i, each in enumerate(cartesian(*under))
        ]
        tasks[output.name, *index] = Task(
            (output.name, *index),
            convolve_parts,
            List(*parts),
            tuple(map(len, under)),
            tuple(window.stop - window.start for window in box),
            weight,
            bias[0] if bias else None,
            piece.convolution.padded(box[2], box[3]),
            output.dtype,
        )
    return array_of(output, tasks)


def _under(cuts: Cuts, window: Window) -> list[tuple[int, slice]]:
    """Return the chunks under a window, and its part of each; ``slice(None)`` for all of it."""
    blocks = []
    for chunk, lo, hi in overlaps(cuts, window.start, window.stop):
        start, stop = cuts[chunk], cuts[chunk + 1]
        whole = (lo, hi) == (start, stop)
        blocks.append((chunk, slice(None) if whole else slice(lo - start, hi - start)))
    return blocks


def _part(source: ArrayNode, parts: Sequence[tuple[int, slice]], key: Any, tasks: Tasks) -> TaskRef:
    """Return the task of a part of a block, or the block itself."""
    chunks, slices = zip(*parts, strict=True)
    block = TaskRef((source.name, *chunks))
    if all(part == slice(None) for part in slices):
        return block
    tasks[key] = Task(key, getitem, block, slices)
    return TaskRef(key)


def _whole(node: ArrayNode, tasks: Tasks) -> TaskRef:
    """Return the task of a whole array, or its only block."""
    x = rechunked(array_of(node), tuple((length,) for length in node.shape))
    tasks |= x.dask
    return TaskRef((x.name, *(0,) * x.ndim))


def joined(parts: Sequence[Block], grid: Sequence[int]) -> Block:
    """Concatenate blocks of a grid, in row-major order."""
    blocks = list(parts)
    for axis in reversed(range(len(grid))):
        rows = (blocks[i : i + grid[axis]] for i in range(0, len(blocks), grid[axis]))
        blocks = [row[0] if len(row) == 1 else np.concatenate(row, axis) for row in rows]
    return blocks[0]


def convolve_parts(
    parts: Sequence[Block],
    grid: Sequence[int],
    shape: tuple[int, ...],
    weight: Block,
    bias: Block | None,
    convolution: Convolution,
    dtype: str,
) -> Block:
    """Return a block of the result from the parts under its window, which is of this shape."""
    x = joined(parts, grid) if prod(grid) else np.empty(shape, dtype, like=weight)
    given = (x, weight) if bias is None else (x, weight, bias)
    x, weight, *added = (each.astype(dtype, copy=False) for each in given)
    return conv.conv2d(x, weight, added[0] if added else None, convolution)
