"""The operation as gangs know it: piece, plan, run and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Cost, Operation, Report
from dask_dgpu.operations.value import Blocks, Placed, Value
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout
from graph_opt.model.node import ArrayNode
from graph_opt.pieces.piece import Piece
from tests.operations.normalize.rank import normalize_rank


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


@dataclass(frozen=True)
class NormalizePlan:
    """Every block stays on its rank."""

    layout: Layout
    dtype: str
    size: int


def _plan(
    inputs: Sequence[Placed],
    result: Value,
    task: None,
    size: int,
    machine: Machine,
    room: float | None,
) -> NormalizePlan:
    (source,) = inputs
    return NormalizePlan(source.layout, result.dtype, size)


def _run(
    plan: NormalizePlan, comm: Comm, device: Device, inputs: Sequence[Blocks], report: Report
) -> Blocks:
    (blocks,) = inputs
    return normalize_rank(comm, device, blocks, plan.dtype, report)


def _cost(plan: NormalizePlan, machine: Machine) -> Cost:
    share = max(plan.layout.share(rank, 8) for rank in range(plan.size))
    details: tuple[tuple[str, Any], ...] = (("ranks", plan.size),)
    return Cost(share / machine.memory_bandwidth, 8, 2 * share, "normalized", details)


NORMALIZE = Operation(_plan, lambda plan: plan.layout, _run, _cost)
