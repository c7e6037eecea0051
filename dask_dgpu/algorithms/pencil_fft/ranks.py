"""A plan on ranks: where the blocks are before and after every exchange."""

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
"""Gives the blocks of an array in new chunks their ranks, given where it is."""


@dataclass(frozen=True)
class RankedPencil:
    """The plan of a transform on so many ranks.

    Parameters
    ----------
    plan : PencilPlan
        What is done.
    size : int
        Number of ranks.
    source : Layout
        Where the input is.
    layouts : tuple of Layout
        Where the input of each stage is, and the output at the end.
    moves : tuple of RedistributePlan or None
        How blocks get into each of ``layouts``, from the input or from what the stage
        before has made; ``None`` where each stays as it is, but for a crop.
    spent : bool, optional
        Whether the blocks of the input may be let go of once the first exchange has read
        them.
    """

    plan: PencilPlan
    size: int
    source: Layout
    layouts: tuple[Layout, ...]
    moves: tuple[RedistributePlan | None, ...]
    spent: bool = False

    @property
    def output(self) -> Layout:
        """Where the output is."""
        return self.layouts[-1]

    @property
    def steps(self) -> int:
        """Rounds of all exchanges, and stages: what progress counts."""
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
    """Plan every exchange of a transform.

    Parameters
    ----------
    plan : PencilPlan
        What is done.
    source : Layout
        Where the blocks of the input are.
    size : int
        Number of ranks.
    machine : Machine
        Rates of a rank.
    place : callable
        ``place(layout, chunks)`` gives the blocks of an array their ranks when it gets
        new chunks.
    spent : bool, optional
        Whether ranks may let go of the input.

    Returns
    -------
    RankedPencil
        The same on every rank.

    Raises
    ------
    ValueError
        When ``source`` is not cut as the plan's input is.

    Notes
    -----
    A rank holds its blocks of the input to the end, unless they are spent. In
    the first exchange it holds nothing else but the blocks it fills, so buffers may
    take a share of the array more; in later ones it holds a share in between too.

    A stage is done slice by slice as the exchange after it packs them. Where one slice
    of each of two rounds takes more than buffers may, as where a block is nearly all of
    a share and whole along all its long axes, all is transformed first: that takes a
    share, and slices would take two.
    """
    if source.cuts != tuple(map(cuts_of, plan.input_chunks)):
        raise ValueError(f"source has cuts {source.cuts}, the plan has chunks {plan.input_chunks}")
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
    """Leave out what is beyond a shape; blocks that end there are shorter."""
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
    """Share of the work that the busiest rank has, in the stage where that is most."""
    shares = [1.0 / ranked.size]
    for layout, _stage in zip(ranked.layouts, ranked.plan.stages, strict=False):
        total = prod(layout.shape)
        if total:
            most = max(layout.share(rank, 1) for rank in range(ranked.size))
            shares.append(most / total)
    return max(shares)


def peak(ranked: RankedPencil) -> int:
    """Return the most bytes that a rank holds: input, what is made of it, and buffers."""
    plan, worst = ranked.plan, 0
    itemsizes = [np.dtype(exchange.dtype).itemsize for exchange in plan.exchanges]
    for rank in range(ranked.size):
        kept = ranked.source.share(rank, np.dtype(plan.dtype).itemsize)
        held = 0  # of what earlier exchanges have made
        for at, (move, layout, itemsize) in enumerate(
            zip(ranked.moves, ranked.layouts, itemsizes, strict=True)
        ):
            made = layout.share(rank, itemsize)
            if move is not None:
                if at and not move.transformed:  # the stage before was done at once
                    whole = move.source.share(rank, itemsize)
                    worst = max(worst, kept + held + whole)
                    held, kept = whole, 0 if ranked.spent else kept
                worst = max(worst, kept + held + made + workspace(move))
                held, kept = made, 0 if ranked.spent else kept
        result = ranked.output.share(rank, np.dtype(plan.output_dtype).itemsize)
        worst = max(worst, kept + held + result)
    return worst


def received(ranked: RankedPencil) -> list[int]:
    """Return the bytes that each rank receives from others."""
    total = [0] * ranked.size
    for move in ranked.moves:
        if move is not None:
            for sender, row in enumerate(traffic(move)):
                for rank, nbytes in enumerate(row):
                    total[rank] += nbytes if rank != sender else 0
    return total
