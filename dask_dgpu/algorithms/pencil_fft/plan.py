"""The plan of a transform along several axes: in chunks, and on ranks with its cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from dask_dgpu.algorithms.redistribute import (
    LEAST,
    RedistributePlan,
    buffer_bytes,
    plan_redistribute,
    traffic,
    workspace,
)
from dask_dgpu.algorithms.redistribute import cost as exchange_cost
from dask_dgpu.kernels.fft import Transform
from graph_opt.model.cost import TRANSFORM_SHARE, Machine
from graph_opt.model.layout import Layout, cuts_of, even_spans

Chunks = tuple[tuple[int, ...], ...]

Place = Callable[[Layout, Chunks], Layout]
"""Returns the layout of an array with new chunks, given its layout."""


@dataclass(frozen=True)
class Stage:
    """Transforms of each block by itself.

    Parameters
    ----------
    chunks : tuple of tuple of int
        Chunks of the input; a single one along each transformed axis.
    transforms : tuple of Transform
        In their order.
    """

    chunks: Chunks
    transforms: tuple[Transform, ...]

    @property
    def output_chunks(self) -> Chunks:
        """Chunks of the result."""
        return transformed(self.chunks, self.transforms)


@dataclass(frozen=True)
class Exchange:
    """A change of chunks between two stages.

    Parameters
    ----------
    source, target : tuple of tuple of int
        Chunks before and after. A shorter ``target`` crops the end of an axis.
    dtype : str
        The dtype of the array.
    """

    source: Chunks
    target: Chunks
    dtype: str

    @property
    def local(self) -> bool:
        """Whether every block stays as it is, or is only cropped."""
        return all(
            len(new) <= len(old)
            and new[:-1] == old[: len(new) - 1]
            and new[-1] <= old[len(new) - 1]
            for old, new in zip(self.source, self.target, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the array after the exchange."""
        return math.prod(shape_of(self.target)) * np.dtype(self.dtype).itemsize

    def moved(self, ranks: int) -> float:
        """Return the expected bytes that all ranks together send.

        Ranks form a mesh over the blocks. Nothing crosses a cut of both layouts, so there are
        groups of ranks that exchange nothing with each other. In a group of ``g`` each rank keeps 1
        / ``g`` of its elements. Fewer ranks than blocks are assumed to have a mesh of the same
        proportions.
        """
        if self.local:
            return 0.0
        pairs = zip(self.source, self.target, strict=True)
        kept = math.prod(len({*cuts_of(old[:-1])} & {*cuts_of(new[:-1])}) for old, new in pairs)
        blocks = math.prod(map(len, self.target))
        groups = min(ranks, blocks) ** (math.log(kept) / math.log(blocks)) if kept > 1 else 1
        return self.nbytes * (1 - groups / ranks)


