"""A plan on ranks: the layouts before and after every exchange, the cost, the rank program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_dgpu.algorithms import Array, Blocks, Progress, no_progress
from dask_dgpu.algorithms.pencil_fft.plan import PencilPlan, Stage, overwrites, shape_of
from dask_dgpu.algorithms.redistribute.plan import (
    LEAST,
    RedistributePlan,
    buffer_bytes,
    plan_redistribute,
    traffic,
    workspace,
)
from dask_dgpu.algorithms.redistribute.plan import cost as exchange_cost
from dask_dgpu.algorithms.redistribute.rank import Read, redistribute_rank
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.device.host import KEPT_BYTES
from dask_dgpu.kernels.fft import transform
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Chunks, Index, Layout, cuts_of

SLICE = LEAST // 2
"""Bytes of a slice of a block that a ``sliced`` stage transforms; its library takes as much."""


def slice_of(stage: Stage, shape: Sequence[int], itemsize: int) -> tuple[int, int, int]:
    """Return the axis along which slices of a block are cut, their length and their bytes."""
    whole = {transform.axis for transform in stage.transforms}
    axis = max(set(range(len(shape))) - whole, key=lambda k: shape[k])
    nbytes = math.prod(shape[:axis]) * math.prod(shape[axis + 1 :]) * itemsize
    length = max(1, SLICE // max(1, nbytes))
    return axis, length, length * nbytes


def transform_slices(stage: Stage, blocks: Blocks) -> dict[Index, Array]:
    """Transform blocks in place, a slice at a time, so that no library has a whole block beside."""
    for block in blocks.values():
        axis, length, _ = slice_of(stage, block.shape, block.itemsize)
        for start in range(0, block.shape[axis], length):
            part = block[(*[slice(None)] * axis, slice(start, start + length))]
            part[...] = transform(part, stage.transforms)
    return dict(blocks)


Place = Callable[[Layout, Chunks], Layout]
"""Returns the layout of an array with new chunks, given its layout."""


@dataclass(frozen=True)
class RankedPencil:
    """The plan of a transform on ``size`` ranks.

    ``layouts`` are those of the input of each stage, and of the output, and ``moves`` the
    redistributions into each, ``None`` if blocks are only cropped. An input that is ``spent`` may
    be freed after the first exchange. The last stage of a plan that is ``sliced`` writes its result
    over its input, slice by slice.
    """

    plan: PencilPlan
    size: int
    source: Layout
    layouts: tuple[Layout, ...]
    moves: tuple[RedistributePlan | None, ...]
    spent: bool = False
    sliced: bool = False

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
    roomy: bool = True,
) -> RankedPencil:
    """Plan every exchange of a transform; the same on every rank.

    ``place(layout, chunks)`` returns the layout of the array with new chunks. If the input is
    ``spent``, ranks may free it. Unless the memory is ``roomy``, buffers are as small as possible,
    and the last stage is ``sliced`` if it can be.

    Unless its input is spent, a rank keeps it to the end. During the first exchange it has only the
    target blocks in addition, so buffers may take another share of the array if it is ``roomy``;
    later exchanges have an intermediate share too.

    A stage transforms slices as the exchange after it packs them. If one slice of each of two
    rounds does not fit in the buffers, for example because a block is nearly a whole share, the
    stage transforms whole blocks first: that takes one share, and slices would take two.
    """
    present = _cropped_layout(source, shape_of(plan.exchanges[0].target))
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
                spare = share if roomy and (spent or not any(moves)) else 0
                limit = buffer_bytes(share, spare, machine, transformed=True)
                axes = tuple(transform.axis for transform in stage.transforms)
                more: dict[str, Any] = {"whole_axes": axes, "transformed": True}
                move = plan_redistribute(*ends, limit=limit, **more)
            if move is None or workspace(move) > LEAST + spare:
                spare = share if roomy and (spent or stage is None) else 0
                limit = buffer_bytes(share, spare, machine)
                move = plan_redistribute(*ends, limit=limit)
            present = move.target
        moves.append(move)
        layouts.append(present)
    sliced = not roomy and moves[-1] is None and overwrites(plan)
    return RankedPencil(plan, size, source, tuple(layouts), tuple(moves), spent, sliced)


def _cropped_layout(layout: Layout, shape: tuple[int, ...]) -> Layout:
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
    work = ranked.plan.flops / (machine.transform_share * machine.flops)
    # the busiest rank's share of the work, in the least even stage
    shares = (
        float(layout.shares(ranked.size, 1).max()) / max(1, math.prod(layout.shape))
        for layout in ranked.layouts[:-1]
    )
    return seconds + work * max([1.0 / ranked.size, *shares])


def peak(ranked: RankedPencil) -> int:
    """Return the most bytes on a rank: input, intermediate blocks and buffers.

    A host keeps small buffers: later transforms have them too.
    """
    plan, most, there = ranked.plan, [], 0

    def held(layout: Layout, dtype: str) -> Any:
        return layout.shares(ranked.size, np.dtype(dtype).itemsize)

    kept, intermediate = held(ranked.source, plan.dtype), 0
    steps = zip(ranked.moves, ranked.layouts, plan.exchanges, strict=True)
    for i, (move, layout, exchange) in enumerate(steps):
        if move is None:
            continue
        if i and not move.transformed:  # the stage before transformed whole blocks
            whole = held(move.source, exchange.dtype)
            most.append(kept + intermediate + whole + there)
            intermediate, kept = whole, 0 if ranked.spent else kept
        made = held(layout, exchange.dtype)
        used = workspace(move)
        most.append(kept + intermediate + made + max(used, there))
        there = max(there, used if used <= KEPT_BYTES else 0)
        intermediate, kept = made, 0 if ranked.spent else kept
    last = held(ranked.output, plan.output_dtype)
    if ranked.sliced:
        shape = [max(lengths) for lengths in ranked.output.lengths]
        *_, nbytes = slice_of(plan.stages[-1], shape, np.dtype(plan.output_dtype).itemsize)
        last = np.minimum(last, 2 * nbytes)
    most.append(kept + intermediate + last + there)
    return int(np.max(most))


def received(ranked: RankedPencil) -> list[int]:
    """Return the bytes that each rank receives from others."""
    moved = (traffic(move).sum(axis=0) for move in ranked.moves if move is not None)
    return sum(moved, np.zeros(ranked.size, np.int64)).tolist()


def pencil_fft_rank(
    ranked: RankedPencil,
    comm: Comm,
    device: Device,
    blocks: MutableMapping[Index, Array],
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Transform as one rank; ``progress`` counts rounds and transforms.

    If the plan says that the input is spent, ``blocks`` is emptied.

    If slices are small enough (``move.transformed``), each slice of a block is transformed when
    it is packed, while earlier slices are in transit; no stage's result exists as a whole.
    The last stage overwrites its input if the dtype allows it.
    """
    done = 0
    owned = False  # whether nothing else refers to the present blocks
    present = cropped(blocks, ranked)
    if ranked.spent:
        blocks.clear()
    stages: list[Stage | None] = [None, *ranked.plan.stages]
    for number, (stage, move) in enumerate(zip(stages, ranked.moves, strict=True)):
        fused = stage is not None and move is not None and move.transformed
        if stage is not None and not fused:
            with device.computing():
                if ranked.sliced and number == len(ranked.plan.stages):
                    made = transform_slices(stage, present)
                else:
                    made = transform_blocks(stage, present, overwrite=owned)
            device.join()  # before the transformed blocks are freed
            present = made
            del made
            owned = True
        if move is not None:
            read = _reader(stage, present, overwrite=owned) if stage and fused else None

            def report(at: int, rounds: int, done: int = done) -> None:
                progress(done + at, ranked.steps)

            present = redistribute_rank(move, comm, device, present, read=read, progress=report)
            del read  # it refers to the blocks
            done += move.rounds
            # a block in place is passed on, and is ours only if a stage computed it
            owned = owned or stage is not None
        if stage is not None:
            done += 1
            progress(done, ranked.steps)
    return dict(present)


def _reader(stage: Stage, blocks: Blocks, *, overwrite: bool) -> Read:
    """Return the function that transforms a slice of a block."""
    whole = {transform.axis for transform in stage.transforms}

    def read(index: Index, slices: tuple[slice, ...]) -> Array:
        part = tuple(slice(None) if k in whole else along for k, along in enumerate(slices))
        return transform(blocks[index][part], stage.transforms, overwrite=overwrite)

    return read


def cropped(blocks: Blocks, ranked: RankedPencil) -> dict[Index, Array]:
    """Return views of the part of each block that the transforms use."""
    first = ranked.moves[0]
    layout = ranked.layouts[0] if first is None else first.source
    return {
        index: block[tuple(slice(0, length) for length in layout.block_shape(index))]
        for index, block in blocks.items()
        if all(at < count for at, count in zip(index, layout.grid, strict=True))
    }


def transform_blocks(stage: Stage, blocks: Blocks, *, overwrite: bool) -> dict[Index, Array]:
    """Transform blocks one by one, freeing each input block in turn."""
    left = dict(blocks)
    made = {}
    while left:
        index, block = left.popitem()
        made[index] = transform(block, stage.transforms, overwrite=overwrite)
    return made
