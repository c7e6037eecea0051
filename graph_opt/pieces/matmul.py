"""The piece of a product of two arrays, and that of two matrices, by the ``summa`` algorithm."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product as cartesian
from typing import Any, Self

from graph_opt.model.cost import Machine, dask_product_seconds
from graph_opt.model.layout import ArrayNode, Chunks, Cuts, Index, cuts_of
from graph_opt.model.piece import Piece
from graph_opt.model.subscripts import REPEATED, Subscripts

TERM = re.compile(r"(-[0-9]+){2}$")
"""What follows the name of a product in those of its terms."""

MATRICES = Subscripts("ab", "bc", "ac")
"""The letters of a product of matrices."""

Lines = tuple[int, ...]


@dataclass(frozen=True)
class ProductPiece(Piece):
    """A product of two arrays, by letters for their axes, or one term of it.

    ``kept`` are the computed blocks along each axis of the output, and ``depth`` those along the
    contracted axis that are multiplied, ``None`` for all.
    """

    left: ArrayNode
    right: ArrayNode
    subscripts: Subscripts = MATRICES
    kept: tuple[Lines, ...] | None = None
    depth: Lines | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        return self.left, self.right

    @property
    def title(self) -> str:
        """The first layer, whose name has the operation."""
        return self.layers[0]

    @property
    def cut(self) -> str:
        """The letter of the contracted axis with most blocks, along which ``depth`` counts."""
        blocks = dict(zip(self.subscripts.left, self.left.grid, strict=True))
        return max(self.subscripts.inner, key=blocks.__getitem__)

    @cached_property
    def contracted(self) -> tuple[int, int]:
        """The axis of either operand along which ``depth`` counts."""
        return self.subscripts.left.index(self.cut), self.subscripts.right.index(self.cut)

    @cached_property
    def multiplied(self) -> Lines:
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

    @property
    def lines(self) -> tuple[Lines, ...]:
        """The computed blocks along each axis of the output."""
        whole = tuple(tuple(range(blocks)) for blocks in self.output.grid)
        return whole if self.kept is None else self.kept

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The blocks at the crossings of the kept blocks of all axes."""
        return tuple(cartesian(*self.lines))

    @cached_property
    def _read(self) -> tuple[list[Sequence[int]], ...]:
        """The blocks along each axis of each operand that are read."""
        kept: dict[str, Sequence[int]] = dict(zip(self.subscripts.output, self.lines, strict=True))
        if self.depth is not None:
            kept[self.cut] = self.depth
        letters_of = self.subscripts.left, self.subscripts.right
        return tuple(
            [kept.get(letter, range(count)) for letter, count in zip(some, node.grid, strict=True)]
            for node, some in zip(self.inputs, letters_of, strict=True)
        )

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """The blocks of either operand that computed ones depend on."""
        return tuple(tuple(cartesian(*blocks)) for blocks in self._read)

    @cached_property
    def chunks(self) -> tuple[Chunks, ...]:
        """The sizes of the chunks of each operand that are read."""
        return tuple(
            tuple(
                tuple(sizes[at] for at in along)
                for sizes, along in zip(node.chunks, blocks, strict=True)
            )
            for node, blocks in zip(self.inputs, self._read, strict=True)
        )

    @cached_property
    def _sizes(self) -> dict[str, tuple[int, ...]]:
        """The chunks along each letter, in the computed part; the left operand's of both."""
        left, right = self.chunks
        return {
            **dict(zip(self.subscripts.right, right, strict=True)),
            **dict(zip(self.subscripts.left, left, strict=True)),
        }

    def length(self, letters: str) -> int:
        """Return the product of the lengths of some letters, in the computed part."""
        return math.prod(sum(self._sizes[letter]) for letter in letters)

    @property
    def facts(self) -> dict[str, Any]:
        shape = tuple(map(self.length, self.subscripts.output))
        return {**super().facts, "shape": shape, "inner": self.length(self.subscripts.inner)}

    def restrict(self, wanted: frozenset[Index]) -> Self:
        """Keep, along each axis, the blocks with a wanted one."""
        axes = range(self.output.ndim)
        kept = tuple(tuple(sorted({index[axis] for index in wanted})) for axis in axes)
        return replace(self, kept=kept)

    @property
    def fits(self) -> bool:
        """Whether the chunks of operands and output agree."""
        chunks: dict[str, tuple[int, ...]] = {}
        nodes = self.left, self.right, self.output
        letters = self.subscripts.left, self.subscripts.right, self.subscripts.output
        return all(
            sizes == ((1,) if letter == REPEATED else chunks.setdefault(letter, sizes))
            for node, some in zip(nodes, letters, strict=True)
            for letter, sizes in zip(some, node.chunks, strict=True)
        )

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask: a product and a sum for each pair of blocks."""
        groups = self.subscripts.rows, self.subscripts.inner, self.subscripts.columns
        blocks = {letter: len(sizes) for letter, sizes in self._sizes.items()}
        m, k, n = map(self.length, groups)
        rows, inner, columns = (math.prod(blocks[letter] for letter in group) for group in groups)
        tasks = 2 * math.prod(blocks[letter] for letter in blocks.keys() - {REPEATED})
        terms = (m, k, n), (rows, inner, columns), self.output.dtype, ranks, machine
        batch = self.length(self.subscripts.batch)
        return tasks, dask_product_seconds(*terms, batch=batch, tasks=tasks)


@dataclass(frozen=True)
class MatmulPiece(ProductPiece):
    """A matrix product ``output = left @ right``.

    ``options`` are those of the algorithm, ``None`` for its defaults.
    """

    options: Any = field(default=None, kw_only=True)

    operation = "matmul"

    @property
    def task(self) -> tuple[Any, ...]:
        """The computed block rows and block columns, ``depth``, and the options."""
        return *self.lines, self.depth, self.options

    @property
    def summary(self) -> str:
        m, k, n = map(self.length, "abc")
        return f"({m}, {k}) @ ({k}, {n}) {self.output.dtype}"
