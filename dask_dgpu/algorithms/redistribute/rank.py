"""The rank program of a redistribution."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dask_dgpu.algorithms import Progress, no_progress
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
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Redistribute as one rank; ``progress`` counts rounds.

    A block that is the same on the same rank in both layouts is passed on. While a round is on its
    way, the next is read on the compute lane and packed on the transfer lane. Ranks without
    messages for each other do not wait for each other.

    Parameters
    ----------
    plan, comm, device, blocks, progress
        As for all rank programs. With ``read``, ``blocks`` may be anything.
    read : callable, optional
        ``read(index, slices)`` returns the values of this part of a source block, of dtype
        ``plan.dtype`` and any strides. It is called once for each unit, on the compute lane. An
        unchanged block is one unit. Unwanted blocks are not read.

    Raises
    ------
    ValueError
        If a unit has another shape or dtype than the plan.
    """
    work = schedule(plan, comm.rank)
    with device.computing():
        before = device.mark()
        result = {
            index: _values(plan, whole_block(plan, source), blocks, read)
            for index, source in work.kept.items()
        }
    with device.transferring():
        device.after(before)
        made = [device.empty(plan.target.block_shape(index), plan.dtype) for index in work.blocks]
        messages = Messages(plan, comm, device, work.rounds, made)
    packed: deque[tuple[list[Array], Any]] = deque()
    under_way: Work | None = None
    for at, following in enumerate([*work.rounds, None]):
        if following is not None:
            with device.computing():
                if len(packed) == 2:
                    # the transfer lane has packed them: this lane may reuse their memory
                    device.after(packed[0][1])
                    packed.popleft()
                units = [_values(plan, unit, blocks, read) for unit in following.units]
                ready = device.mark()
            with device.transferring():
                device.after(ready)
                messages.pack(at, units)
                packed.append((units, device.mark()))
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


def _values(plan: RedistributePlan, unit: Unit, blocks: Blocks, read: Read | None) -> Array:
    """Return the values of a unit, from ``read`` or from its block."""
    if read is not None:
        part = read(unit.block, unit.slices)
    else:
        part = blocks[unit.block]
        part = part if unit.whole else part[unit.slices]
    return checked(part, f"block {unit.block} at {unit.slices}", unit.shape, plan.dtype)


def checked(array: Array, name: str, shape: tuple[int, ...], dtype: str) -> Array:
    """Return an array; raise a ValueError if it has another shape or dtype."""
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise ValueError(
            f"expected {dtype} of shape {shape} for {name}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array
