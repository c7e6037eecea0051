"""The piece of a contraction of two arrays of any number of axes.

Products of two matrices by ``matmul`` and ``dot`` are pieces of :mod:`graph_opt.pieces.matmul`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from graph_opt.model.cost import LOOP_SLOWDOWN, Machine
from graph_opt.model.subscripts import REPEATED, Subscripts
from graph_opt.pieces.matmul import Lines, ProductPiece


@dataclass(frozen=True)
class ContractPiece(ProductPiece):
    """A contraction of two arrays; ``loops`` is whether plain Dask multiplies without BLAS."""

    loops: bool = field(default=False, kw_only=True)

    operation = "contract"

    @cached_property
    def task(self) -> tuple[Subscripts, tuple[tuple[str, Lines], ...]]:
        """The letters of all axes, and the blocks along those of which not all need to be read."""
        letters = self.subscripts.output + self.cut
        return self.subscripts, tuple(zip(letters, (*self.lines, self.multiplied), strict=True))

    @property
    def summary(self) -> str:
        left, right = (tuple(map(sum, chunks)) for chunks in self.chunks)
        return f"{self.subscripts} of {left} and {right} {self.output.dtype}"

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "subscripts": str(self.subscripts)}

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
        """Return tasks and seconds of plain Dask, with its own rate of loops."""
        if self.loops:
            machine = replace(machine, flops=machine.flops / LOOP_SLOWDOWN, products=())
        return super().dask_cost(ranks, machine)
