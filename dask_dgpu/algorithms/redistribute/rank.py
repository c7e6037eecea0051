"""The rank program of a redistribution."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dask_dgpu.algorithms.redistribute.message import Messages
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan
from dask_dgpu.algorithms.redistribute.schedule import Slices, Unit, schedule, whole_block
from dask_dgpu.comm.protocol import Comm, Work
from dask_dgpu.kernels.device import Device
from graph_opt.model.layout import Index

Array = Any
Blocks = Mapping[Index, Array]
Read = Callable[[Index, Slices], Array]


def redistribute_rank(
    plan: RedistributePlan,
    comm: Comm,
    device: Device,
    blocks: Blocks,
    *,
    read: Read | None = None,
    progress: Callable[[int, int], None] = lambda done, rounds: None,
) -> dict[Index, Array]:
    """Redistribute as one rank.

    Parameters
    ----------
    plan : RedistributePlan
        The same on every rank.
    comm : Comm
        Joins ``plan.size`` ranks.
    device : Device
        Where this rank's arrays are.
    blocks : mapping of tuple of int to array
        The source blocks that this rank owns, of any strides. With ``read`` they
        are its own affair.
    read : callable, optional
        Called as ``read(index, slices)`` for each unit, once, on the compute lane;
        returns the values of this part of a source block, of dtype ``plan.dtype``
        and any strides. A block that stays as it is, is one unit. What no rank wants
        is not read.
    progress : callable
        Called with the number of rounds done and of all rounds; may raise to give up.

    Returns
    -------
    dict of tuple of int to array
        The target blocks that this rank owns. A block that is the same on the same
        rank in both layouts is passed on: the block itself, or what ``read``
        returns. All others are C-contiguous, in memory of their own.

    Raises
    ------
    ValueError
        When a unit is not of the shape and dtype that the plan says.

    Notes
    -----
    What is on the compute lane before is waited for, and both lanes wait for the
    result. While a round travels, the next is read on the compute lane and packed on
    the transfer lane. Ranks that have nothing for each other in a round do not wait
    for each other: messages go point to point.
    """
    work = schedule(plan, comm.rank)
    with device.computing():
        given = device.mark()
        result = {
            index: _taken(plan, whole_block(plan, source), blocks, read)
            for index, source in work.kept.items()
        }
    with device.transferring():
        device.after(given)
        made = [device.empty(plan.target.block_shape(index), plan.dtype) for index in work.blocks]
        messages = Messages(plan, comm, device, work.rounds, made)
    held: deque[tuple[list[Array], Any]] = deque()
    under_way: Work | None = None
    for at, following in enumerate([*work.rounds, None]):
        if following is not None:
            with device.computing():
                if len(held) == 2:
                    # this lane's allocator may give their memory away, but not before
                    device.after(held[0][1])
                    held.popleft()
                units = [_taken(plan, unit, blocks, read) for unit in following.units]
                ready = device.mark()
            with device.transferring():
                device.after(ready)
                messages.pack(at, units)
                held.append((units, device.mark()))
        with device.transferring():
            if under_way is not None:
                under_way.wait()
            under_way = messages.start(at) if following is not None else None
            if at:
                messages.unpack(at - 1)
        if at:
            progress(at, len(work.rounds))
    device.join()
    result.update(zip(work.blocks, made, strict=True))
    return result


def _taken(plan: RedistributePlan, unit: Unit, blocks: Blocks, read: Read | None) -> Array:
    """Return the values of a unit: what ``read`` says, or what of its block it is."""
    if read is not None:
        part = read(unit.block, unit.slices)
    else:
        part = blocks[unit.block]
        part = part if unit.whole else part[unit.slices]
    if part.shape != unit.shape or part.dtype != np.dtype(plan.dtype):
        raise ValueError(
            f"block {unit.block} is {part.dtype} of shape {part.shape} at {unit.slices}, "
            f"the plan has {plan.dtype} of shape {unit.shape}"
        )
    return part
