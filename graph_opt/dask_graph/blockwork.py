r"""Dask's layers as the work of a gang, in several steps if their tasks depend on each other.

::

    m0   m1   m2   m3     A running sum: sums within blocks, the total before each block, and the
     \    \    \          results. Each total is a step, because it depends on the one before it.
      t1 ->t2 ->t3        All results are the last step.
       \    \    \
    r0  r1   r2   r3

Blocks of the steps before the last are declared in bytes, and numbered within their step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import MaterializedLayer

from graph_opt.dask_graph.forms import Form, block_form, estimate, nbytes_of, node_of
from graph_opt.dask_graph.internals import Alias, GraphNode
from graph_opt.dask_graph.layers import PieceLayer, renamed
from graph_opt.dask_graph.members import calls_others, is_block, tasks_of
from graph_opt.dask_graph.parse import ArrayGraph, Culled, is_stored
from graph_opt.dask_graph.recipes import gathered, in_order
from graph_opt.model.cost import Work
from graph_opt.model.layout import ArrayNode
from graph_opt.model.piece import OPAQUE, Block, Blockwork, Piece
from graph_opt.model.reader import Reader

Key = Any

SMALL = 0.25
"""A task is small if it reads and returns at most this fraction of the largest result block."""

Tasks = Mapping[Key, GraphNode]


@dataclass(frozen=True)
class LayerReader(Reader):
    """Reads a graph with :class:`PieceLayer`; ``arrays`` are Dask's own layers."""

    culled: Culled
    arrays: ArrayGraph

    @property
    def dependencies(self) -> Mapping[str, AbstractSet[str]]:
        """The layers that each layer reads."""
        return self.culled.graph.dependencies

    @property
    def readers(self) -> Mapping[str, AbstractSet[str]]:
        """The layers that read each layer."""
        return self.culled.readers

    def annotations(self, name: str) -> Mapping[str, Any]:
        """Return Dask's annotations."""
        return self.culled.graph.layers[name].annotations or {}

    def piece(self, name: str) -> Piece | None:
        """Return the piece of a layer."""
        layer = self.culled.graph.layers[name]
        return layer.piece if isinstance(layer, PieceLayer) else None

    def node(self, name: str) -> ArrayNode:
        """Return an array, or undeclared blocks in bytes."""
        return node_of(self.arrays, name)

    def is_stored(self, name: str) -> bool:
        """Whether a layer has blocks or futures."""
        return is_stored(self.culled.graph.layers[name])

    def reads(self, name: str) -> AbstractSet[Key]:
        """Return the keys of other layers that a layer reads."""
        return self.culled.reads[name]

    def work(self, name: str, output: ArrayNode | None) -> Blockwork:
        """Return the work of a layer of Dask's own."""
        return blockwork(name, self.culled, self.arrays, output)


def blockwork(
    name: str, culled: Culled, arrays: ArrayGraph, output: ArrayNode | None = None
) -> Blockwork:
    """Return a layer as a member of a region, with a better declaration of its array if given."""
    graph = culled.graph
    layer, output = graph.layers[name], output or node_of(arrays, name)
    inputs = tuple(node_of(arrays, other) for other in sorted(graph.dependencies[name]))
    if not isinstance(layer, Blockwise):
        tasks = dict(tasks_of(graph, name))
        levels = in_levels({key: task.dependencies for key, task in tasks.items()}, output)
        if levels:
            work = _in_steps(output, inputs, tasks, levels, arrays)
            return replace(_gathered(work, tasks, levels, arrays), plain=work.steps)
        layer = MaterializedLayer(tasks)
    needs = {key[1:]: _blocks(keys) for key, keys in sorted(culled.needs[name].items())}
    return Blockwork(output, inputs, needs, layer, calls_others(layer))


