"""The program of a gang: nodes that compute values from others, the same on every rank.

Values have numbers: first those of the inputs, then one for each node. A program has no names and
no data, so it is made once for all graphs of one structure. What differs between these is in a
:class:`Launch`. The places of blocks and the number of ranks are known later; then
:mod:`dask_dgpu.runtime.plans` plans the program.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from typing import Any

import cloudpickle

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.operations.operation import Node, Value
from graph_opt.dask_graph.plain import Plain
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Bare, Index
from graph_opt.model.names import numbered, restored
from graph_opt.model.piece import Wanted, label_of
from graph_opt.model.recipe import Recipe, TaskCall

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


class Blockworks:
    """The recipes of blocks that functions compute, by the numbers of their values.

    The functions may be a user's. The scheduler forwards programs without the packages of these,
    so only ranks unpickle them; all at once, so that shared objects travel once. A rank keeps what
    it has unpickled, so its calls copy what may change.
    """

    def __init__(self, recipes: Mapping[int, Recipe] | None, pickled: bytes = b"") -> None:
        if recipes is not None:
            self._recipes = recipes
        self._pickled, self._copies = pickled, recipes is None

    @cached_property
    def _recipes(self) -> Mapping[int, Recipe]:
        recipes: Mapping[int, Recipe] = cloudpickle.loads(self._pickled)
        return recipes

    def __getitem__(self, number: int) -> Recipe:
        return self._recipes[number]

    def calls(self, number: int, blocks: Collection[Index]) -> dict[Index, TaskCall]:
        """Return what computes each of these blocks of a value."""
        return self[number].calls(blocks, copies=self._copies) if blocks else {}

    def __reduce__(self) -> Any:
        if not self._pickled:
            self._pickled = cloudpickle.dumps(self._recipes)
        return type(self), (None, self._pickled)


@dataclass(frozen=True)
class Program(Bare):
    """Nodes, in order, that compute values.

    ``outputs`` are the results, and the wanted blocks of each. ``local_ranks`` is the number of
    ranks without Dask workers, ``room`` the usable bytes of a rank's device. ``blockworks`` has the
    block functions of nodes without an operation.
    """

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[int, tuple[Index, ...]], ...]
    machine: Machine
    transport: Transport = "dask"
    limits: Limits = field(default_factory=Limits)
    local_ranks: int = 1
    room: float | None = None
    blockworks: Blockworks = field(default_factory=lambda: Blockworks({}), compare=False)

    @cached_property
    def text(self) -> tuple[bytes, bytes]:
        """The program as ranks get it, pickled with numbered tokens, and the tokens, joined.

        Free memory varies, and is the plans' matter.
        """
        return numbered(pickle.dumps(replace(self, room=None)))

    @cached_property
    def digest(self) -> bytes:
        """What identifies the text."""
        return blake2b(self.text[0], digest_size=16).digest()

    @cached_property
    def bare(self) -> Program:
        """What plans depend on: the program without functions and limits of time."""
        return Program(self.inputs, self.nodes, self.outputs, self.machine, room=self.room)

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values in order."""
        return (*self.inputs, *(node.value for node in self.nodes))

    @cached_property
    def places(self) -> tuple[Sequence[Index], ...]:
        """The blocks of each input, in row-major order."""
        return tuple(value.indices() for value in self.inputs)

    @cached_property
    def numbered(self) -> Mapping[int, Node]:
        """The nodes by the numbers of their values."""
        return dict(enumerate(self.nodes, len(self.inputs)))

    @cached_property
    def ends(self) -> list[list[int]]:
        """For each node the values that no later node needs."""
        last = {
            value: i
            for i, (number, node) in enumerate(self.numbered.items())
            for value in (number, *node.reads)
        }
        results = {number for number, _ in self.outputs}
        ends: list[list[int]] = [[] for _ in self.nodes]
        for number, at in last.items():
            if number not in results:
                ends[at].append(number)
        return ends

    @cached_property
    def parts(self) -> Collection[int]:
        """The values whose only reader merges their blocks."""
        reads = chain.from_iterable(node.reads for node in self.nodes)
        once = {number for number, count in Counter(reads).items() if count == 1}
        merged = set().union(*(node.reads for node in self.nodes if node.merges))
        local = {number for number, node in self.numbered.items() if node.operation is None}
        return once & merged & local - {number for number, _ in self.outputs}

    def made(self, numbers: Iterable[int]) -> set[int]:
        """Return those of some values that are not inputs: a node may write over them."""
        return {number for number in numbers if number >= len(self.inputs)}


def opened(text: bytes, tokens: bytes) -> Program:
    """Return the program with a text that has these tokens."""
    program: Program = pickle.loads(restored(text, tokens))
    return program


@dataclass(frozen=True)
class Launch:
    """A program, and what differs in each graph that it is for.

    ``names`` are those of its values in Dask; ``titles`` are the layers whose names messages show.
    ``plain`` are Dask's own tasks for the fallback. They are pickled only if they travel, as bytes
    that stay bytes: the scheduler may lack packages. The program of a known structure has the
    ``tokens`` of the present graph, such as numbers, in place of its own. ``operations`` are the
    user's word for each node, and the number of the operation that it is a part of.
    """

    program: Program
    names: tuple[str, ...]
    titles: tuple[str, ...]
    plain: Plain | bytes | None = field(default=None, compare=False, repr=False)
    tokens: bytes | None = field(default=None, compare=False, repr=False)
    operations: tuple[tuple[str, int], ...] = field(default=(), compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        plain = self.plain
        if isinstance(plain, Plain):
            plain = cloudpickle.dumps(plain) if plain.travels else None
        return self.__dict__ | {"plain": plain}

    @property
    def fallback(self) -> Plain | None:
        """Dask's own tasks for the region; ``None`` if an error is to be raised."""
        return cloudpickle.loads(self.plain) if isinstance(self.plain, bytes) else self.plain

    @property
    def title(self) -> str:
        """Name in messages."""
        return label_of(self.titles)

    @property
    def outputs(self) -> Wanted:
        """The names of the results, and the wanted blocks of each."""
        return tuple((self.names[number], blocks) for number, blocks in self.program.outputs)
