"""Lowering: from a piece to the Dask tasks of its gang.

::

    stage (one a block of an input)  ->  gang (one)  ->  out (one a block of the output)

A ``stage`` runs where its block already is and hands it over without a copy; the
``gang`` task has the scheduler run one program on all ranks; an ``out`` runs on
the worker that made its block and returns it. Tasks grow with the number of
blocks, never with the product of block counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

from dask._task_spec import GraphNode, List, Task, TaskRef
from dask.highlevelgraph import Layer
from dask.tokenize import tokenize

from graph_opt.layout import Index
from graph_opt.node import ArrayNode
from graph_opt.piece import Piece

Key = tuple[Any, ...]

STAGE = "dgpu-stage"
GANG = "dgpu-gang"


class UnfusedTask(Task):
    """A task that Dask's linear fusion leaves alone: its key has a meaning."""

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        """Always true."""
        return True


@dataclass(frozen=True)
class TaskFunctions:
    """The three functions that the tasks call.

    ``stage(block, declared)``, ``gang(program, *staged)`` with a list for each
    input, ``out(handle, index)`` with the place of the block in the output.
    """

    stage: Callable[..., Any]
    gang: Callable[..., Any]
    out: Callable[..., Any]


class GangLayer(Layer):
    """The tasks of one piece, restricted to the blocks wanted.

    Parameters
    ----------
    piece : Piece
        What is computed.
    functions : TaskFunctions
        What the tasks call.
    make_program : callable
        ``make_program(piece)`` gives the program's payload.
    wanted : frozenset of tuple of int, optional
        Blocks of the output that somebody reads; by default all that are computed.
    """

    def __init__(
        self,
        piece: Piece,
        functions: TaskFunctions,
        make_program: Callable[[Any], Any],
        wanted: frozenset[Index] | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(annotations=annotations)
        self.piece = piece
        self.functions = functions
        self.make_program = make_program
        self.wanted = frozenset(piece.computed) if wanted is None else wanted
        self._tasks: dict[Key, GraphNode] | None = None

    @property
    def waste(self) -> float:
        """Share of the computed blocks that nobody reads."""
        computed = len(self.piece.computed)
        return 1 - len(self.wanted) / computed if computed else 0.0

    def get_output_keys(self) -> set[Key]:
        """Keys that other layers may read."""
        return {(self.piece.output.name, *index) for index in self.wanted}

    def is_materialized(self) -> bool:
        """Whether the tasks exist already."""
        return self._tasks is not None

    @property
    def has_legacy_tasks(self) -> bool:
        """Never."""
        return False

    def cull(
        self, keys: Collection[Any], all_hlg_keys: Collection[Any]
    ) -> tuple[Layer, Mapping[Any, set[Any]]]:
        """Keep what the wanted blocks need."""
        name = self.piece.output.name
        wanted = frozenset(index for index in self.wanted if (name, *index) in keys)
        if not wanted:
            return self, {}
        layer = self
        if wanted != self.wanted:
            piece = self.piece.restrict(wanted)
            layer = GangLayer(piece, self.functions, self.make_program, wanted, self.annotations)
        return layer, {key: set(task.dependencies) for key, task in layer.items()}

    def tasks(self) -> dict[Key, GraphNode]:
        """Make the tasks, once."""
        if self._tasks is None:
            self._tasks = dict(self._emit())
        return self._tasks

    @property
    def names(self) -> tuple[str, ...]:
        """First elements of the keys of each input's ``stage`` tasks and, last, of ``gang``."""
        token = tokenize(self.piece)
        inputs = ascii_lowercase[: len(self.piece.inputs)]
        return (*(f"{STAGE}-{letter}-{token}" for letter in inputs), f"{GANG}-{token}")

    def _emit(self) -> Iterator[tuple[Key, GraphNode]]:
        piece = self.piece
        *stage_names, gang_name = self.names
        staged: list[List] = []
        for name, node, indices in zip(stage_names, piece.inputs, piece.staged, strict=True):
            references = []
            for index in indices:
                key: Key = (name, *index)
                yield key, self._stage(key, node, index)
                references.append(TaskRef(key))
            staged.append(List(*references))
        gang = (gang_name, 0)
        yield gang, UnfusedTask(gang, self.functions.gang, self.make_program(piece), *staged)
        for index in sorted(self.wanted):
            out: Key = (piece.output.name, *index)
            yield out, UnfusedTask(out, self.functions.out, TaskRef(gang), index)

    def _stage(self, key: Key, node: ArrayNode, index: Index) -> Task:
        shape = tuple(sizes[at] for sizes, at in zip(node.chunks, index, strict=True))
        declared = (node.dtype, shape, node.container)
        return UnfusedTask(key, self.functions.stage, TaskRef((node.name, *index)), declared)

    def __getitem__(self, key: Any) -> GraphNode:
        return self.tasks()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tasks())

    def __len__(self) -> int:
        return len(self.tasks())
