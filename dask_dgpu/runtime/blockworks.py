"""The block functions of a program: tasks of Dask's layers, called on the blocks of a rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import cloudpickle
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from graph_opt.dask_graph import internals as dask_task
from graph_opt.dask_graph.internals import BlockwiseDep, blockwise_token
from graph_opt.model.layout import Index, label

Array = Any
Task = Callable[[Mapping[Any, Array]], Array]


class Blockworks:
    """Dask's layers whose tasks compute blocks, by the name of their array.

    Their functions may be a user's. The scheduler forwards programs without these layers'
    packages, so only ranks unpickle them; all at once, so that shared objects travel once.
    """

    def __init__(self, layers: Mapping[str, Layer] | None = None, pickled: bytes = b"") -> None:
        if layers is not None:
            facts: dict[str, BlockwiseDep] = {}
            self._layers = {name: _bare(layer, facts) for name, layer in layers.items()}
        self._pickled = pickled

    @cached_property
    def _layers(self) -> dict[str, Layer]:
        layers: dict[str, Layer] = cloudpickle.loads(self._pickled)
        return layers

    def tasks(self, name: str, blocks: Collection[Index]) -> dict[Index, Task]:
        """Return the tasks of these blocks; they are called with the needed blocks by keys."""
        if not blocks:
            return {}
        layer = self._layers[name]
        common = Common.of(layer) if isinstance(layer, Blockwise) else None
        if common is not None:
            return {index: partial(common, index) for index in blocks}
        layer, _ = layer.cull({(name, *index) for index in blocks}, ())
        return {index: _quick(layer[name, *index]) for index in blocks}

    def batches(self, name: str, blocks: Sequence[Index], most: int) -> list[Batch]:
        """Return these blocks in batches of up to ``most`` if their task computes many at once."""
        layer = self._layers[name] if blocks else None
        common = Common.of(layer) if most > 1 and isinstance(layer, Blockwise) else None
        together = None if common is None else common.together
        if together is None:
            return [
                Batch((index,), partial(_alone, task))
                for index, task in self.tasks(name, blocks).items()
            ]
        batches = [tuple(blocks[at : at + most]) for at in range(0, len(blocks), most)]
        return [Batch(batch, partial(together, batch)) for batch in batches]

    def __reduce__(self) -> Any:
        if not self._pickled:
            self._pickled = cloudpickle.dumps(self._layers)
        return type(self), (None, self._pickled)


class Batch(NamedTuple):
    """Blocks, and what computes all of them from the needed blocks of each by keys."""

    blocks: tuple[Index, ...]
    compute: Callable[[Sequence[Mapping[Any, Array]]], list[Array]]


def _alone(task: Task, needed: Sequence[Mapping[Any, Array]]) -> list[Array]:
    return [task(blocks) for blocks in needed]


class Read(NamedTuple):
    """A placeholder in a task, by name: a block of an array, or facts about it.

    ``along`` has for each axis the axis of the result with the same block number; ``None`` is an
    axis of one block. The block is in so many ``lists``: one for each axis that the result lacks.
    """

    name: str
    source: str | BlockwiseDep
    along: tuple[int | None, ...]
    lists: int = 0


@dataclass(frozen=True)
class Common:
    """The single task of a blockwise layer, for all its blocks.

    Dask creates a task with other keys for each block, which takes longer than the function of a
    small block. ``task`` has placeholders for blocks and their facts, which it ``reads``.
    """

    task: Task
    reads: tuple[Read, ...]

    @classmethod
    def of(cls, layer: Blockwise) -> Common | None:
        """Return the task of a layer, ``None`` if it reads more than one block of an array."""
        axes = {letter: axis for axis, letter in enumerate(layer.output_indices)}
        task = layer.task
        reads: list[Read] = []
        for at, (operand, index) in enumerate(layer.indices):
            name = blockwise_token(at)
            if name not in task.dependencies:
                continue
            if index is None:
                task = task.substitute({name: _node(operand)})
            elif isinstance(operand, str):
                counts = dict(zip(index, layer.numblocks[operand], strict=True))
                reduced = set(index) - axes.keys()
                several = any(counts[letter] > 1 for letter in reduced)
                if several or (reduced and layer.concatenate):
                    return None
                along = tuple(None if counts[x] == 1 else axes[x] for x in index)
                source = layer.io_deps.get(operand, operand)
                reads.append(Read(name, source, along, len(reduced)))
            else:
                return None
        facts = [read.source for read in reads if isinstance(read.source, BlockwiseDep)]
        if any(fact.produces_tasks or fact.produces_keys for fact in facts):
            return None
        if task.dependencies != {read.name for read in reads}:
            return None
        return cls(_quick(task), tuple(reads))

    def __call__(self, index: Index, blocks: Mapping[Any, Array]) -> Array:
        """Compute the block at this place."""
        return self.task(self.given(index, blocks))

    @property
    def together(self) -> Together | None:
        """Computes many blocks by one call of the task's function; ``None`` if it has no such."""
        task: Any = self.task
        if type(task) is not dask_task.Task or task.kwargs:
            return None
        if not all(type(argument) is dask_task.TaskRef for argument in task.args):
            return None
        function = getattr(task.func, "together", None)
        names = tuple(argument.key for argument in task.args)
        return None if function is None else Together(self, function, names)

    def given(self, index: Index, blocks: Mapping[Any, Array]) -> dict[str, Any]:
        """Return what the placeholders stand for, for the block at this place."""
        given: dict[str, Any] = {}
        for name, source, along, lists in self.reads:
            place = tuple([0 if axis is None else index[axis] for axis in along])
            if isinstance(source, BlockwiseDep):
                value = source.get(place, place)
            else:
                value = blocks[(source, *place)]
            for _ in range(lists):
                value = [value]
            given[name] = value
        return given


