"""Recognises blocks that overlap; their target is the ``halo`` algorithm.

``da.map_overlap`` builds one layer for the cells that blocks give to their neighbours. If
there is a boundary, several come before, axis by axis, and one after::

    getitem, getitem (-> repeat)   slices at both edges           reflect, periodic, nearest
    full_like                      or a value                     constant
    concatenate                    edge, array, edge: a chunk more at either side
      ...                          the same for the next axis
    overlap                        slices of neighbours, concatenated
    getitem                        leaves out the chunks that are nothing but boundary

All these are one piece. What looks otherwise is left as it is, and the ``overlap`` layer
alone is a piece without a boundary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product as cartesian
from operator import add
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import MaterializedLayer

from graph_opt.dask_graph.internals import (
    Alias,
    ArrayOverlapLayer,
    Task,
    TaskRef,
    _broadcast_trick_inner,
    getitem,
)
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.pattern import (
    array_operands,
    block_function,
    only_reader,
    unsupported,
    unwrapped,
)
from graph_opt.model.layout import cuts_of
from graph_opt.model.node import ArrayNode, Declined
from graph_opt.pieces.overlap import Boundary, Depth, OverlapPiece, extended

FILL = unwrapped(_broadcast_trick_inner)
"""The block function of ``full_like``."""


@dataclass(frozen=True)
class Edge:
    """What lies beyond the edges along an axis, and the layers that make it."""

    kind: Boundary
    source: ArrayNode
    layers: tuple[str, ...]


def match(graph: ArrayGraph, name: str) -> OverlapPiece | Declined | None:
    """Match the overlap whose layer is ``name``; ``None`` is no overlap."""
    layer = graph.layers[name]
    if not isinstance(layer, ArrayOverlapLayer):
        return None
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
    fault = piece.fault()
    return piece if fault is None else Declined(name, fault)


def _depth(value: Any) -> Depth:
    before, after = value if isinstance(value, tuple) else (value, value)
    return int(before), int(after)


def _thin(sizes: tuple[int, ...], depth: Depth) -> bool:
    """Whether a neighbour has fewer cells than it should give: Dask would take what there is."""
    before, after = depth
    return any(size < before for size in sizes[:-1]) or any(size < after for size in sizes[1:])


def _bounded(
    graph: ArrayGraph, name: str, source: ArrayNode, output: ArrayNode, depth: tuple[Depth, ...]
) -> OverlapPiece | None:
    """Return the piece that makes the boundary too, if all of it is as Dask builds it."""
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
        boundary[axis], source = edge.kind, edge.source
        passed += edge.layers
    if not axes or last.chunks != extended(source.chunks, depth, boundary):
        return None
    inner = (name, *(layer for layer in _read_by_each_other(graph, passed) if layer != name))
    edges = sum(len(graph.layers[layer]) for layer in passed[2:] if _makes(layer))
    return OverlapPiece(last, source, depth, tuple(boundary), edges, inner=inner)


def _makes(layer: str) -> bool:
    """Whether a layer of a boundary does more than name blocks: Dask drops mere names."""
    return not layer.startswith("concatenate-")


def _read_by_each_other(graph: ArrayGraph, passed: Iterable[str]) -> tuple[str, ...]:
    """Leave out the layers that somebody else reads: they stay, and nobody waits for them."""
    inner: dict[str, None] = {}
    for name in passed:  # from the last to the first
        if not inner or (name not in graph.requested and graph.dependents[name] <= inner.keys()):
            inner[name] = None
    return tuple(inner)


def _trimmed_axes(graph: ArrayGraph, before: ArrayNode, after: ArrayNode) -> tuple[int, ...]:
    """Return the axes whose first and last chunk a layer leaves out, none if it does else."""
    layer = graph.layers[after.name]
    if not isinstance(layer, MaterializedLayer) or after.ndim != before.ndim:
        return ()
    axes = []
    for axis, (old, new) in enumerate(zip(before.chunks, after.chunks, strict=True)):
        if len(new) == len(old) - 2:
            axes.append(axis)
    skipped = [int(axis in axes) for axis in range(after.ndim)]
    for index in after.indices:
        kept = map(add, index, skipped)
        if _target(layer.mapping.get((after.name, *index))) != (before.name, *kept):
            return ()
    return tuple(axes)


def _target(task: Any) -> Any:
    """Return the key that a task is another name of."""
    return task.target if isinstance(task, Alias) else task


def _edge(graph: ArrayGraph, joined: ArrayNode, axis: int, depth: int) -> Edge | None:
    """Match what Dask puts at both ends of one axis."""
    layer = graph.layers[joined.name]
    count = len(joined.chunks[axis])
    if not isinstance(layer, MaterializedLayer) or count < 3:
        return None
    corner = [0] * joined.ndim
    names = []
    for at in (0, 1, count - 1):
        corner[axis] = at
        key = _target(layer.mapping.get((joined.name, *corner)))
        names.append(key[0] if isinstance(key, tuple) else None)
    nodes = [graph.node(name) if isinstance(name, str) else None for name in names]
    if any(node is None for node in nodes) or not _joins(layer, joined, axis, names):
        return None
    left, source, right = (node for node in nodes if node is not None)
    sizes = joined.chunks[axis]
    widths = (depth,), source.chunks[axis], (depth,)
    if not source.known or sizes != sum(widths, ()):
        return None
    kind = _constant(graph, left, source) if left == right else None
    if kind is not None:
        return Edge(kind, source, (joined.name, left.name))
    cells = [_cells(graph, end, source, axis) for end in (left, right)]
    kind = _kind(cells, source.shape[axis], depth)
    if kind is None:
        return None
    made = [name for end in (left, right) for name in _behind(graph, end.name, source.name)]
    return Edge(kind, source, (joined.name, *dict.fromkeys(made)))


def _joins(layer: MaterializedLayer, joined: ArrayNode, axis: int, names: list[Any]) -> bool:
    """Whether every block of a layer is one of the three arrays', in order along the axis."""
    last = len(joined.chunks[axis]) - 1
    for index in joined.indices:
        at = index[axis]
        name = names[0] if at == 0 else names[2] if at == last else names[1]
        place = 0 if at in (0, last) else at - 1
        key = (name, *index[:axis], place, *index[axis + 1 :])
        if _target(layer.mapping.get((joined.name, *index))) != key:
            return False
    return True


