"""Finds ghost cells around blocks, with their boundary, in Dask's layers.

``da.map_overlap`` builds one layer for the cells of neighbours. For a boundary it adds several
layers before it, axis by axis, and one after it::

    getitem, getitem (-> repeat)   slices at both edges           reflect, periodic, nearest
    full_like                      or a value                     constant
    concatenate                    edge, array, edge: one more chunk on either side
      ...                          the same for the next axis
    overlap                        slices of neighbours, concatenated
    getitem                        drops the chunks of the boundary

All these are one piece. If they look otherwise, the ``overlap`` layer alone is a piece without
a boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import add
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import MaterializedLayer

from graph_opt.dask_graph.internals import Alias, _broadcast_trick_inner
from graph_opt.dask_graph.parse import (
    ArrayGraph,
    array_operands,
    block_function,
    only_reader,
    unsupported,
    unwrapped,
)
from graph_opt.dask_graph.readings import read_cut
from graph_opt.model.layout import ArrayNode, Declined, Index, cuts_of
from graph_opt.pieces.overlap import Boundary, Depth, OverlapPiece

FILL = unwrapped(_broadcast_trick_inner)
"""The block function of ``full_like``."""

Edge = tuple[Boundary, ArrayNode, tuple[str, ...]]
"""The boundary along an axis, the array inside, and Dask's layers."""


def match(graph: ArrayGraph, name: str) -> OverlapPiece | Declined:
    """Match the overlap whose layer is ``name``."""
    layer: Any = graph.layers[name]
    source, output = graph.node(layer.name), graph.node(name)
    if source is None or output is None:
        return Declined(name, "its array is not a Dask array with known facts")
    reason = unsupported((source,), output)
    if reason is not None:
        return Declined(name, reason)
    depth = tuple(_depth(layer.axes.get(axis, 0)) for axis in range(source.ndim))
    if any(min(each) < 0 for each in depth):
        return Declined(name, "the depth of the overlap is negative")
    if any(_thin(sizes, each) for sizes, each in zip(source.chunks, depth, strict=True)):
        return Declined(name, "a chunk is thinner than the depth of the overlap")
    bounded = _bounded(graph, name, source, output, depth)
    piece = bounded or OverlapPiece(output, source, depth, (None,) * source.ndim, inner=(name,))
    return piece if piece.fits else Declined(name, "chunk sizes are unknown")


def _depth(value: Any) -> Depth:
    before, after = value if isinstance(value, tuple) else (value, value)
    return int(before), int(after)


def _thin(sizes: tuple[int, ...], depth: Depth) -> bool:
    """Whether a neighbour has fewer cells than ``depth``: Dask would take only those."""
    before, after = depth
    return any(size < before for size in sizes[:-1]) or any(size < after for size in sizes[1:])


def _bounded(
    graph: ArrayGraph, name: str, source: ArrayNode, output: ArrayNode, depth: tuple[Depth, ...]
) -> OverlapPiece | None:
    """Return the piece with the boundary, if all of it is as Dask builds it."""
    trimmed = only_reader(graph, name)
    last = None if trimmed is None else graph.node(trimmed)
    if trimmed is None or last is None:
        return None
    axes = _trimmed_axes(graph, output, last)
    boundary: list[Boundary] = [None] * source.ndim
    passed = [trimmed, name]
    for axis in reversed(axes):
        before, after = depth[axis]
        edge = _edge(graph, source, axis, before) if before == after > 0 else None
        if edge is None:
            return None
        boundary[axis], source, layers = edge
        passed += layers
    inner = (name, *(layer for layer in _replaceable(graph, passed) if layer != name))
    tasks = sum(map(partial(_working, graph), passed[2:]))
    piece = OverlapPiece(last, source, depth, tuple(boundary), tasks, inner=inner)
    return piece if axes and piece.fits else None


def _working(graph: ArrayGraph, name: str) -> int:
    """Return the number of tasks of a layer without those that only rename blocks."""
    layer: Any = graph.layers[name]
    if isinstance(layer, Blockwise):
        return len(layer)
    return sum(not isinstance(task, Alias | tuple) for task in layer.mapping.values())


def _replaceable(graph: ArrayGraph, passed: Iterable[str]) -> Iterable[str]:
    """Leave out the layers that others read, which must stay; the gang does not wait for them."""
    inner: dict[str, None] = {}
    for name in passed:  # from the last to the first
        if not inner or (name not in graph.requested and graph.dependents[name] <= inner.keys()):
            inner[name] = None
    return inner


def _trimmed_axes(graph: ArrayGraph, before: ArrayNode, after: ArrayNode) -> tuple[int, ...]:
    """Return the axes along which a layer drops the first and last chunk and does nothing else."""
    if after.ndim != before.ndim:
        return ()
    dropped = [old - new == 2 for old, new in zip(before.grid, after.grid, strict=True)]
    trims = all(
        _target(graph, after, index) == (before.name, *map(add, index, dropped))
        for index in after.indices
    )
    return tuple(axis for axis, drops in enumerate(dropped) if drops and trims)


def _target(graph: ArrayGraph, node: ArrayNode, index: Index) -> Any:
    """Return the key that a block is another name of."""
    layer = graph.layers[node.name]
    if not isinstance(layer, MaterializedLayer):
        return None
    task = layer.mapping.get((node.name, *index))
    return task.target if isinstance(task, Alias) else task


