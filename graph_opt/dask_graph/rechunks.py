"""Finds rechunks, and the transposes before them, in Dask's layers.

Dask rechunks by one of two methods, and the first
in one pass or several::

    tasks    rechunk-merge -> rechunk-merge ...    slices and concatenations, one layer per pass
    p2p      (rechunk-merge ->) rechunk-p2p        after a pass that splits large blocks

Consecutive passes, also of several calls, are one piece if no other layer reads the arrays
between them. So are the transposes before and between them::

    x.T.rechunk(...)     transpose -> rechunk-merge
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from dask.highlevelgraph import MaterializedLayer

from graph_opt.dask_graph.calls import Nodes, Operand
from graph_opt.dask_graph.internals import MERGE, P2P, Alias, concatenate_shaped
from graph_opt.dask_graph.parse import (
    ArrayGraph,
    block_function,
    full_name,
    only_reader,
    unsupported,
)
from graph_opt.dask_graph.readings import read_blockwise
from graph_opt.model.expression import View
from graph_opt.model.layout import ArrayNode, Declined, cuts_of
from graph_opt.pieces.rechunk import Axes, RechunkPiece

TRANSPOSES = (np.transpose, np.swapaxes)


def match(graph: ArrayGraph, name: str) -> RechunkPiece | Declined | None:
    """Match the rechunk whose last layer is ``name``; ``None`` is no rechunk, or not its end."""
    if not _is_rechunk(graph, name) or _continues(graph, name):
        return None
    inner = [name]
    while (before := _only_input(graph, inner[0])) is not None and _is_step(graph, before):
        if only_reader(graph, before) is None:
            break
        inner.insert(0, before)
    source, output = graph.node(before) if before else None, graph.node(name)
    if source is None or output is None:
        return Declined(name, "its array is not a Dask array with known facts")
    several = (source, *map(graph.node, inner))
    nodes = [node for node in several if node is not None and node.known]
    if len(nodes) < len(several):
        return Declined(name, "chunk sizes are unknown")
    reason = unsupported((source,), output)
    if reason is not None:
        return Declined(name, reason)
    piece = RechunkPiece(output, source, *_passes(graph, inner, nodes), inner=tuple(inner))
    # Dask may correct chunk sizes after it has created the layer, whose facts stay as they were
    return piece if piece.fits else Declined(name, "chunk sizes are unknown")


def _is_rechunk(graph: ArrayGraph, name: str) -> bool:
    layer = graph.layers[name]
    if not isinstance(layer, MaterializedLayer):
        return full_name(type(layer)) == P2P
    if name.rpartition("-")[0] != MERGE:
        return False
    task = next(iter(layer.mapping.values()), None)
    return isinstance(task, Alias) or getattr(task, "func", None) is concatenate_shaped


def _is_step(graph: ArrayGraph, name: str) -> bool:
    return _is_rechunk(graph, name) or _permutation(graph, name) is not None


def _only_input(graph: ArrayGraph, name: str) -> str | None:
    inputs = graph.dependencies[name]
    return next(iter(inputs)) if len(inputs) == 1 else None


def _continues(graph: ArrayGraph, name: str) -> bool:
    """Whether another rechunk is the only reader, directly or after transposes."""
    reader = only_reader(graph, name)
    while reader is not None and _permutation(graph, reader) is not None:
        reader = only_reader(graph, reader)
    return reader is not None and _is_rechunk(graph, reader)


def _permutation(graph: ArrayGraph, name: str) -> Axes | None:
    """Return the order of axes of a transpose, ``None`` if the layer is none."""
    function = block_function(graph, name)
    if not any(function is transpose for transpose in TRANSPOSES):
        return None
    reading, nodes = read_blockwise(graph, name), Nodes()
    if reading is None:
        return None
    (source,) = reading.sources
    reading.number(nodes, [Operand.of(graph.declared(source.name), 0)])
    (view,) = nodes.nodes
    assert isinstance(view, View)  # for the type checker: all transposes are views
    axes = tuple(axis for axis in view.axes if axis is not None)
    return axes if [source.axes[axis] for axis in axes] == list(range(len(axes))) else None


def _passes(
    graph: ArrayGraph, inner: Sequence[str], nodes: Sequence[ArrayNode]
) -> tuple[Axes, int, int]:
    """Return the order of axes after all steps, Dask's tasks, and its passes that join blocks."""
    axes: Axes = tuple(range(nodes[0].ndim))
    tasks = merges = 0
    for name, (before, after) in zip(inner, pairwise(nodes), strict=True):
        permutation = _permutation(graph, name)
        if permutation is not None:
            axes = tuple(axes[axis] for axis in permutation)
            continue
        messages = not isinstance(graph.layers[name], MaterializedLayer)  # P2P
        tasks += before.blocks + 1 + after.blocks if messages else len(graph.layers[name])
        chunks = zip(before.chunks, after.chunks, strict=True)
        merges += any({*cuts_of(old)} - {*cuts_of(new)} for old, new in chunks)
    return axes, tasks, merges
