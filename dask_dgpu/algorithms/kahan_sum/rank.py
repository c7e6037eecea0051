"""The rank program of a sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.algorithms.kahan_sum.plan import SumPlan
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.sums.binned import Binned
from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.limbs import LIMBS
from dask_dgpu.kernels.sums.partial import Partial, added, finished, partial_sum
from graph_opt.model.layout import Index

Array = Any
Blocks = Mapping[Index, Array]
Window = tuple[int, int]
Message = list[tuple[Index, Array]]


def kahan_sum_rank(
    plan: SumPlan,
    comm: Comm,
    device: Device,
    blocks: Blocks,
    progress: Callable[[int, int], None] = lambda done, steps: None,
) -> dict[Index, Array]:
    """Sum as one rank.

    Parameters
    ----------
    plan : SumPlan
        The same on every rank.
    comm : Comm
        Joins the ranks of the plan.
    device : Device
        Where this rank's arrays are.
    blocks : mapping of tuple of int to array
        The blocks of the source that this rank owns, of any strides; they stay as they are.
    progress : callable
        Called with the number of blocks summed, and of those and one for the exchange; may
        raise to give up.

    Returns
    -------
    dict of tuple of int to array
        The blocks of the result that this rank owns, of dtype ``plan.result_dtype``.

    Notes
    -----
    Rank r sends one message to each owner to whose blocks it adds, and waits for one from
    each rank that adds to its own.
    """
    with device.computing():
        mine = sum_blocks(plan, blocks, progress)
    window = _window(plan, comm, device, mine)
    came = _exchanged(plan, comm, device, mine, window)
    with device.computing():
        made = {
            index: finish_block(plan, [came[rank, index] for rank in ranks])
            for index, ranks in plan.adding.items()
            if plan.result.owner(index) == comm.rank
        }
        made = {index: device.to_device(block) for index, block in made.items()}
    device.join()  # before what came is let go of
    progress(len(blocks) + 1, len(blocks) + 1)
    return made


def sum_blocks(
    plan: SumPlan, blocks: Blocks, progress: Callable[[int, int], None] = lambda done, steps: None
) -> dict[Index, Partial]:
    """Sum blocks, and add what is for the same block of the result."""
    task = plan.task
    found: dict[Index, Partial] = {}
    for done, index in enumerate(sorted(blocks)):
        target = task.target(index)
        if target in plan.adding:
            partial = partial_sum(blocks[index], task.axes, task.method, plan.result_dtype)
            found[target] = added([found[target], partial]) if target in found else partial
        progress(done + 1, len(blocks) + 1)
    return found


def finish_block(plan: SumPlan, partials: list[Partial]) -> Array:
    """Add the partial sums for a block of the result, and round to its dtype."""
    task = plan.task
    count = prod(plan.source.shape[axis] for axis in task.axes)
    whole = replace(added(partials), count=count)
    return finished(whole, task.kind, plan.result_dtype, task.axes, task.keepdims)


def _window(plan: SumPlan, comm: Comm, device: Device, mine: Mapping[Index, Partial]) -> Window:
    """Agree on the limbs that travel: the first, and how many."""
    if plan.task.method == "compensated":
        return 0, 0
    used = [p.sums for p in mine.values() if isinstance(p.sums, Binned) and len(p.sums.limbs)]
    low = min((sums.low for sums in used), default=LIMBS)
    high = max((sums.low + len(sums.limbs) for sums in used), default=0)
    with device.transferring():
        ends = device.to_device(np.array([-low, high], np.int64))
        comm.all_reduce(ends, "max").wait()
    device.synchronize()
    low, high = (sign * int(end) for sign, end in zip((-1, 1), device.to_host(ends), strict=True))
    return (low, high - low) if high > low else (0, 0)


def _exchanged(
    plan: SumPlan,
    comm: Comm,
    device: Device,
    mine: Mapping[Index, Partial],
    window: Window,
) -> dict[tuple[int, Index], Partial]:
    """Send what others own, and return what there is for the blocks of this rank."""
    came = {(comm.rank, index): partial for index, partial in mine.items()}
    sends: dict[int, list[Index]] = {}
    recvs: dict[int, list[Index]] = {}
    for index, ranks in plan.adding.items():
        owner = plan.result.owner(index)
        if owner == comm.rank:
            for rank in ranks:
                recvs.setdefault(rank, []).append(index)
        elif comm.rank in ranks:
            sends.setdefault(owner, []).append(index)
    recvs.pop(comm.rank, None)
    dtype = "float64" if plan.task.method == "compensated" else "int64"
    device.synchronize()
    with device.transferring():
        out = {
            owner: device.to_device(np.concatenate([_packed(mine[at], window) for at in some]))
            for owner, some in sends.items()
        }
        rooms = {
            rank: device.empty(sum(plan.words(index, window[1]) for index in some), dtype)
            for rank, some in recvs.items()
        }
        comm.exchange(list(out.items()), list(rooms.items())).wait()
    device.synchronize()
    like = next(iter(mine.values()), None)
    for rank, some in recvs.items():
        at = 0
        for index in some:
            words = plan.words(index, window[1])
            came[rank, index] = _opened(plan, index, rooms[rank][at : at + words], window, like)
            at += words
    return came


def _packed(partial: Partial, window: Window) -> Array:
    """Return partial sums as one flat array."""
    sums = partial.sums
    if isinstance(sums, Pair):
        return np.concatenate([array.reshape(-1) for array in sums.arrays()])
    low, count = window
    limbs = np.zeros((count + 1, *sums.special.shape), np.int64)
    limbs[sums.low - low : sums.low - low + len(sums.limbs)] = sums.limbs
    limbs[count] = sums.special
    return limbs.reshape(-1)


def _opened(
    plan: SumPlan, index: Index, words: Array, window: Window, like: Partial | None
) -> Partial:
    """Return partial sums of another rank, where this one's are."""
    assert like is not None  # whoever owns sums adds to them
    shape = plan.shape(index)
    if isinstance(like.sums, Pair):
        pair = Pair.of(words.reshape(plan.doubles, *shape))
        return replace(
            like, sums=pair.on_host() if isinstance(like.sums.sums, np.ndarray) else pair
        )
    words = words if isinstance(words, np.ndarray) else words.get()
    limbs = words.reshape(window[1] + 1, *shape)
    sums = Binned(window[0], limbs[:-1], limbs[-1].astype(np.uint8))
    return replace(like, sums=sums)