def in_levels(needs: Mapping[Key, Iterable[Key]], output: ArrayNode) -> list[list[Key]]:
    """Return the tasks of a layer that others of it read: each level reads levels before it.

    ``needs`` are the keys that each task of the array ``output`` reads.
    """
    own = {key: [each for each in read if each in needs] for key, read in needs.items()}
    inner = {key for key in own if not is_block(key, output.name, output)}.union(*own.values())
    if not inner:
        return []
    depths: dict[Key, int] = {}
    for key in in_order(own):
        if key in inner:
            depths[key] = max((depths[each] + 1 for each in own[key]), default=0)
    levels: list[list[Key]] = [[] for _ in range(1 + max(depths.values()))]
    for key in sorted(depths, key=_order):
        levels[depths[key]].append(key)
    return levels


def _gathered(
    work: Blockwork, tasks: Tasks, levels: Sequence[Sequence[Key]], arrays: ArrayGraph
) -> Blockwork:
    """Return the work of a layer with fewer steps, if some of its tasks are small."""
    output = work.output
    forms = _outside(tasks, arrays)
    for key in chain.from_iterable(levels):
        forms[key] = estimate(tasks[key], forms)[0]
    largest = output.itemsize * max(prod(output.block_shape(each)) for each in work.computed)

    def size(argument: Any) -> float:
        known = isinstance(argument, GraphNode)
        return nbytes_of(estimate(argument, forms)[0] if known else forms[argument])

    results = {key for key in tasks if is_block(key, output.name, output)}
    found = gathered(tasks, results, size, SMALL * largest)
    needs = {key: task.dependencies for key, task in found.items()}
    return _in_steps(output, work.inputs, found, in_levels(needs, output), arrays)


def _outside(tasks: Tasks, arrays: ArrayGraph) -> dict[Key, Form]:
    """Return the forms of the blocks that tasks read of other layers."""
    read = set().union(*(task.dependencies for task in tasks.values())) - tasks.keys()
    return {key: block_form(arrays, key) for key in read}


def _in_steps(
    output: ArrayNode,
    inputs: tuple[ArrayNode, ...],
    tasks: Tasks,
    levels: Sequence[Sequence[Key]],
    arrays: ArrayGraph,
) -> Blockwork:
    """Return a layer with a step for each level, and the last for the blocks of its array."""
    forms = _outside(tasks, arrays)
    operation, _, token = output.name.rpartition("-")
    names: dict[Key, Key] = {}
    before: list[Blockwork] = []
    for level, keys in enumerate(levels):
        name = f"{operation}.{level}-{token}"
        works = []
        for key in keys:
            forms[key], work = estimate(tasks[key], forms)
            works.append(work)
        step = {(name, at): renamed(tasks[key], names, (name, at)) for at, key in enumerate(keys)}
        node = ArrayNode(
            name, (tuple(nbytes_of(forms[key]) for key in keys),), OPAQUE, output.container
        )
        known = (*inputs, *(each.output for each in before))
        before.append(_step(node, known, step, works))
        names |= dict(zip(keys, step, strict=True))
    last, works = {}, []
    for key in sorted(key for key in tasks if is_block(key, output.name, output)):
        if key in names:
            last[key] = Alias(key, target=names[key])
            works.append(Work())
        else:
            last[key] = renamed(tasks[key], names, key)
            works.append(estimate(tasks[key], forms)[1])
    return _step(output, inputs, last, works, tuple(before))


def _step(
    output: ArrayNode,
    inputs: tuple[ArrayNode, ...],
    tasks: Tasks,
    works: Iterable[Work],
    before: tuple[Blockwork, ...] = (),
) -> Blockwork:
    needs = {key[1:]: _blocks(task.dependencies) for key, task in tasks.items()}
    layer = MaterializedLayer(dict(tasks))
    return Blockwork(output, inputs, needs, layer, calls_others(layer), before, tuple(works))


def _blocks(keys: Iterable[Key]) -> tuple[Block, ...]:
    return tuple((key[0], key[1:]) for key in sorted(keys))


def _order(key: Key) -> list[tuple[bool, Any]]:
    """Order keys of any kind, the same in every process."""
    parts = key if isinstance(key, tuple) else (key,)
    return [(isinstance(each, str), each) for each in parts]
