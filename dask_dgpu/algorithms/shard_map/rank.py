"""The rank program: shards of the arguments, the function, and blocks of its result."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_dgpu.algorithms import Array, Blocks, Progress, no_progress
from dask_dgpu.algorithms.halo.gather import Gathered, GatherPlan
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan
from dask_dgpu.algorithms.redistribute.rank import redistribute_rank
from dask_dgpu.algorithms.shard_map.comm import ShardComm
from dask_dgpu.algorithms.shard_map.plan import ShardMapPlan, ShardMapTask, place_of
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from graph_opt.model.layout import Index, dtype_named


def shard_map_rank(
    plan: ShardMapPlan,
    comm: Comm,
    device: Device,
    *inputs: Blocks,
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Call the function as one rank; ``progress`` counts its one step."""
    local = [
        _shard(each, comm, device, blocks, str(i))
        for i, (each, blocks) in enumerate(zip(plan.inputs, inputs, strict=True))
    ]
    shape = plan.shards.block_shape(place_of(plan.task.axis, plan.shards.ndim, comm.rank))
    with device.computing():
        ranks = ShardComm(comm, device.to_device)
        result = called(plan.task, ranks, local, shape, plan.dtype)
    progress(1, 1)
    mine = dict.fromkeys(plan.shards.owned(comm.rank), result)
    if plan.merge is not None:
        return redistribute_rank(plan.merge, comm, device, mine)
    return mine


def called(
    task: ShardMapTask, comm: ShardComm, local: Sequence[Array], shape: tuple[int, ...], dtype: str
) -> Array:
    """Call a function on one rank; raise unless it returns an array of this shape and dtype."""
    function = pickle.loads(task.function)
    result = comm.as_array(function(comm, *map(_read_only, local)))
    where = f"on rank {comm.rank} of {comm.size}"
    if result.shape != shape:
        raise ValueError(
            f"expected {task.name} to return an array of shape {shape} {where}, got {result.shape}"
        )
    if not np.can_cast(result.dtype, wanted := dtype_named(dtype), "same_kind"):
        raise TypeError(f"expected {task.name} to return {dtype} {where}, got {result.dtype}")
    shared = any(np.may_share_memory(result, each) for each in local)
    return result.astype(wanted, order="C", copy=shared)


def _read_only(array: Array) -> Array:
    """Return a view: a function that writes to its arguments would change blocks of users."""
    view = array.view()
    if isinstance(view, np.ndarray):
        view.flags.writeable = False
    return view


def _shard(
    plan: RedistributePlan | GatherPlan, comm: Comm, device: Device, blocks: Blocks, name: str
) -> Any:
    """Return this rank's shard of an argument, or its copy of all of it."""
    if isinstance(plan, RedistributePlan):
        (shard,) = redistribute_rank(plan, comm, device, blocks).values()
        return shard
    with device.computing():
        given = device.mark()
    with device.transferring():
        device.after(given)
        whole = Gathered(plan, comm, device, blocks, f"argument {name}").finish_whole()
    device.join()
    return whole