@dataclass(frozen=True)
class Together:
    """Computes many blocks by a function's method ``together``.

    It is called with the arguments of many calls, here the placeholders with these ``names``.
    """

    common: Common
    function: Callable[[Sequence[Sequence[Any]]], list[Array]]
    names: tuple[str, ...]

    def __call__(
        self, places: Sequence[Index], blocks: Sequence[Mapping[Any, Array]]
    ) -> list[Array]:
        """Compute the blocks at these places."""
        given = [self.common.given(*each) for each in zip(places, blocks, strict=True)]
        return self.function([[each[name] for name in self.names] for each in given])


def _node(operand: Any) -> Any:
    """Return the node of a constant in a task."""
    known = isinstance(operand, dask_task.GraphNode | dask_task.TaskRef)
    return operand if known else dask_task.DataNode(None, operand)


def _quick(task: Any) -> Task:
    """Return an equal task that does not sort its fused tasks."""
    if isinstance(task, dask_task.Task) and task.has_subgraph():
        return cast(Task, dask_task.Task(task.key, run_fused, *task.args))
    return cast(Task, task)


def run_fused(tasks: Mapping[Any, Any], result: Any, names: Sequence[Any], *blocks: Array) -> Array:
    """Run fused tasks on demand, and free their values after the last use.

    Dask sorts them first, like a graph of any size, which takes longer than running them. An error
    gets a note with the name of its task, because users do not know the name of the fused task.
    ``names`` are the keys of ``blocks``, the inputs.
    """
    known = dict(zip(names, blocks, strict=True))
    uses = Counter(need for task in tasks.values() for need in task.dependencies)
    waiting = [result]
    while waiting:
        needs = () if waiting[-1] in known else tasks[waiting[-1]].dependencies
        missing = [need for need in needs if need not in known]
        if missing:
            waiting += missing
            continue
        key = waiting.pop()
        if key in known:
            continue
        try:
            known[key] = tasks[key]({need: known[need] for need in needs})
        except Exception as error:
            error.add_note(f"in {label(str(key))}")
            raise
        for need in needs:
            uses[need] -= 1
            if not uses[need]:
                del known[need]
    return known[result]


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
