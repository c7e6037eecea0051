"""The rank program of a sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.algorithms import Progress, no_progress
from dask_dgpu.algorithms.kahan_sum.plan import Meeting, SumPlan
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.sums.binned import LIMBS, Binned, limb_range
from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.partial import Partial, added, finished, partial_sum
from graph_opt.model.layout import Index

Array = Any
Blocks = Mapping[Index, Array]
Window = tuple[int, int]
"""The first limb in messages, and the number of limbs."""


def kahan_sum_rank(
    plan: SumPlan,
    comm: Comm,
    device: Device,
    blocks: Blocks,
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Sum as one rank; ``progress`` counts its blocks and one exchange.

    A rank sends one message to each owner of blocks that it adds to, and waits for one from
    each rank that adds to its own.
    """
    with device.computing():
        mine = sum_blocks(plan, blocks, progress)
    window = _window(plan, comm, device, mine)
    *first, last = plan.stages
    for stage in first:
        partials = _exchanged(plan, comm, device, mine, stage, window)
        with device.computing():
            mine = {
                index: added([partials[rank, index] for rank in ranks])
                for index, head, ranks in stage
                if head == comm.rank
            }
    partials = _exchanged(plan, comm, device, mine, last, window)
    with device.computing():
        result = {
            index: device.to_device(finish_block(plan, [partials[rank, index] for rank in ranks]))
            for index, owner, ranks in last
            if owner == comm.rank
        }
    device.join()  # before the messages are freed
    progress(len(blocks) + 1, len(blocks) + 1)
    return result


def sum_blocks(
    plan: SumPlan, blocks: Blocks, progress: Progress = no_progress
) -> dict[Index, Partial]:
    """Return the partial sums of blocks for each block of the result."""
    task = plan.task
    found: dict[Index, Partial] = {}
    for done, index in enumerate(sorted(blocks), 1):
        target = task.target(index)
        if target in plan.adding:
            partial = partial_sum(blocks[index], task.axes, task.method, plan.result_dtype)
            found[target] = added([found[target], partial]) if target in found else partial
        progress(done, len(blocks) + 1)
    return found


def finish_block(plan: SumPlan, partials: list[Partial]) -> Array:
    """Add the partial sums for a block of the result, and round to its dtype."""
    task = plan.task
    count = prod(plan.source.shape[axis] for axis in task.axes)
    whole = replace(added(partials), count=count)
    return finished(whole, task.kind, plan.result_dtype, task.axes, task.keepdims)


def _exchanged(
    plan: SumPlan,
    comm: Comm,
    device: Device,
    mine: Mapping[Index, Partial],
    stage: Sequence[Meeting],
    window: Window,
) -> dict[tuple[int, Index], Partial]:
    """Exchange partial sums; return those that this rank adds, by sender and block."""
    found = {(comm.rank, index): partial for index, partial in mine.items()}
    sends: dict[int, list[Index]] = defaultdict(list)
    receives: dict[int, list[Index]] = defaultdict(list)
    for index, owner, ranks in stage:
        if owner == comm.rank:
            for rank in ranks:
                if rank != owner:
                    receives[rank].append(index)
        elif comm.rank in ranks:
            sends[owner].append(index)
    dtype = "float64" if plan.task.method == "compensated" else "int64"
    _settle(plan, device)
    with device.transferring():
        messages, buffers = (
            {
                rank: device.empty(sum(plan.words(index, window[1]) for index in some), dtype)
                for rank, some in by_rank.items()
            }
            for by_rank in (sends, receives)
        )
        for owner, message in messages.items():
            for index, words in _parts(plan, message, sends[owner], window):
                _pack(plan, device, words, mine[index], window)
        comm.exchange(list(messages.items()), list(buffers.items())).wait()
    _settle(plan, device)
    for rank, buffer in buffers.items():
        for index, words in _parts(plan, buffer, receives[rank], window):
            # an owner adds to its own blocks
            found[rank, index] = _unpacked(plan, index, words, window, mine[index])
    return found


def _settle(plan: SumPlan, device: Device) -> None:
    """Let each lane see the other's work; the host reads exact sums itself."""
    if plan.task.method == "compensated":
        device.join()
    else:
        device.synchronize()


def _parts(
    plan: SumPlan, message: Array, indices: Sequence[Index], window: Window
) -> Iterator[tuple[Index, Array]]:
    """Yield the words of a message for each block of the result."""
    for index in indices:
        count = plan.words(index, window[1])
        yield index, message[:count]
        message = message[count:]


def _window(plan: SumPlan, comm: Comm, device: Device, mine: Mapping[Index, Partial]) -> Window:
    """Agree with all ranks on the limbs in messages."""
    if plan.task.method == "compensated":
        return 0, 0
    low, high = limb_range([p.sums for p in mine.values() if isinstance(p.sums, Binned)])
    if low == high:
        low, high = LIMBS, 0  # of no effect on the other ranks
    with device.transferring():
        ends = device.to_device(np.array([-low, high], np.int64))
        comm.all_reduce(ends, "max").wait()
    device.synchronize()
    low, high = device.to_host(ends).tolist()
    carry = 1 if plan.hosts else 0  # the sum of a host may need one limb more than its terms
    return (-low, high + low + carry) if high > -low else (0, 0)


def _pack(plan: SumPlan, device: Device, words: Array, partial: Partial, window: Window) -> None:
    """Write partial sums to a part of a message."""
    sums = partial.sums
    if isinstance(sums, Pair):
        for part, array in zip(words.reshape(plan.doubles, -1), sums.arrays(), strict=True):
            part[...] = array.reshape(-1)
        return
    low, count = window
    limbs = np.concatenate([sums.window(low, low + count), sums.special[None]])
    words[...] = device.to_device(limbs.reshape(-1))


def _unpacked(plan: SumPlan, index: Index, words: Array, window: Window, like: Partial) -> Partial:
    """Return partial sums of another rank, on the device or, if exact, on the host."""
    shape = plan.shape(index)
    if isinstance(like.sums, Pair):
        return replace(like, sums=Pair.of(words.reshape(plan.doubles, *shape)))
    words = words if isinstance(words, np.ndarray) else words.get()
    limbs = words.reshape(window[1] + 1, *shape)
    return replace(like, sums=Binned(window[0], limbs[:-1], limbs[-1].astype(np.uint8)))
