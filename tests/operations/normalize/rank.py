"""The rank program: one maximum each, one all-reduce, one division a block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Blocks, Progress
from graph_opt.model.layout import Layout


@dataclass(frozen=True)
class NormalizePlan:
    """Every block stays on its rank."""

    layout: Layout
    dtype: str
    size: int


def normalize_rank(
    plan: NormalizePlan, comm: Comm, device: Device, blocks: Blocks, *, progress: Progress
) -> Blocks:
    """Scale this rank's blocks by the largest absolute value on all ranks."""
    with device.computing():
        mine = [float(abs(block).max()) for block in blocks.values() if block.size]
    progress(1, 2)
    with device.transferring():
        largest = device.to_device(np.array([max(mine, default=0.0)]))
        comm.all_reduce(largest, "max").wait()
    device.synchronize()
    scale = device.to_host(largest).astype(plan.dtype)[0]
    progress(2, 2)
    with device.computing():
        return {index: block / scale for index, block in blocks.items()}
