"""Layers whose blocks are slices of blocks: their readers can take the slices themselves.

::

    x  ->  x[:, 1:]   ->  sub  ->  mul        three tasks a block
    x  ->  x[:, :-1]  --> sub
    x  ----------------------->  sub, mul     one task a block, which reads views of its block
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.highlevelgraph import MaterializedLayer

from graph_opt.dask_graph.expressions import usable
from graph_opt.dask_graph.internals import Alias, DataNode, Task, TaskRef, getitem
from graph_opt.dask_graph.parse import ArrayGraph, once
from graph_opt.model.layout import ArrayNode, Index

Steps = tuple[tuple[Any, ...], ...]
"""Basic indices, to apply one after the other."""

Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class Cut:
    """The blocks of an array, each a slice of one block of the array ``source``.

    ``blocks`` has for each block that of the source, and how it is cut. ``layers`` are Dask's, the
    last one first.
    """

    layers: tuple[str, ...]
    source: str
    blocks: Mapping[Index, tuple[Index, Steps]]

    @property
    def places(self) -> dict[Index, Index]:
        """The block of the source for each block."""
        return {index: place for index, (place, _) in self.blocks.items()}

    def of(self, earlier: Cut) -> Cut:
        """Return the cut of blocks that are slices themselves."""
        blocks = {}
        for index, (place, steps) in self.blocks.items():
            first, before = earlier.blocks[place]
            blocks[index] = first, before + steps
        return Cut(self.layers + earlier.layers, earlier.source, blocks)

    def axes(self, source: Sequence[int], own: Sequence[int]) -> Axes | None:
        """Return the axis with the same block number for each axis of the source.

        ``None`` is an axis of one block, or all of it if there are no such axes. The arguments are
        the numbers of blocks.
        """
        found: list[int | None] = []
        for axis, count in enumerate(source):
            if count == 1:
                found.append(None)
                continue
            for own_axis, own_count in enumerate(own):
                if own_count == count and all(
                    place[axis] == index[own_axis] for index, (place, _) in self.blocks.items()
                ):
                    found.append(own_axis)
                    break
            else:
                return None
        return tuple(found)

    def is_thin(self, source: ArrayNode, own: ArrayNode) -> bool:
        """Whether a slice has less than half of its block: then Dask copies it."""
        return any(
            2 * math.prod(own.block_shape(index)) < math.prod(source.block_shape(place))
            for index, (place, _) in self.blocks.items()
        )


@once
def read_cut(arrays: ArrayGraph, name: str) -> Cut | None:
    """Read a layer of basic slices, each of one block of one other array."""
    layer, needed = arrays.layers[name], arrays.dependencies[name]
    if type(layer) is not MaterializedLayer or len(needed) != 1:
        return None
    (other,) = needed
    node, source = usable(arrays, name), usable(arrays, other)
    if node is None or source is None or not (node.known and source.known):
        return None
    blocks = {}
    for index in node.indices:
        found = _followed(layer.mapping, (name, *index), other)
        if found is None:
            return None
        blocks[index] = found
    return Cut((name,), other, blocks)


def _followed(mapping: Mapping[Any, Any], key: Any, other: str) -> tuple[Index, Steps] | None:
    """Follow slices and aliases within a layer back to a block of another array."""
    steps: list[tuple[Any, ...]] = []
    while key in mapping:
        task = mapping[key]
        if isinstance(task, Alias):
            key = task.target
            continue
        if type(task) is not Task or task.func is not getitem or task.kwargs:
            return None
        block, index = task.args
        index = index.value if isinstance(index, DataNode) else index
        if not isinstance(block, TaskRef) or not _is_basic(index):
            return None
        key, steps = block.key, [index, *steps]
    return (key[1:], tuple(steps)) if isinstance(key, tuple) and key[0] == other else None


def _is_basic(index: Any) -> bool:
    return isinstance(index, tuple) and all(
        each is None or type(each) in (int, slice) for each in index
    )
