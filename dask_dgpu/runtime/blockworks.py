"""The block functions of a program: Dask's layers, and what they call for each block."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import cloudpickle
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from dask_dgpu.runtime.calls import bound
from graph_opt.dask_graph import internals as dask_task
from graph_opt.dask_graph.internals import BlockwiseDep, blockwise_token
from graph_opt.model.layout import Index

Array = Any
Key = tuple[Any, ...]


class Call(NamedTuple):
    """A function, and the keys of the blocks that it is called with."""

    function: Callable[..., Array]
    reads: tuple[Key, ...]


class Blockworks:
    """Dask's layers whose tasks compute blocks, by the name of their array.

    Their functions may be a user's. The scheduler forwards programs without these layers'
    packages, so only ranks unpickle them; all at once, so that shared objects travel once. A rank
    keeps what it has unpickled, so its calls copy what may change.
    """

    def __init__(self, layers: Mapping[str, Layer] | None = None, pickled: bytes = b"") -> None:
        if layers is not None:
            facts: dict[str, BlockwiseDep] = {}
            self._layers = {name: _bare(layer, facts) for name, layer in layers.items()}
        self._pickled, self._copies = pickled, layers is None

    @cached_property
    def _layers(self) -> dict[str, Layer]:
        layers: dict[str, Layer] = cloudpickle.loads(self._pickled)
        return layers

    def calls(self, name: str, blocks: Collection[Index]) -> dict[Index, Call]:
        """Return what computes each of these blocks."""
        if not blocks:
            return {}
        layer, copies = self._layers[name], self._copies
        common = Common.of(layer, copies=copies) if isinstance(layer, Blockwise) else None
        if common is not None:
            return {index: common.call(index) for index in blocks}
        layer, _ = layer.cull({(name, *index) for index in blocks}, ())
        return {index: _call(layer[name, *index], copies=copies) for index in blocks}

    def __reduce__(self) -> Any:
        if not self._pickled:
            self._pickled = cloudpickle.dumps(self._layers)
        return type(self), (None, self._pickled)


@dataclass(frozen=True)
class Common:
    """The single task of a blockwise layer, for all its blocks.

    Dask creates a task with other keys for each block, which takes longer than the function of a
    small block. ``reads`` are the arrays of the blocks that the ``function`` is called with, and
    for each axis the axis of the result with the same block number; ``None`` is an axis of one
    block. The ``task`` has placeholders for blocks; ``facts`` about blocks, by placeholder, are
    constants of each block's function, which is ``None`` if there are any. Calls may have
    ``copies`` of what may change.
    """

    task: Any
    function: Callable[..., Array] | None
    reads: tuple[tuple[str, tuple[int | None, ...]], ...]
    places: Mapping[str, int]
    facts: tuple[tuple[str, BlockwiseDep, tuple[int | None, ...]], ...]
    copies: bool

    @classmethod
    def of(cls, layer: Blockwise, *, copies: bool = False) -> Common | None:
        """Return the task of a layer, ``None`` if it reads more than one block of an array."""
        axes = {letter: axis for axis, letter in enumerate(layer.output_indices)}
        task, names = layer.task, set()
        reads: list[tuple[str, tuple[int | None, ...]]] = []
        facts: list[tuple[str, BlockwiseDep, tuple[int | None, ...]]] = []
        places: dict[str, int] = {}
        for at, (operand, index) in enumerate(layer.indices):
            name = blockwise_token(at)
            if name not in task.dependencies:
                continue
            if index is None:
                task = task.substitute({name: _node(operand)})
                continue
            if not isinstance(operand, str):
                return None
            counts = dict(zip(index, layer.numblocks[operand], strict=True))
            reduced = counts.keys() - axes.keys()
            if any(counts[x] > 1 for x in reduced) or (reduced and layer.concatenate):
                return None  # several blocks of one array
            for _ in reduced:  # Dask gives a list of blocks along each
                task = task.substitute({name: dask_task.List(dask_task.TaskRef(name))})
            names.add(name)
            along = tuple(None if counts[x] == 1 else axes[x] for x in index)
            fact = layer.io_deps.get(operand)
            if fact is None:
                places[name] = len(reads)
                reads.append((operand, along))
            elif fact.produces_tasks or fact.produces_keys:
                return None
            else:
                facts.append((name, fact, along))
        if task.dependencies != names:
            return None
        function = None if facts else bound(task, places, copies=copies)
        return cls(task, function, tuple(reads), places, tuple(facts), copies)

    def call(self, index: Index) -> Call:
        """Return what computes the block at this place."""
        reads = tuple((name, *_at(index, along)) for name, along in self.reads)
        if self.function is not None:
            return Call(self.function, reads)
        known = {}
        for name, fact, along in self.facts:
            place = _at(index, along)
            known[name] = dask_task.DataNode(None, fact.get(place, place))
        task = self.task.substitute(known)
        return Call(bound(task, self.places, copies=self.copies), reads)


def _at(index: Index, along: Iterable[int | None]) -> Index:
    return tuple([0 if axis is None else index[axis] for axis in along])


def _call(task: Any, *, copies: bool) -> Call:
    """Return a task of one block."""
    needs = tuple(task.dependencies)
    return Call(bound(task, {key: at for at, key in enumerate(needs)}, copies=copies), needs)


def _node(operand: Any) -> Any:
    """Return the node of a constant in a task."""
    known = isinstance(operand, dask_task.GraphNode | dask_task.TaskRef)
    return operand if known else dask_task.DataNode(None, operand)


def _bare(layer: Layer, facts: dict[str, BlockwiseDep]) -> Layer:
    """Return a layer without annotations and cached tasks.

    Equal facts about blocks, by Dask's names for them, become one object, which travels once.
    """
    bare = copy(layer)
    if isinstance(bare, Blockwise):
        bare.io_deps = {name: facts.setdefault(name, dep) for name, dep in bare.io_deps.items()}
    bare.annotations = bare.collection_annotations = None
    bare.__dict__.pop("_cached_dict", None)
    return bare
