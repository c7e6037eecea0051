"""The operation as gangs know it: piece, plan, run and cost."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from dask_dgpu.operations.operation import Cost, Operation, Request
from graph_opt.model.cost import Machine
from graph_opt.model.layout import ArrayNode
from graph_opt.model.piece import Piece
from tests.operations.normalize.rank import NormalizePlan, normalize_rank


@dataclass(frozen=True)
class NormalizePiece(Piece):
    """All blocks of ``source``, divided by the largest absolute value."""

    source: ArrayNode

    operation = "normalize"

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        return (self.source,)

    @property
    def summary(self) -> str:
        return f"{self.output.shape} {self.output.dtype}"

    def fault(self) -> str | None:
        return None if self.output.chunks == self.source.chunks else "its chunks changed"

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        return 3 * self.output.blocks, self.output.nbytes / machine.memory_bandwidth


def _plan(request: Request) -> NormalizePlan:
    (source,) = request.inputs
    return NormalizePlan(source.layout, request.result.dtype, request.size)


def _cost(plan: NormalizePlan, machine: Machine) -> Cost:
    share = max(plan.layout.share(rank, 8) for rank in range(plan.size))
    details: tuple[tuple[str, Any], ...] = (("ranks", plan.size),)
    return Cost(share / machine.memory_bandwidth, 8, 2 * share, "normalized", details)


NORMALIZE = Operation(plan=_plan, layout=attrgetter("layout"), run=normalize_rank, cost=_cost)
