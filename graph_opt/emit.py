"""Lowering: from a product to the Dask tasks of its gang.

::

    stage (one a block of A and B)  ->  gang (one)  ->  out (one a block of C)

A ``stage`` runs where its block already is and hands it over without a copy; the
``gang`` task has the scheduler run one program on all ranks; an ``out`` runs on
the worker that made its block and returns it. Tasks grow with the number of
blocks, never with the product of block counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dask._task_spec import GraphNode, List, Task, TaskRef
from dask.highlevelgraph import Layer
from dask.tokenize import tokenize

from graph_opt.node import ArrayNode, Product

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

    ``stage(block, declared)``, ``gang(program, staged_left, staged_right)``,
    ``out(handle, block_index)``.
    """

    stage: Callable[..., Any]
    gang: Callable[..., Any]
    out: Callable[..., Any]


class GangLayer(Layer):
    """The tasks of one product, restricted to the block rows and columns wanted.

    Parameters
    ----------
    product : Product
        What is computed.
    functions : TaskFunctions
        What the tasks call.
    make_program : callable
        ``make_program(product, rows, columns)`` gives the program's payload.
    rows, columns : tuple of int, optional
        Block rows and columns of the output that are computed, all by default.
    wanted : frozenset of tuple of int, optional
        Blocks of the output that somebody reads, all by default.
    """

    def __init__(
        self,
        product: Product,
        functions: TaskFunctions,
        make_program: Callable[[Product, tuple[int, ...], tuple[int, ...]], Any],
        rows: tuple[int, ...] | None = None,
        columns: tuple[int, ...] | None = None,
        wanted: frozenset[tuple[int, int]] | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(annotations=annotations)
        row_chunks, column_chunks = product.output.chunks
        self.product = product
        self.functions = functions
        self.make_program = make_program
        self.rows = tuple(range(len(row_chunks))) if rows is None else rows
        self.columns = tuple(range(len(column_chunks))) if columns is None else columns
        if wanted is None:
            wanted = frozenset((i, j) for i in self.rows for j in self.columns)
        self.wanted = wanted
        self._tasks: dict[Key, GraphNode] | None = None

    @property
    def waste(self) -> float:
        """Share of the computed blocks that nobody reads."""
        computed = len(self.rows) * len(self.columns)
        return 1 - len(self.wanted) / computed if computed else 0.0

    @property
    def part(self) -> Product:
        """The product as far as it is computed."""
        left, right, output = self.product.left, self.product.right, self.product.output
        rows = tuple(left.chunks[0][i] for i in self.rows)
        columns = tuple(right.chunks[1][j] for j in self.columns)
        return replace(
            self.product,
            left=replace(left, chunks=(rows, left.chunks[1])),
            right=replace(right, chunks=(right.chunks[0], columns)),
            output=replace(output, chunks=(rows, columns)),
        )

    def get_output_keys(self) -> set[Key]:
        """Keys that other layers may read."""
        return {(self.product.output.name, i, j) for i, j in self.wanted}

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
        """Keep the block rows and columns that hold a wanted block."""
        name = self.product.output.name
        wanted = frozenset(index for index in self.wanted if (name, *index) in keys)
        if not wanted:
            return self, {}
        layer = self
        if wanted != self.wanted:
            layer = GangLayer(
                self.product,
                self.functions,
                self.make_program,
                tuple(sorted({i for i, _ in wanted})),
                tuple(sorted({j for _, j in wanted})),
                wanted,
                self.annotations,
            )
        return layer, {key: set(task.dependencies) for key, task in layer.items()}

    def tasks(self) -> dict[Key, GraphNode]:
        """Make the tasks, once."""
        if self._tasks is None:
            self._tasks = dict(self._emit())
        return self._tasks

    @property
    def names(self) -> tuple[str, str, str]:
        """First elements of the keys of the two operands' ``stage`` tasks and of ``gang``."""
        token = tokenize(self.product, self.rows, self.columns)
        return f"{STAGE}-a-{token}", f"{STAGE}-b-{token}", f"{GANG}-{token}"

    def _emit(self) -> Iterator[tuple[Key, GraphNode]]:
        product = self.product
        stage_a, stage_b, gang_name = self.names
        inner = range(len(product.left.chunks[1]))
        inner_right = range(len(product.right.chunks[0]))
        staged: list[list[TaskRef]] = []
        for name, node, indices in (
            (stage_a, product.left, [(i, k) for i in self.rows for k in inner]),
            (stage_b, product.right, [(k, j) for k in inner_right for j in self.columns]),
        ):
            references = []
            for index in indices:
                key = (name, *index)
                yield key, self._stage(key, node, index)
                references.append(TaskRef(key))
            staged.append(references)
        gang = (gang_name, 0)
        program = self.make_program(product, self.rows, self.columns)
        yield (
            gang,
            UnfusedTask(gang, self.functions.gang, program, *(List(*refs) for refs in staged)),
        )
        positions = {i: at for at, i in enumerate(self.rows)}
        columns = {j: at for at, j in enumerate(self.columns)}
        for i, j in sorted(self.wanted):
            key = (product.output.name, i, j)
            yield (
                key,
                UnfusedTask(key, self.functions.out, TaskRef(gang), (positions[i], columns[j])),
            )

    def _stage(self, key: Key, node: ArrayNode, index: tuple[int, int]) -> Task:
        shape = tuple(sizes[at] for sizes, at in zip(node.chunks, index, strict=True))
        declared = (node.dtype, shape, node.container)
        return UnfusedTask(key, self.functions.stage, TaskRef((node.name, *index)), declared)

    def __getitem__(self, key: Any) -> GraphNode:
        return self.tasks()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tasks())

    def __len__(self) -> int:
        return len(self.tasks())
