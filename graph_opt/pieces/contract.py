"""The piece of a contraction of two arrays of any number of axes.

Products of two matrices by ``matmul`` and ``dot`` are pieces of :mod:`graph_opt.pieces.matmul`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product as cartesian
from typing import Any

from graph_opt.model.cost import LOOP_SLOWDOWN, Machine, dask_product_seconds
from graph_opt.model.layout import Chunks, Index
from graph_opt.model.subscripts import REPEATED, Subscripts
from graph_opt.pieces.matmul import ProductPiece

Axes = tuple[int, ...]


@dataclass(frozen=True)
class ContractPiece(ProductPiece):
    """A contraction of two arrays, by letters for their axes.

    ``kept`` are the computed blocks along each axis of the output, ``None`` for all. ``loops`` is
    whether plain Dask multiplies blocks without BLAS.
    """

    subscripts: Subscripts
    kept: tuple[Axes, ...] | None = None
    loops: bool = field(default=False, kw_only=True)

    operation = "contract"

    @cached_property
    def task(self) -> tuple[Subscripts, tuple[tuple[str, Axes], ...]]:
        """The letters of all axes, and the blocks along those of which not all need to be read."""
        letters = self.subscripts.output + self._cut
        return self.subscripts, tuple(zip(letters, (*self._lines, self.multiplied), strict=True))

    @cached_property
    def contracted(self) -> tuple[int, int]:
        return self.subscripts.left.index(self._cut), self.subscripts.right.index(self._cut)

    @property
    def _cut(self) -> str:
        """The letter of the contracted axis with most blocks."""
        blocks = dict(zip(self.subscripts.left, self.left.grid, strict=True))
        return max(self.subscripts.inner, key=blocks.__getitem__)

    @property
    def _lines(self) -> tuple[Axes, ...]:
        """The computed blocks along each axis of the output."""
        whole = tuple(tuple(range(blocks)) for blocks in self.output.grid)
        return whole if self.kept is None else self.kept

    @property
    def summary(self) -> str:
        left, right = (tuple(map(sum, chunks)) for chunks in self._read)
        return f"{self.subscripts} of {left} and {right} {self.output.dtype}"

    @property
    def facts(self) -> dict[str, Any]:
        computed = tuple(self._lengths[letter] for letter in self.subscripts.output)
        extra = {"shape": computed, "subscripts": str(self.subscripts)}
        return {**super().facts, **extra, "inner": self._product(self.subscripts.inner)}

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The blocks at the crossings of the kept blocks of all axes."""
        return tuple(cartesian(*self._lines))

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """The blocks of either operand that computed ones depend on."""
        left, right = (tuple(cartesian(*blocks)) for blocks in self._blocks())
        return left, right

    def _blocks(self) -> Iterator[list[Sequence[int]]]:
        """Yield the blocks along each axis of each operand that are read."""
        kept, letters_of = dict(self.task[1]), (self.subscripts.left, self.subscripts.right)
        for node, letters in zip(self.inputs, letters_of, strict=True):
            grid = zip(letters, node.grid, strict=True)
            yield [kept.get(letter, range(blocks)) for letter, blocks in grid]

    @cached_property
    def _read(self) -> tuple[Chunks, ...]:
        """The sizes of the chunks of each operand that are read."""
        return tuple(
            tuple(
                tuple(sizes[at] for at in along)
                for sizes, along in zip(node.chunks, blocks, strict=True)
            )
            for node, blocks in zip(self.inputs, self._blocks(), strict=True)
        )

    @cached_property
    def _lengths(self) -> dict[str, int]:
        """The length of each letter, in the computed part."""
        letters = self.subscripts.left + self.subscripts.right
        chunks = (sizes for operand in self._read for sizes in operand)
        return dict(zip(letters, map(sum, chunks), strict=True))

    def _product(self, letters: str) -> int:
        return math.prod(self._lengths[letter] for letter in letters)

    def restrict(self, wanted: frozenset[Index]) -> ContractPiece:
        """Keep, along each axis, the blocks with a wanted one."""
        axes = range(self.output.ndim)
        kept = tuple(tuple(sorted({index[axis] for index in wanted})) for axis in axes)
        return replace(self, kept=kept)

    def fault(self) -> str | None:
        chunks: dict[str, tuple[int, ...]] = {}
        names = "left", "right", "output"
        nodes = self.left, self.right, self.output
        letters = self.subscripts.left, self.subscripts.right, self.subscripts.output
        for name, node, some in zip(names, nodes, letters, strict=True):
            if len(some) != node.ndim:
                return f"expected {len(some)} axes of {name}, got {node.ndim}"
            for letter, sizes in zip(some, node.chunks, strict=True):
                expected = (1,) if letter == REPEATED else chunks.setdefault(letter, sizes)
                if sizes != expected:
                    return f"expected chunks {expected} of {letter} in {name}, got {sizes}"
        return None

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask: a product and a sum for each pair of blocks."""
        parts, letters = self.subscripts, self.subscripts.left + self.subscripts.right
        chunks = (sizes for operand in self._read for sizes in operand)
        grid = dict(zip(letters, map(len, chunks), strict=True))
        groups = parts.rows, parts.inner, parts.columns
        m, k, n = map(self._product, groups)
        rows, inner, columns = (math.prod(grid[letter] for letter in group) for group in groups)
        tasks = 2 * math.prod(grid[letter] for letter in set(letters) - {REPEATED})
        if self.loops:
            machine = replace(machine, flops=machine.flops / LOOP_SLOWDOWN, products=())
        terms = (m, k, n), (rows, inner, columns), self.output.dtype, ranks, machine
        batch = self._product(parts.batch)
        return tasks, dask_product_seconds(*terms, batch=batch, tasks=tasks)
