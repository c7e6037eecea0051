"""The piece of a matrix product; its target is the ``summa`` algorithm."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product as cartesian
from typing import Any, Self

from graph_opt.model.cost import Machine, dask_product_seconds
from graph_opt.model.layout import ArrayNode, Cuts, Index, cuts_of
from graph_opt.model.piece import Piece

TERM = re.compile(r"(-[0-9]+){2}$")
"""What follows the name of a product in those of its terms."""


@dataclass(frozen=True)
class ProductPiece(Piece):
    """A product of two arrays, or one term of it.

    ``depth`` are the blocks along the contracted axis that are multiplied, ``None`` for all.
    """

    left: ArrayNode
    right: ArrayNode
    depth: tuple[int, ...] | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def contracted(self) -> tuple[int, int]:
        """The axis of either operand along which ``depth`` counts."""

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        return self.left, self.right

    @property
    def title(self) -> str:
        """The first layer, whose name has the operation."""
        return self.layers[0]

    @cached_property
    def multiplied(self) -> tuple[int, ...]:
        """The blocks along the contracted axis of the left operand that are multiplied."""
        blocks = self.left.grid[self.contracted[0]]
        return tuple(range(blocks)) if self.depth is None else self.depth

    @cached_property
    def summed(self) -> Cuts:
        left, right = (
            node.chunks[axis] for node, axis in zip(self.inputs, self.contracted, strict=True)
        )
        cuts = cuts_of([left[at] for at in self.multiplied])
        return cuts if left == right else (0, cuts[-1])

    def term(self, lo: int, hi: int) -> Self:
        blocks = self.multiplied[lo:hi]
        name = f"{self.output.name}-{blocks[0]}-{blocks[-1] + 1}"
        output = replace(self.output, name=name)
        return replace(self, output=output, depth=blocks, inner=self.layers)


@dataclass(frozen=True)
class MatmulPiece(ProductPiece):
    """A matrix product ``output = left @ right``.

    ``rows`` and ``columns`` are the computed block rows and columns of the output, ``None``
    for all. ``options`` are those of the algorithm, ``None`` for its defaults.
    """

    rows: tuple[int, ...] | None = None
    columns: tuple[int, ...] | None = None
    options: Any = None

    operation = "matmul"

    @property
    def contracted(self) -> tuple[int, int]:
        return 1, 0

    @property
    def task(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None, Any]:
        """The computed block rows and block columns, ``depth``, and the options."""
        return *self.lines, self.depth, self.options

    @cached_property
    def lines(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The computed block rows and block columns."""
        rows, columns = map(range, self.output.grid)
        return (
            tuple(rows) if self.rows is None else self.rows,
            tuple(columns) if self.columns is None else self.columns,
        )

    @cached_property
    def part(self) -> MatmulPiece:
        """The computed part, as a whole product of smaller matrices."""
        rows = tuple(self.output.chunks[0][i] for i in self.lines[0])
        columns = tuple(self.output.chunks[1][j] for j in self.lines[1])
        left, right = self.left.chunks[1], self.right.chunks[0]
        if self.depth is not None:
            left = right = tuple(left[k] for k in self.depth)
        return MatmulPiece(
            output=replace(self.output, chunks=(rows, columns)),
            left=replace(self.left, chunks=(rows, left)),
            right=replace(self.right, chunks=(right, columns)),
            inner=self.inner,
        )

    @property
    def summary(self) -> str:
        (m, n), k = self.part.output.shape, self.part.left.shape[1]
        return f"({m}, {k}) @ ({k}, {n}) {self.output.dtype}"

    @property
    def facts(self) -> dict[str, Any]:
        part = self.part
        return {**super().facts, "shape": part.output.shape, "inner": part.left.shape[1]}

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The blocks at the crossings of block rows and columns."""
        return tuple(cartesian(*self.lines))

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """Block rows of the left and block columns of the right operand."""
        rows, columns = self.lines
        right = range(self.right.grid[0]) if self.depth is None else self.depth
        return tuple(cartesian(rows, self.multiplied)), tuple(cartesian(right, columns))

    def restrict(self, wanted: frozenset[Index]) -> MatmulPiece:
        """Keep the block rows and columns with a wanted block."""
        rows, columns = (tuple(sorted({index[axis] for index in wanted})) for axis in (0, 1))
        return replace(self, rows=rows, columns=columns)

    def fault(self) -> str | None:
        left, right, output = self.left, self.right, self.output
        if left.shape[1] != right.shape[0]:
            return f"expected equal inner lengths, got shapes {left.shape} and {right.shape}"
        chunks = left.chunks[0], right.chunks[1]
        if output.chunks != chunks:
            return f"expected chunks {chunks}, got {output.chunks}"
        return None

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask: a product and a sum for each triple of blocks."""
        part = self.part
        (m, n), k = part.output.shape, part.left.shape[1]
        (rows, inner), (_, columns) = part.left.grid, part.output.grid
        blocks = rows, inner, columns
        seconds = dask_product_seconds((m, k, n), blocks, part.output.dtype, ranks, machine)
        return 2 * math.prod(blocks), seconds
