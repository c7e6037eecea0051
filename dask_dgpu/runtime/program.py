"""The program of a gang: a list of steps on named values, the same on every rank.

The graph optimizer creates it from shapes and chunks only. The places of blocks and the number of
ranks are known at launch; then :mod:`dask_dgpu.runtime.plans` plans it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

import cloudpickle
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.operations.value import Collective, Local, Need, Value
from graph_opt.dask_graph import internals as dask_task
from graph_opt.dask_graph.emit import Plain
from graph_opt.dask_graph.internals import BlockwiseDep, blockwise_token
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Index, label
from graph_opt.model.piece import Wanted, label_of

Array = Any
Key = tuple[Any, ...]
Task = Callable[[Mapping[Any, Array]], Array]


@dataclass(frozen=True)
class Limits:
    """Limits of a gang.

    It fails after ``timeout`` seconds without progress, ``grace`` seconds after a broken transfer,
    in which the scheduler may notice a lost worker, or after too many ``restarts``.
    """

    timeout: float = 300.0
    grace: float = 10.0
    restarts: int = 3


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

    def __reduce__(self) -> Any:
        if not self._pickled:
            self._pickled = cloudpickle.dumps(self._layers)
        return type(self), (None, self._pickled)


@dataclass(frozen=True)
class Program:
    """Steps, in order, on named values.

    ``titles`` are the layers whose names messages show. ``outputs`` are the results, and the
    wanted blocks of each. ``local_ranks`` is the number of ranks without Dask workers, ``room`` the
    usable bytes of a rank's device. ``blockworks`` has the block functions of :class:`Local`
    steps. ``plain`` are Dask's own tasks for the fallback; they are not pickled.
    """

    titles: tuple[str, ...]
    inputs: tuple[tuple[str, Value], ...]
    steps: tuple[Local | Collective, ...]
    outputs: Wanted
    machine: Machine
    transport: Transport
    limits: Limits
    local_ranks: int = 1
    room: float | None = None
    blockworks: Blockworks = field(default_factory=Blockworks)
    plain: Plain | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"plain": None}

    @property
    def name(self) -> str:
        """Name in messages."""
        return label_of(self.titles)

    @property
    def names(self) -> tuple[str, ...]:
        """All values in order: inputs, then the outputs of steps. Plans know their numbers."""
        return (*(name for name, _ in self.inputs), *(step.output for step in self.steps))

    @property
    def given(self) -> set[str]:
        """The names of the inputs."""
        return {name for name, _ in self.inputs}

    @property
    def ends(self) -> list[list[str]]:
        """For each step the values that no later step needs."""
        last = {
            name: at for at, step in enumerate(self.steps) for name in (step.output, *step.inputs)
        }
        results = {name for name, _ in self.outputs}
        found: list[list[str]] = [[] for _ in self.steps]
        for name, at in last.items():
            if name not in results:
                found[at].append(name)
        return found

    @property
    def spent(self) -> list[set[str]]:
        """For each step its inputs that no later step reads, except the program's inputs."""
        steps, given = zip(self.steps, self.ends, strict=True), self.given
        return [({*step.inputs} & {*ending}) - given for step, ending in steps]

    def named(self, staged: Sequence[list[Any]]) -> dict[Key, Any]:
        """Return the blocks of the inputs by their keys in Dask."""
        return {
            (name, *index): block
            for (name, value), given in zip(self.inputs, staged, strict=True)
            for index, block in zip(value.indices(), given, strict=True)
        }


@dataclass(frozen=True)
class Common:
    """The single task of a blockwise layer, for all its blocks.

    Dask creates a task with other keys for each block, which takes longer than the function of a
    small block. ``task`` has placeholders for blocks and their facts. ``reads`` has for each
    placeholder its name; its array, or facts; and for each of its axes the axis of the result with
    the same block number. ``None`` is an axis of one block.
    """

    task: Task
    reads: tuple[tuple[str, str | BlockwiseDep, tuple[int | None, ...]], ...]

    @classmethod
    def of(cls, layer: Blockwise) -> Common | None:
        """Return the task of a layer, ``None`` if it reads more than one block of an array."""
        axes = {letter: axis for axis, letter in enumerate(layer.output_indices)}
        task = layer.task
        reads: list[tuple[str, str | BlockwiseDep, tuple[int | None, ...]]] = []
        for at, (operand, index) in enumerate(layer.indices):
            name = blockwise_token(at)
            if name not in task.dependencies:
                continue
            if index is None:
                task = task.substitute({name: _node(operand)})
            elif isinstance(operand, str) and axes.keys() >= set(index):
                blocks = zip(index, layer.numblocks[operand], strict=True)
                along = tuple(None if count == 1 else axes[letter] for letter, count in blocks)
                reads.append((name, layer.io_deps.get(operand, operand), along))
            else:
                return None  # several blocks of one array
        facts = [read for _, read, _ in reads if isinstance(read, BlockwiseDep)]
        if any(fact.produces_tasks or fact.produces_keys for fact in facts):
            return None
        if task.dependencies != {name for name, *_ in reads}:
            return None
        return cls(_quick(task), tuple(reads))

    def __call__(self, index: Index, blocks: Mapping[Any, Array]) -> Array:
        """Compute the block at this place."""
        given = {}
        for name, read, along in self.reads:
            place = tuple(0 if axis is None else index[axis] for axis in along)
            if isinstance(read, BlockwiseDep):
                given[name] = read.get(place, place)
            else:
                given[name] = blocks[(read, *place)]
        return self.task(given)


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


@dataclass(frozen=True)
class Stage:
    """A step without the names of arrays: values are numbered, inputs of the program first.

    ``operation``, ``task`` and the ``spent`` inputs are those of a collective. A local step has
    ``needs`` instead.
    """

    inputs: tuple[int, ...]
    result: Value
    operation: str | None = None
    task: Any = None
    spent: tuple[bool, ...] = ()
    needs: tuple[tuple[Need, ...], ...] = ()
    once: bool = False


@dataclass(frozen=True)
class Structure:
    """What plans depend on: a program without names, functions and time limits."""

    inputs: tuple[Value, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[tuple[int, tuple[Index, ...]], ...]
    machine: Machine
    room: float | None

    @classmethod
    def of(cls, program: Program) -> Structure:
        """Return the structure of a program."""
        number = {name: at for at, name in enumerate(program.names)}
        stages = []
        for step, spent in zip(program.steps, program.spent, strict=True):
            inputs = tuple(number[name] for name in step.inputs)
            if isinstance(step, Local):
                stages.append(Stage(inputs, step.result, needs=step.needs, once=step.once))
            else:
                last = tuple(name in spent for name in step.inputs)
                stages.append(Stage(inputs, step.result, step.operation, step.task, last))
        outputs = tuple((number[name], blocks) for name, blocks in program.outputs)
        values = tuple(value for _, value in program.inputs)
        return cls(values, tuple(stages), outputs, program.machine, program.room)
