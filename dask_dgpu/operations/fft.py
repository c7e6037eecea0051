"""Fourier transforms along chunked axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import add, attrgetter, sub

import numpy as np

from dask_dgpu.algorithms.pencil_fft.plan import PencilPlan, plan_pencil_fft
from dask_dgpu.algorithms.pencil_fft.rank import (
    RankedPencil,
    cost,
    peak,
    pencil_fft_rank,
    plan_on_ranks,
    received,
)
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Blocks, Cost, Operation, Progress, Request, Value, place
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Bare, Chunks, Cuts, Index, Layout, counted, cuts_of


@dataclass(frozen=True)
class PartTransform(Bare):
    """The transform of a part of an array, by a plan that knows nothing else.

    ``first`` are the indices of its first blocks of source and output, and ``cuts`` those of the
    whole output.
    """

    ranked: RankedPencil
    first: tuple[Index, Index]
    cuts: tuple[Cuts, ...]


def _plan(request: Request) -> PartTransform:
    (source,), (plan, first, begin) = request.inputs, request.task
    layout = _part(source.layout, first, tuple(map(len, plan.input_chunks)))

    def put(layout: Layout, chunks: Chunks) -> Layout:
        return place(layout, Value(tuple(map(cuts_of, chunks)), plan.dtype), request.size)

    def planned(*, roomy: bool) -> list[RankedPencil]:
        terms = layout, request.size, request.machine, put
        candidates = _candidates(plan, layout, request.size)
        return [
            plan_on_ranks(candidate, *terms, spent=source.spent, roomy=roomy)
            for candidate in candidates
        ]

    fitting = planned(roomy=True)
    ranked = min(fitting, key=lambda each: cost(each, request.machine))
    if request.excess(peak(ranked)):
        fitting += planned(roomy=False)
        ranked = min(
            fitting, key=lambda each: (request.excess(peak(each)), cost(each, request.machine))
        )
    return PartTransform(ranked, (first, begin), request.result.cuts)


def _part(layout: Layout, first: Index, counts: Index) -> Layout:
    """Return the layout of some blocks along each axis."""
    owners = np.array(layout.owners, np.int64).reshape(layout.grid)
    spans = [slice(at, at + count) for at, count in zip(first, counts, strict=True)]
    sizes = (along[span] for along, span in zip(layout.lengths, spans, strict=True))
    return Layout(tuple(map(cuts_of, sizes)), tuple(owners[tuple(spans)].reshape(-1).tolist()))


def _layout(part: PartTransform) -> Layout:
    output, (_, first) = part.ranked.output, part.first
    spans = (slice(at, at + count) for at, count in zip(first, output.grid, strict=True))
    return output.within(part.cuts, tuple(spans))


def _run(
    part: PartTransform, comm: Comm, device: Device, blocks: Blocks, *, progress: Progress
) -> Blocks:
    (first, begin), grid = part.first, part.ranked.source.grid
    given: Blocks = {}
    for index in list(blocks):
        place = tuple(map(sub, index, first))
        if all(0 <= at < count for at, count in zip(place, grid, strict=True)):
            given[place] = blocks.pop(index) if part.ranked.spent else blocks[index]
    shares = pencil_fft_rank(part.ranked, comm, device, given, progress)
    return {tuple(map(add, index, begin)): block for index, block in shares.items()}


def _candidates(plan: PencilPlan, source: Layout, size: int) -> list[PencilPlan]:
    """Return plans to the same chunks, now that the ranks and their blocks are known.

    Along an axis whose blocks are all on one rank anyway, the array is as good as whole.
    """
    plans = [plan, _again(plan, plan.input_chunks, size)]
    plans += [
        _again(
            plan,
            tuple(c if k != axis else (sum(c),) for k, c in enumerate(plan.input_chunks)),
            size,
        )
        for axis in range(source.ndim)
        if source.grid[axis] > 1 and _on_one_rank(source, axis)
    ]
    return list(dict.fromkeys(plans))


def _again(plan: PencilPlan, chunks: Chunks, size: int) -> PencilPlan:
    """Plan the same for an array in other chunks, which each rank can have by itself."""
    transforms = [transform for stage in plan.stages for transform in stage.transforms]
    again = plan_pencil_fft(
        chunks, plan.dtype, transforms, output_chunks=plan.output_chunks, ranks=size
    )
    return replace(again, input_chunks=plan.input_chunks)


def _on_one_rank(layout: Layout, axis: int) -> bool:
    owners = np.array(layout.owners, np.int64).reshape(layout.grid)
    return bool((owners == owners.take([0], axis)).all())


def _cost(part: PartTransform, machine: Machine) -> Cost:
    plan = part.ranked
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
    layout=_layout,
    run=_run,
    cost=_cost,
    flops=attrgetter("ranked.plan.flops"),
)
