"""The rank program of a sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.algorithms import Progress, no_progress
from dask_dgpu.algorithms.kahan_sum.plan import Meeting, SumPlan
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.sums.binned import LIMBS, Binned, limb_range, placed
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

    A rank sends one message for each block that it adds to, and waits for one from each rank that
    adds to its own.
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
    whole = added(partials)._replace(count=count)
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
    here = comm.rank
    sends = [(owner, at) for at, owner, ranks in stage if owner != here and here in ranks]
    receives = [
        (rank, at) for at, owner, ranks in stage if owner == here for rank in ranks if rank != here
    ]
    dtype = "float64" if plan.task.method == "compensated" else "int64"
    _settle(plan, device)
    with device.transferring():
        sent = [(owner, _packed(device, mine[index], window)) for owner, index in sends]
        received = [
            (rank, device.empty((plan.arrays(window[1]), *plan.shape(index)), dtype))
            for rank, index in receives
        ]
        comm.exchange(sent, received).wait()
    _settle(plan, device)
    found = {(here, index): partial for index, partial in mine.items()}
    with device.computing():
        for place, (_, message) in zip(receives, received, strict=True):
            # an owner adds to its own blocks
            found[place] = _unpacked(message, window, mine[place[1]])
    return found


def _settle(plan: SumPlan, device: Device) -> None:
    """Let each lane see the other's work; the host reads few exact sums itself."""
    if plan.task.method == "compensated":
        device.join()
    else:
        device.synchronize()


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
    return (-low, high + low) if high > -low else (0, 0)


def _packed(device: Device, partial: Partial, window: Window) -> Array:
    """Return partial sums as one array on the device."""
    sums = partial.sums
    if isinstance(sums, Binned):
        low, count = window
        return device.to_device(np.concatenate([sums.window(low, low + count), sums.special[None]]))
    arrays = sums.arrays()
    message = device.empty((len(arrays), *arrays[0].shape), "float64")
    for part, array in zip(message, arrays, strict=True):
        part[...] = array
    return message


def _unpacked(message: Array, window: Window, like: Partial) -> Partial:
    """Return partial sums of another rank, where they are added."""
    if isinstance(like.sums, Pair):
        return like._replace(sums=Pair(*message))
    limbs = placed(message, like.sums.special.size)
    return like._replace(sums=Binned(window[0], limbs[:-1], limbs[-1].astype(np.uint8)))
