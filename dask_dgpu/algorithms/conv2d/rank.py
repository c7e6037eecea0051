"""The rank program of a convolution."""

from __future__ import annotations

from itertools import count

from dask_dgpu.algorithms import Array, Blocks, Progress, no_progress
from dask_dgpu.algorithms.conv2d.plan import Conv2dPlan
from dask_dgpu.algorithms.halo.gather import Gathered
from dask_dgpu.algorithms.redistribute.rank import redistribute_rank
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels import conv
from dask_dgpu.kernels.device import Device
from graph_opt.model.layout import Index


def conv2d_rank(
    plan: Conv2dPlan,
    comm: Comm,
    device: Device,
    blocks: Blocks,
    weight: Blocks,
    bias: Blocks | None = None,
    *,
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Convolve as one rank; ``progress`` counts this rank's tiles."""
    mine = plan.tiles.owned(comm.rank)
    finished = count(1)
    with device.computing():
        given = device.mark()
    with device.transferring():
        device.after(given)
        kernels = Gathered(plan.weight, comm, device, weight, "weight")
        added = None
        if plan.bias is not None and bias is not None:
            added = Gathered(plan.bias, comm, device, bias, "bias")
        windows = Gathered(plan.windows, comm, device, blocks, "windows")
        whole = kernels.finish_whole()
        offset = None if added is None else added.finish_whole()
        ready = device.mark()

    def tile(index: Index) -> Array:
        if index in plan.direct:
            block, place = plan.direct[index]
            images = blocks[block][place]
        else:
            images = windows.boxes[index]
        made = conv.conv2d(images, whole, offset, plan.parameters(index))
        progress(next(finished), len(mine))
        return made

    def convolve(indices: list[Index]) -> None:
        tiles.update(zip(indices, device.each(tile, indices), strict=True))

    tiles: dict[Index, Array] = {}
    with device.computing():
        device.after(ready)
        convolve([index for index in mine if index in plan.direct])
    with device.transferring():
        windows.finish()
    device.join()
    with device.computing():
        convolve([index for index in mine if index not in plan.direct])
    result = tiles
    if plan.merge is not None:
        result = redistribute_rank(plan.merge, comm, device, tiles)
    device.join()  # before the windows and the weights are freed
    return result
