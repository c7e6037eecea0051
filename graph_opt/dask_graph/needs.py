"""What one task of a layer needs in memory: the blocks that it reads, and the one that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer

from graph_opt.dask_graph.parse import ArrayGraph, is_block, tasks_of
from graph_opt.dask_graph.work import array, named
from graph_opt.model.layout import ArrayNode
from graph_opt.model.reader import Need


def needs_of(arrays: ArrayGraph, graph: HighLevelGraph, name: str, room: float) -> Iterator[Need]:
    """Find what tasks of a rewritten layer need; of equal tasks one, nothing for unknown blocks.

    If whole arrays fit in the ``room`` of a task, these are all: tasks are many.

    Yields
    ------
    Need
        That of a task.
    """
    node, layer = _known(arrays, name), graph.layers[name]
    if node is None:
        return
    if not isinstance(layer, Blockwise):
        read = [_known(arrays, other) for other in arrays.dependencies[name]]
        sources = [other for other in read if other is not None]
        whole = Need(sum(other.nbytes for other in sources), node.nbytes)
        if whole.nbytes <= room and len(sources) == len(read):
            joins = any(other.blocks > node.blocks for other in sources)
            yield whole._replace(joins=joins)
            return
        for key, task in tasks_of(graph, name):
            names = [other[0] for other in task.dependencies if isinstance(other, tuple)]
            nbytes = sum(_nbytes(arrays, other) for other in task.dependencies)
            yield Need(nbytes, _nbytes(arrays, key), joins=len({*names}) < len(names))
        return
    nbytes, joins = 0, False
    for operand, index in layer.indices:
        if index is None or operand not in arrays.layers:
            continue
        other = _known(arrays, str(operand))
        if other is not None and not _is_constant(arrays.layers[str(operand)]):
            inner = {*index} - {*layer.output_indices}
            blocks = prod(layer.dims[letter] for letter in inner)
            nbytes += min(other.nbytes, blocks * _largest(other))
            joins = joins or blocks > 1
    yield Need(nbytes, _largest(node), joins)


def _nbytes(arrays: ArrayGraph, key: Any) -> int:
    """Return the bytes of a block, 0 if they are not known."""
    name, *index = key if isinstance(key, tuple) else (key,)
    node = _known(arrays, name) if name in arrays.layers else None
    if node is None or not is_block(key, name, node):
        return 0
    return prod(node.block_shape(tuple(index))) * node.itemsize


def _is_constant(layer: Layer) -> bool:
    """Whether blocks are views of one element, as those of ``da.ones``."""
    task: Any = getattr(layer, "task", None)
    return named(getattr(task, "func", None), {}) == "_broadcast_trick_inner"


def _known(arrays: ArrayGraph, name: str) -> ArrayNode | None:
    node = array(arrays, name)
    return node if node is not None and node.known else None


def _largest(node: ArrayNode) -> int:
    return prod(max(sizes, default=0) for sizes in node.chunks) * node.itemsize
