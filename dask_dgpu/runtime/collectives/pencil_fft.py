"""Fourier transforms along chunked axes."""

from __future__ import annotations

from collections.abc import Sequence

from dask_dgpu.algorithms.pencil_fft import (
    PencilPlan,
    RankedPencil,
    cost,
    peak,
    pencil_fft_rank,
    plan_on_ranks,
    plan_pencil_fft,
    received,
)
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.runtime.collectives.algorithm import Algorithm, Cost, Report
from dask_dgpu.runtime.collectives.place import place
from dask_dgpu.runtime.value import Blocks, Placed, Value
from graph_opt.cost import Machine
from graph_opt.layout import Layout, cuts_of
from graph_opt.node import Chunks


def _plan(
    inputs: Sequence[Placed],
    result: Value,
    task: PencilPlan,
    size: int,
    machine: Machine,
    room: float | None,
) -> RankedPencil:
    (source,) = inputs

    def put(layout: Layout, chunks: Chunks) -> Layout:
        return place(layout, Value(tuple(map(cuts_of, chunks)), task.dtype), size)

    return plan_on_ranks(_for_ranks(task, size), source.layout, size, machine, put)


def _for_ranks(plan: PencilPlan, size: int) -> PencilPlan:
    """Return a plan to the same chunks that moves less, now that the ranks are counted."""
    transforms = [each for stage in plan.stages for each in stage.transforms]
    again = plan_pencil_fft(
        plan.input_chunks,
        plan.dtype,
        transforms,
        output_chunks=plan.output_chunks,
        ranks=size,
    )
    return min((plan, again), key=lambda one: one.moved(size))


def _layout(plan: RankedPencil) -> Layout:
    return plan.output


def _run(
    plan: RankedPencil, comm: Comm, device: Device, inputs: Sequence[Blocks], report: Report
) -> Blocks:
    (blocks,) = inputs
    return pencil_fft_rank(plan, comm, device, blocks, report)


def _cost(plan: RankedPencil, machine: Machine) -> Cost:
    came = received(plan)
    rounds = sum(move.rounds for move in plan.moves if move is not None)
    stages = len(plan.plan.stages)
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=max(came),
        peak_bytes=peak(plan),
        text=f"transformed in {stages} {'stage' if stages == 1 else 'stages'}, "
        f"moved in {rounds} {'round' if rounds == 1 else 'rounds'}",
        details=(("stages", stages), ("rounds", rounds), ("total_bytes", sum(came))),
    )


PENCIL_FFT = Algorithm(_plan, _layout, _run, _cost)
