"""Fourier transforms along chunked axes."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import numpy as np

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
from dask_dgpu.operations.operation import Cost, Operation, Request
from dask_dgpu.operations.value import Value, place
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Chunks, Layout, counted, cuts_of


def _plan(request: Request) -> RankedPencil:
    (source,) = request.inputs

    def put(layout: Layout, chunks: Chunks) -> Layout:
        return place(layout, Value(tuple(map(cuts_of, chunks)), request.task.dtype), request.size)

    planned = (
        plan_on_ranks(plan, source.layout, request.size, request.machine, put, spent=source.spent)
        for plan in _candidates(request.task, source.layout, request.size)
    )
    return min(planned, key=lambda ranked: cost(ranked, request.machine))


def _candidates(plan: PencilPlan, source: Layout, size: int) -> list[PencilPlan]:
    """Return plans to the same chunks, now that the ranks and their blocks are known.

    Along an axis whose blocks are all on one rank anyway, the array is as good as whole.
    """
    found = [plan, _again(plan, plan.input_chunks, size)]
    found += [
        _again(
            plan,
            tuple(c if k != axis else (sum(c),) for k, c in enumerate(plan.input_chunks)),
            size,
        )
        for axis in range(source.ndim)
        if source.grid[axis] > 1 and _on_one_rank(source, axis)
    ]
    return list(dict.fromkeys(found))


def _again(plan: PencilPlan, chunks: Chunks, size: int) -> PencilPlan:
    """Plan the same for an array in other chunks, which each rank can have by itself."""
    transforms = [each for stage in plan.stages for each in stage.transforms]
    again = plan_pencil_fft(
        chunks, plan.dtype, transforms, output_chunks=plan.output_chunks, ranks=size
    )
    return replace(again, input_chunks=plan.input_chunks)


def _on_one_rank(layout: Layout, axis: int) -> bool:
    owners = np.array(layout.owners, np.int64).reshape(layout.grid)
    return bool((owners == owners.take([0], axis)).all())


def _cost(plan: RankedPencil, machine: Machine) -> Cost:
    came = received(plan)
    rounds = sum(move.rounds for move in plan.moves if move is not None)
    stages = len(plan.plan.stages)
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=max(came),
        peak_bytes=peak(plan),
        text=f"transformed in {counted(stages, 'stage')}, moved in {counted(rounds, 'round')}",
        details=(("stages", stages), ("rounds", rounds), ("total_bytes", sum(came))),
    )


FFT = Operation(
    plan=_plan,
    layout=attrgetter("output"),
    run=pencil_fft_rank,
    cost=_cost,
    flops=attrgetter("plan.flops"),
)
