"""Recognizes the layers that ``da.map_overlap`` builds for a boundary, at both ends of one axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import MaterializedLayer

from graph_opt.dask_graph.internals import Alias, Task, TaskRef, _broadcast_trick_inner, getitem
from graph_opt.dask_graph.parse import ArrayGraph, array_operands, block_function, unwrapped
from graph_opt.model.layout import ArrayNode, Index, cuts_of

Boundary = str | complex | None
"""``"reflect"``, ``"periodic"``, ``"nearest"``, a constant, or ``None`` for no boundary."""

FILL = unwrapped(_broadcast_trick_inner)
"""The block function of ``full_like``."""

Edge = tuple[Boundary, ArrayNode, tuple[str, ...]]
"""The boundary along an axis, the array inside, and Dask's layers."""


def target_of(graph: ArrayGraph, node: ArrayNode, index: Index) -> Any:
    """Return the key that a block is another name of."""
    layer = graph.layers[node.name]
    if not isinstance(layer, MaterializedLayer):
        return None
    task = layer.mapping.get((node.name, *index))
    return task.target if isinstance(task, Alias) else task


def _with(values: Sequence[Any], axis: int, value: Any) -> tuple[Any, ...]:
    """Return values with another one along an axis."""
    return (*values[:axis], value, *values[axis + 1 :])


def edge_of(graph: ArrayGraph, joined: ArrayNode, axis: int, depth: int) -> Edge | None:
    """Match the layers that Dask builds for both ends of one axis."""
    last = joined.grid[axis] - 1
    if last < 2:
        return None
    corner = (0,) * joined.ndim
    nodes = []
    for at in (0, 1, last):
        key = target_of(graph, joined, _with(corner, axis, at))
        is_key = isinstance(key, tuple) and isinstance(key[0], str)
        nodes.append(graph.node(key[0]) if is_key else None)
    left, source, right = nodes
    if left is None or source is None or right is None or not source.known:
        return None
    for index in joined.indices:
        at = index[axis]
        node, place = (left, 0) if at == 0 else (right, 0) if at == last else (source, at - 1)
        if target_of(graph, joined, index) != (node.name, *_with(index, axis, place)):
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
    layer = graph.layers[end.name]
    if not isinstance(layer, MaterializedLayer) or end.ndim != source.ndim:
        return None
    if end.grid[axis] != 1 or end.chunks != _with(source.chunks, axis, end.chunks[axis]):
        return None
    whole = (slice(None),) * source.ndim
    found: set[tuple[int, range]] = set()
    for index in end.indices:
        key: Any
        task = layer.mapping.get((end.name, *index))
        if isinstance(task, Alias):
            key, slices = task.target, whole
        elif isinstance(task, Task) and task.func is getitem and len(task.args) == 2:
            reference, slices = task.args
            key = reference.key if isinstance(reference, TaskRef) else None
        else:
            return None
        if not isinstance(key, tuple) or len(slices) != source.ndim:
            return None
        name, *place = key
        if (name, *_with(place, axis, 0)) != (source.name, *index):
            return None
        if _with(slices, axis, slice(None)) != whole or not isinstance(slices[axis], slice):
            return None
        found.add((place[axis], range(source.chunks[axis][place[axis]])[slices[axis]]))
    if len(found) != 1:
        return None
    ((chunk, cells),) = found
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
