"""A plan on ranks: the layout of the blocks before and after every exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np

from dask_dgpu.algorithms.pencil_fft.plan import Chunks, PencilPlan, Stage, shape_of
from dask_dgpu.algorithms.redistribute import (
    LEAST,
    RedistributePlan,
    buffer_bytes,
    plan_redistribute,
    traffic,
    workspace,
)
from dask_dgpu.algorithms.redistribute import cost as exchange_cost
from graph_opt.model.cost import TRANSFORM_SHARE, Machine
from graph_opt.model.layout import Layout, cuts_of

Place = Callable[[Layout, Chunks], Layout]
"""Returns the layout of an array with new chunks, given its layout."""


@dataclass(frozen=True)
class RankedPencil:
    """The plan of a transform on ``size`` ranks.

    Parameters
    ----------
    plan : PencilPlan
        Stages and exchanges.
    size : int
        Number of ranks.
    source : Layout
        The layout of the input.
    layouts : tuple of Layout
        Layouts of the input of each stage, and of the output.
    moves : tuple of RedistributePlan or None
        The redistributions into each of ``layouts``; ``None`` if blocks are only cropped.
    spent : bool, optional
        Whether the input may be freed after the first exchange.
    """

    plan: PencilPlan
    size: int
    source: Layout
    layouts: tuple[Layout, ...]
    moves: tuple[RedistributePlan | None, ...]
    spent: bool = False

    @property
    def output(self) -> Layout:
        """The layout of the output."""
        return self.layouts[-1]

    @property
    def steps(self) -> int:
        """Number of stages and of rounds of all exchanges, for progress."""
        return len(self.plan.stages) + sum(move.rounds for move in self.moves if move is not None)


def plan_on_ranks(
    plan: PencilPlan,
    source: Layout,
    size: int,
    machine: Machine,
    place: Place,
    *,
    spent: bool = False,
) -> RankedPencil:
    """Plan every exchange of a transform; the same on every rank.

    ``place(layout, chunks)`` returns the layout of the array with new chunks. If the input is
    ``spent``, ranks may free it.

    Raises
    ------
    ValueError
        If ``source`` does not have the chunks of the plan's input.

    Notes
    -----
    Unless its input is spent, a rank keeps it to the end. During the first exchange it has only the
    target blocks in addition, so buffers may take another share of the array; later exchanges have
    an intermediate share too.

    A stage transforms slices as the exchange after it packs them. If one slice of each of two
    rounds does not fit in the buffers, for example because a block is nearly a whole share, the
    stage transforms whole blocks first: that takes one share, and slices would take two.
    """
    if source.cuts != tuple(map(cuts_of, plan.input_chunks)):
        raise ValueError(f"expected source with chunks {plan.input_chunks}, got cuts {source.cuts}")
    first = plan.stages[0].chunks if plan.stages else plan.output_chunks
    present = cropped(source, shape_of(first))
    layouts: list[Layout] = []
    moves: list[RedistributePlan | None] = []
    before: Stage | None = None
    for exchange in plan.exchanges:
        chunks = exchange.target
        move = None
        if present.cuts != tuple(map(cuts_of, chunks)):
            target, share = place(present, chunks), exchange.nbytes // size
            if before is not None:
                spare = share if spent or not any(moves) else 0
                move = plan_redistribute(
                    present,
                    target,
                    exchange.dtype,
                    size,
                    limit=buffer_bytes(share, spare, machine, transformed=True),
                    whole_axes=_axes(before),
                    transformed=True,
                )
            if move is None or workspace(move) > LEAST + spare:
                spare = share if spent or before is None else 0
                limit = buffer_bytes(share, spare, machine)
                move = plan_redistribute(present, target, exchange.dtype, size, limit=limit)
            present = move.target
        moves.append(move)
        layouts.append(present)
        if len(layouts) <= len(plan.stages):
            before = plan.stages[len(layouts) - 1]
            present = replace(present, cuts=tuple(map(cuts_of, before.output_chunks)))
    return RankedPencil(plan, size, source, tuple(layouts), tuple(moves), spent)


def _axes(stage: Stage) -> tuple[int, ...]:
    return tuple(transform.axis for transform in stage.transforms)


def cropped(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Crop a layout to a shape; blocks at the end become shorter."""
    cuts = tuple(
        along
        if length == along[-1]
        else (0, *(min(hi, length) for lo, hi in pairwise(along) if lo < length))
        for along, length in zip(layout.cuts, shape, strict=True)
    )
    owners = np.array(layout.owners, np.int64).reshape(layout.grid)
    kept = owners[tuple(slice(0, len(along) - 1) for along in cuts)]
    return Layout(cuts, tuple(kept.reshape(-1).tolist()))


def cost(ranked: RankedPencil, machine: Machine) -> float:
    """Predict the seconds of a plan on its ranks: exchanges, and transforms between them."""
    seconds = sum(exchange_cost(move, machine) for move in ranked.moves if move is not None)
    work = ranked.plan.flops / (TRANSFORM_SHARE * machine.flops)
    return seconds + work * _most_loaded(ranked)


def _most_loaded(ranked: RankedPencil) -> float:
    """Return the busiest rank's share of the work, in the least even stage."""
    shares = [1.0 / ranked.size]
    for layout, _stage in zip(ranked.layouts, ranked.plan.stages, strict=False):
        total = prod(layout.shape)
        if total:
            most = max(layout.share(rank, 1) for rank in range(ranked.size))
            shares.append(most / total)
    return max(shares)


def peak(ranked: RankedPencil) -> int:
    """Return the most bytes on a rank: input, intermediate blocks and buffers."""
    plan, worst = ranked.plan, 0
    itemsizes = [np.dtype(exchange.dtype).itemsize for exchange in plan.exchanges]
    for rank in range(ranked.size):
        kept = ranked.source.share(rank, np.dtype(plan.dtype).itemsize)
        intermediate = 0  # bytes of the result of earlier exchanges
        for at, (move, layout, itemsize) in enumerate(
            zip(ranked.moves, ranked.layouts, itemsizes, strict=True)
        ):
            made = layout.share(rank, itemsize)
            if move is not None:
                if at and not move.transformed:  # the stage before transformed whole blocks
                    whole = move.source.share(rank, itemsize)
                    worst = max(worst, kept + intermediate + whole)
                    intermediate, kept = whole, 0 if ranked.spent else kept
                worst = max(worst, kept + intermediate + made + workspace(move))
                intermediate, kept = made, 0 if ranked.spent else kept
        result = ranked.output.share(rank, np.dtype(plan.output_dtype).itemsize)
        worst = max(worst, kept + intermediate + result)
    return worst


def received(ranked: RankedPencil) -> list[int]:
    """Return the bytes that each rank receives from others."""
    total = np.zeros(ranked.size, np.int64)
    for move in ranked.moves:
        if move is not None:
            total += traffic(move).sum(axis=0)
    return total.tolist()