def _with(values: Sequence[Any], axis: int, value: Any) -> tuple[Any, ...]:
    """Return values with another one along an axis."""
    return (*values[:axis], value, *values[axis + 1 :])


def _edge(graph: ArrayGraph, joined: ArrayNode, axis: int, depth: int) -> Edge | None:
    """Match the layers that Dask builds for both ends of one axis."""
    last = joined.grid[axis] - 1
    if last < 2:
        return None
    corner = (0,) * joined.ndim
    nodes = []
    for at in (0, 1, last):
        key = _target(graph, joined, _with(corner, axis, at))
        is_key = isinstance(key, tuple) and isinstance(key[0], str)
        nodes.append(graph.node(key[0]) if is_key else None)
    left, source, right = nodes
    if left is None or source is None or right is None or not source.known:
        return None
    for index in joined.indices:
        at = index[axis]
        node, place = (left, 0) if at == 0 else (right, 0) if at == last else (source, at - 1)
        if _target(graph, joined, index) != (node.name, *_with(index, axis, place)):
            return None
    if joined.chunks[axis] != (depth, *source.chunks[axis], depth):
        return None
    kind = _constant(graph, left, source) if left == right else None
    if kind is not None:
        return kind, source, (joined.name, left.name)
    cells = [_cells(graph, end, source, axis) for end in (left, right)]
    kind = _kind(cells, source.shape[axis], depth)
    if kind is None:
        return None
    layers = [name for end in (left, right) for name in _between(graph, end.name, source.name)]
    return kind, source, (joined.name, *dict.fromkeys(layers))


def _constant(graph: ArrayGraph, end: ArrayNode, source: ArrayNode) -> Boundary:
    """Return the value that fills an array, ``None`` if there is none of the dtype."""
    function = block_function(graph, end.name)
    if not isinstance(function, partial) or unwrapped(function) is not FILL:
        return None
    if end.dtype != source.dtype or graph.dependencies[end.name]:
        return None
    fill = function.keywords.get("fill_value")
    if fill is None or (np.iscomplexobj(fill) and np.dtype(end.dtype).kind != "c"):
        return None
    try:
        # not by warnings: their filters are shared by all threads
        with np.errstate(invalid="raise", over="raise"):
            value: Boundary = np.full((), fill, end.dtype).item()
    except (TypeError, ValueError, OverflowError, FloatingPointError):
        return None  # Dask reports the error
    return value


def _cells(
    graph: ArrayGraph, end: ArrayNode, source: ArrayNode, axis: int
) -> tuple[int, ...] | None:
    """Return the positions of an edge's cells along the axis of the source."""
    if end.name == source.name:
        return tuple(range(source.shape[axis]))
    if block_function(graph, end.name) is not np.repeat:
        return _sliced(graph, end, source, axis)
    layer = graph.layers[end.name]
    operands = array_operands(graph, end.name)
    inner = graph.node(operands[0][0]) if len(operands) == 1 else None
    if inner is None or not isinstance(layer, Blockwise) or layer.task.kwargs != {"axis": axis}:
        return None
    cells = _cells(graph, inner, source, axis)
    counts: list[Any] = [value for value, index in layer.indices if index is None]
    known = len(counts) == 1 and isinstance(counts[0], int) and len(layer.task.args) == 2
    return cells * counts[0] if known and cells is not None and len(cells) == 1 else None


def _sliced(
    graph: ArrayGraph, end: ArrayNode, source: ArrayNode, axis: int
) -> tuple[int, ...] | None:
    """Return the positions of the cells that a layer slices from one chunk, along one axis."""
    cut = read_cut(graph, end.name)
    if cut is None or cut.source != source.name or end.ndim != source.ndim:
        return None
    if end.grid[axis] != 1 or end.chunks != _with(source.chunks, axis, end.chunks[axis]):
        return None
    whole = (slice(None),) * source.ndim
    read: set[tuple[int, range]] = set()
    for index, (place, steps) in cut.blocks.items():
        slices = steps[0] if steps else whole
        if len(steps) > 1 or _with(place, axis, 0) != index or len(slices) != source.ndim:
            return None
        if _with(slices, axis, slice(None)) != whole or not isinstance(slices[axis], slice):
            return None
        read.add((place[axis], range(source.chunks[axis][place[axis]])[slices[axis]]))
    if len(read) != 1:
        return None
    ((chunk, cells),) = read
    start = cuts_of(source.chunks[axis])[chunk]
    return tuple(start + cell for cell in cells)


def _kind(cells: list[tuple[int, ...] | None], length: int, depth: int) -> Boundary:
    """Return the boundary with these cells before and after an axis."""
    first, last = tuple(range(depth)), tuple(range(length - depth, length))
    kinds = {
        "reflect": [first[::-1], last[::-1]],
        "periodic": [last, first],
        "nearest": [(0,) * depth, (length - 1,) * depth],
    }
    return next((kind for kind, known in kinds.items() if known == cells), None)


def _between(graph: ArrayGraph, name: str, source: str) -> Iterator[str]:
    """Yield the layers from that of an edge back to the source."""
    while name != source:
        yield name
        (name,) = graph.dependencies[name]
