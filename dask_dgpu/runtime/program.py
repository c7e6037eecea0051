"""The program of a gang: a list of steps on named values, the same on every rank.

The graph optimizer creates it from shapes and chunks only. The places of blocks and the number of
ranks are known at launch; then :mod:`dask_dgpu.runtime.plans` plans it.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import cloudpickle

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.operations.value import Collective, Local, Need, Value
from dask_dgpu.runtime.blockworks import Blockworks
from graph_opt.dask_graph.plain import Plain
from graph_opt.model.cost import Machine
from graph_opt.model.hosts import Hosts
from graph_opt.model.layout import Index
from graph_opt.model.piece import Wanted, label_of

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Limits:
    """Limits of a gang.

    It fails after ``timeout`` seconds without progress, ``grace`` seconds after a broken transfer,
    in which the scheduler may notice a lost worker, or after too many ``restarts``. Each rank keeps
    programs with so many bytes, and on a GPU recordings of them, for the next run. Ranks listen on
    ``ports`` from the first to the last, on any without.
    """

    timeout: float = 300.0
    grace: float = 10.0
    restarts: int = 3
    kept_programs: int = 64 << 20
    kept_recordings: int = 4 << 30
    ports: tuple[int, int] | None = None


class Form(NamedTuple):
    """What identifies a program but for the tokens in its names and numbers, and these tokens."""

    digest: bytes
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """Steps, in order, on named values.

    ``titles`` are the layers whose names messages show. ``outputs`` are the results, and the
    wanted blocks of each. ``local_ranks`` is the number of ranks without Dask workers, ``room`` the
    usable bytes of a rank's device. ``blockworks`` has the block functions of :class:`Local`
    steps. ``plain`` are Dask's own tasks for the fallback. They are pickled only if they travel, as
    bytes that stay bytes: the scheduler may lack packages. A program that was optimized as a known
    structure has a ``form``.
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
    plain: Plain | bytes | None = field(default=None, compare=False, repr=False)
    form: Form | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        plain = self.plain
        if isinstance(plain, Plain):
            plain = cloudpickle.dumps(plain) if plain.travels else None
        return self.__dict__ | {"plain": plain}

    @property
    def payload(self) -> bytes:
        """The program as ranks get it; free memory varies, and is the plans' matter."""
        return pickle.dumps(replace(self, room=None, form=None, plain=None))

    @property
    def fallback(self) -> Plain | None:
        """Dask's own tasks for the region; ``None`` if an error is to be raised."""
        return cloudpickle.loads(self.plain) if isinstance(self.plain, bytes) else self.plain

    def on_hosts(self, hosts: Hosts) -> Program:
        """Return the program for ranks on these hosts; on one host it is this one."""
        if hosts == self.machine.hosts:
            return self
        return replace(self, machine=replace(self.machine, hosts=hosts))

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
class Stage:
    """A step without the names of arrays: values are numbered, inputs of the program first.

    ``operation``, ``task`` and the ``spent`` inputs are those of a collective. A local step has
    ``needs`` instead. Tasks of equal stages are ``spelled`` alike: 0.0 is not -0.0.
    """

    inputs: tuple[int, ...]
    result: Value
    operation: str | None = None
    task: Any = None
    spent: tuple[bool, ...] = ()
    needs: tuple[tuple[Need, ...], ...] = ()
    once: bool = False
    spelled: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelled", repr(self.task))


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
