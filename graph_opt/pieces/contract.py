"""The piece of a contraction of two arrays of any number of axes.

Products of two matrices by ``matmul`` and ``dot`` are pieces of :mod:`graph_opt.pieces.matmul`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from graph_opt.model.cost import LOOP_SLOWDOWN, Machine
from graph_opt.model.subscripts import Subscripts
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

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask, with its own rate of loops."""
        if self.loops:
            machine = replace(machine, flops=machine.flops / LOOP_SLOWDOWN, products=())
        return super().dask_cost(ranks, machine)