def _constant(graph: ArrayGraph, end: ArrayNode, source: ArrayNode) -> Boundary:
    """Return the value that fills an array, if it is one of the dtype."""
    function = block_function(graph, end.name)
    if not isinstance(function, partial) or unwrapped(function) is not FILL:
        return None
    if end.dtype != source.dtype or graph.dependencies[end.name]:
        return None
    if "fill_value" not in function.keywords:
        return None
    fill = function.keywords["fill_value"]
    if np.iscomplexobj(fill) and not np.iscomplexobj(np.empty(0, end.dtype)):
        return None
    try:
        # not by warnings, whose filters all threads share
        with np.errstate(invalid="raise", over="raise"):
            value: Boundary = np.full((), fill, end.dtype).item()
    except (TypeError, ValueError, OverflowError, FloatingPointError):
        return None  # it is for Dask to complain
    return value


def _cells(
    graph: ArrayGraph, end: ArrayNode, source: ArrayNode, axis: int
) -> tuple[int, ...] | None:
    """Return where the cells of an edge are from, positions along the axis of the source."""
    if end.name == source.name:
        return tuple(range(source.shape[axis]))
    if block_function(graph, end.name) is np.repeat:
        layer = graph.layers[end.name]
        operands = array_operands(graph, end.name)
        inner = graph.node(operands[0][0]) if len(operands) == 1 else None
        if inner is None or not isinstance(layer, Blockwise) or layer.task.kwargs != {"axis": axis}:
            return None
        cells = _cells(graph, inner, source, axis)
        counts: list[Any] = [value for value, index in layer.indices if index is None]
        known = len(counts) == 1 and isinstance(counts[0], int) and len(layer.task.args) == 2
        return cells * counts[0] if known and cells is not None and len(cells) == 1 else None
    return _sliced(graph, end, source, axis)


def _sliced(
    graph: ArrayGraph, end: ArrayNode, source: ArrayNode, axis: int
) -> tuple[int, ...] | None:
    """Return which cells a layer takes from a source, along one axis alone and of one chunk."""
    layer = graph.layers[end.name]
    others = [k for k in range(source.ndim) if k != axis]
    alike = end.ndim == source.ndim and all(end.chunks[k] == source.chunks[k] for k in others)
    if not isinstance(layer, MaterializedLayer) or not alike or len(end.chunks[axis]) != 1:
        return None
    key: Any
    found: set[tuple[int, range]] = set()
    for index in cartesian(*(range(len(sizes)) for sizes in end.chunks)):
        task = layer.mapping.get((end.name, *index))
        if isinstance(task, Alias):
            key, slices = task.target, (slice(None),) * source.ndim
        elif isinstance(task, Task) and task.func is getitem and len(task.args) == 2:
            reference, slices = task.args
            key = reference.key if isinstance(reference, TaskRef) else None
        else:
            return None
        if not isinstance(key, tuple) or key[0] != source.name or len(slices) != source.ndim:
            return None
        if not all(isinstance(each, slice) for each in slices):
            return None
        place = key[1:]
        if any(place[k] != index[k] for k in others):
            return None
        if any(slices[k] != slice(None) for k in others):
            return None
        found.add((place[axis], range(source.chunks[axis][place[axis]])[slices[axis]]))
    if len(found) != 1:
        return None
    ((chunk, cells),) = found
    start = cuts_of(source.chunks[axis])[chunk]
    return tuple(start + cell for cell in cells)


def _kind(cells: list[tuple[int, ...] | None], length: int, depth: int) -> Boundary:
    """Return the boundary that takes these cells for those before and after an axis."""
    first, last = tuple(range(depth)), tuple(range(length - depth, length))
    kinds: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "reflect": (first[::-1], last[::-1]),
        "periodic": (last, first),
        "nearest": ((0,) * depth, (length - 1,) * depth),
    }
    return next((kind for kind, known in kinds.items() if known == tuple(cells)), None)


def _behind(graph: ArrayGraph, name: str, source: str) -> Iterable[str]:
    """Yield the layers from that of an edge back to the source."""
    while name != source:
        yield name
        (name,) = graph.dependencies[name]