@dataclass(frozen=True)
class PencilPlan:
    """The plan of a transform along some axes of an array.

    Before each stage and after the last there is an exchange, if chunks differ.

    Parameters
    ----------
    input_chunks : tuple of tuple of int
        Chunks of the input.
    dtype : str
        The dtype of the input.
    stages : tuple of Stage
        In their order.
    output_chunks : tuple of tuple of int
        Chunks of the output.
    output_dtype : str
        The dtype of the output, as in NumPy.
    """

    input_chunks: Chunks
    dtype: str
    stages: tuple[Stage, ...]
    output_chunks: Chunks
    output_dtype: str

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges before each stage and after the last, even if local."""
        chunks, dtype, found = self.input_chunks, self.dtype, []
        for stage in self.stages:
            found.append(Exchange(chunks, stage.chunks, dtype))
            chunks, dtype = stage.output_chunks, result_dtype(dtype, stage.transforms)
        return (*found, Exchange(chunks, self.output_chunks, dtype))

    def moved(self, ranks: int) -> float:
        """Return the expected bytes that all ranks together send."""
        return sum(exchange.moved(ranks) for exchange in self.exchanges)

    @property
    def flops(self) -> float:
        """Floating-point operations, by the usual estimate."""
        total = 0.0
        for stage in self.stages:
            shape = list(shape_of(stage.chunks))
            for transform in stage.transforms:
                lines = math.prod(shape[: transform.axis] + shape[transform.axis + 1 :])
                total += lines * transform.flops
                shape[transform.axis] = transform.output_length
        return total


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
    present = cropped(source, shape_of(plan.exchanges[0].target))
    layouts: list[Layout] = []
    moves: list[RedistributePlan | None] = []
    for exchange, stage in zip(plan.exchanges, (None, *plan.stages), strict=True):
        if stage is not None:
            present = replace(present, cuts=tuple(map(cuts_of, stage.output_chunks)))
        move = None
        if present.cuts != tuple(map(cuts_of, exchange.target)):
            ends = present, place(present, exchange.target), exchange.dtype, size
            share, spare = exchange.nbytes // size, 0
            if stage is not None:
                spare = share if spent or not any(moves) else 0
                limit = buffer_bytes(share, spare, machine, transformed=True)
                axes = tuple(each.axis for each in stage.transforms)
                move = plan_redistribute(*ends, limit=limit, whole_axes=axes, transformed=True)
            if move is None or workspace(move) > LEAST + spare:
                spare = share if spent or stage is None else 0
                move = plan_redistribute(*ends, limit=buffer_bytes(share, spare, machine))
            present = move.target
        moves.append(move)
        layouts.append(present)
    return RankedPencil(plan, size, source, tuple(layouts), tuple(moves), spent)


def cropped(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Crop a layout to a shape; blocks at the end become shorter."""
    cuts = tuple(
        along
        if length == along[-1]
        else (0, *(min(hi, length) for lo, hi in itertools.pairwise(along) if lo < length))
        for along, length in zip(layout.cuts, shape, strict=True)
    )
    owners = np.array(layout.owners, np.int64).reshape(layout.grid)
    kept = owners[tuple(slice(0, len(along) - 1) for along in cuts)]
    return Layout(cuts, tuple(kept.reshape(-1).tolist()))


def cost(ranked: RankedPencil, machine: Machine) -> float:
    """Predict the seconds of a plan on its ranks: exchanges, and transforms between them."""
    seconds = sum(exchange_cost(move, machine) for move in ranked.moves if move is not None)
    work = ranked.plan.flops / (TRANSFORM_SHARE * machine.flops)
    # the busiest rank's share of the work, in the least even stage
    shares = [1.0 / ranked.size]
    for layout in ranked.layouts[:-1]:
        if total := math.prod(layout.shape):
            shares += (layout.share(rank, 1) / total for rank in range(ranked.size))
    return seconds + work * max(shares)


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
    moved = (traffic(move).sum(axis=0) for move in ranked.moves if move is not None)
    return sum(moved, np.zeros(ranked.size, np.int64)).tolist()


def even_chunks(length: int, parts: int) -> tuple[int, ...]:
    """Return up to ``parts`` chunks of an axis, with lengths that differ by at most one."""
    return tuple(hi - lo for lo, hi in even_spans(0, length, max(1, min(parts, length))))


def shape_of(chunks: Chunks) -> tuple[int, ...]:
    """Return the length of each axis."""
    return tuple(sum(sizes) for sizes in chunks)


def transformed(chunks: Chunks, transforms: Iterable[Transform]) -> Chunks:
    """Return the chunks after some transforms."""
    lengths = {transform.axis: transform.output_length for transform in transforms}
    return tuple(
        (lengths[axis],) if axis in lengths else sizes for axis, sizes in enumerate(chunks)
    )


def result_dtype(dtype: str, transforms: Iterable[Transform]) -> str:
    """Return the dtype after some transforms, as in NumPy."""
    for transform in transforms:
        dtype = transform.output_dtype(dtype)
    return dtype
