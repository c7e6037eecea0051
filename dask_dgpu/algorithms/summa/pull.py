"""One-sided reads of a step's pieces from the blocks of their owners, into the panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dask_dgpu.algorithms.summa.plan import SummaPlan
from dask_dgpu.algorithms.summa.schedule import Piece, Step
from dask_dgpu.comm.protocol import Comm, Window, Work
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.gemm import factor_dtype

Array = Any
Blocks = Mapping[tuple[int, int], Array]


class Pulls:
    """One-sided reads, if the transport has them: no rank packs or sends."""

    def __init__(self, plan: SummaPlan, window: Window) -> None:
        self.window = window
        self.given = given(plan)

    def send(self, step: Step, operands: tuple[Blocks, Blocks]) -> Work | None:
        """Do nothing: the receiver reads."""
        return None

    def unpack(self, step: Step, under_way: Work | None, place: Callable[[Piece], Array]) -> None:
        """Read a step's pieces into their ``place``."""
        for owner in sorted(step.receives):
            for piece in step.receives[owner]:
                which = self.given[owner, piece.operand, piece.block]
                self.window.get(owner, which, piece.source, place(piece))

    def close(self) -> None:
        """Let the current lane wait until all ranks have read their pieces."""
        self.window.close().wait()


def given(plan: SummaPlan) -> dict[tuple[int, int, tuple[int, int]], int]:
    """Number the offered blocks of each rank: ``(rank, operand, block)`` to position."""
    positions: dict[tuple[int, int, tuple[int, int]], int] = {}
    counts = [0] * plan.size
    for at, operand in enumerate((plan.a, plan.b)):
        rows, columns = operand.grid
        for i in range(rows):
            for j in range(columns):
                owner = operand.owner(i, j)
                positions[owner, at, (i, j)] = counts[owner]
                counts[owner] += 1
    return positions


def open_pulls(
    plan: SummaPlan,
    comm: Comm,
    device: Device,
    steps: list[Step],
    operands: tuple[Blocks, Blocks],
) -> Pulls | None:
    """Offer this rank's blocks to others; None if one-sided reads are not possible.

    Reads do not convert, so both operands need the dtype of the panels.
    """
    uniform = plan.a.dtype == plan.b.dtype == factor_dtype(device.kind, plan.dtype)
    if not (plan.one_sided and uniform and any(step.moves for step in steps)):
        return None
    mine = (key for key in given(plan) if key[0] == comm.rank)
    with device.transferring():
        window = comm.window([operands[operand][block] for _, operand, block in mine])
    return None if window is None else Pulls(plan, window)
