"""The piece of a matrix product."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product as cartesian
from typing import Any

from graph_opt.model.cost import Machine, dask_product_seconds
from graph_opt.model.layout import ArrayNode, Index, label
from graph_opt.pieces.piece import Piece


@dataclass(frozen=True)
class MatmulPiece(Piece):
    """A matrix product ``output = left @ right``.

    ``rows`` and ``columns`` are the computed block rows and columns of the output, ``None``
    for all.
    """

    left: ArrayNode
    right: ArrayNode
    rows: tuple[int, ...] | None = None
    columns: tuple[int, ...] | None = None

    operation = "matmul"

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        """The two operands."""
        return self.left, self.right

    @property
    def label(self) -> str:
        """Name in messages: the first layer, whose name has the operation."""
        return label(self.layers[0])

    @cached_property
    def task(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The computed block rows and block columns."""
        rows, columns = map(range, self.output.grid)
        return (
            tuple(rows) if self.rows is None else self.rows,
            tuple(columns) if self.columns is None else self.columns,
        )

    @cached_property
    def part(self) -> MatmulPiece:
        """The computed part, as a whole product of smaller matrices."""
        rows = tuple(self.output.chunks[0][i] for i in self.task[0])
        columns = tuple(self.output.chunks[1][j] for j in self.task[1])
        return MatmulPiece(
            output=replace(self.output, chunks=(rows, columns)),
            left=replace(self.left, chunks=(rows, self.left.chunks[1])),
            right=replace(self.right, chunks=(self.right.chunks[0], columns)),
            inner=self.inner,
        )

    @property
    def summary(self) -> str:
        """Shapes and dtype."""
        (m, n), k = self.part.output.shape, self.left.shape[1]
        return f"({m}, {k}) @ ({k}, {n}) {self.output.dtype}"

    @property
    def facts(self) -> dict[str, Any]:
        """Name, shape, dtype and length of the contraction."""
        return {**super().facts, "shape": self.part.output.shape, "inner": self.left.shape[1]}

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The blocks at the crossings of block rows and columns."""
        return tuple(cartesian(*self.task))

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """Whole block rows of the left and block columns of the right operand."""
        rows, columns = self.task
        left, right = range(self.left.grid[1]), range(self.right.grid[0])
        return tuple(cartesian(rows, left)), tuple(cartesian(right, columns))

    def restrict(self, wanted: frozenset[Index]) -> MatmulPiece:
        """Keep the block rows and columns with a wanted block."""
        rows, columns = (tuple(sorted({index[axis] for index in wanted})) for axis in (0, 1))
        return replace(self, rows=rows, columns=columns)

    def fault(self) -> str | None:
        """Return which shapes, chunks or blocks do not match, ``None`` if all do."""
        left, right, output = self.left, self.right, self.output
        if left.shape[1] != right.shape[0]:
            return f"expected equal inner lengths, got shapes {left.shape} and {right.shape}"
        chunks = left.chunks[0], right.chunks[1]
        if output.chunks != chunks:
            return f"expected chunks {chunks}, got {output.chunks}"
        for name, blocks, count in zip(("rows", "columns"), self.task, output.grid, strict=True):
            if not set(blocks) <= set(range(count)):
                return f"block {name} {blocks} do not exist"
        return None

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask: a product and a sum for each triple of blocks."""
        part = self.part
        (m, n), k = part.output.shape, part.left.shape[1]
        (rows, inner), (_, columns) = part.left.grid, part.output.grid
        blocks = rows, inner, columns
        seconds = dask_product_seconds((m, k, n), blocks, part.output.itemsize, ranks, machine)
        return 2 * math.prod(blocks), seconds
