"""The rank program of a stencil."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_dgpu.algorithms import Progress, no_progress
from dask_dgpu.algorithms.redistribute import redistribute_rank
from dask_dgpu.algorithms.stencil.plan import SweepPlan
from dask_dgpu.algorithms.stencil.tiles import Tiles
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from graph_opt.model.layout import Index

Array = Any
Blocks = Mapping[Index, Array]


def stencil_rank(
    plan: SweepPlan,
    iterations: int,
    comm: Comm,
    device: Device,
    blocks: Blocks,
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Apply a stencil repeatedly as one rank; ``progress`` counts sweeps.

    The inner parts of tiles are swept while messages are in transit; nothing waits for the
    host.
    """
    tiles = Tiles(plan, comm, device)
    load(plan, comm, device, tiles, blocks)
    done = 0
    while done < iterations:
        sweeps = min(plan.steps, iterations - done)
        tiles.advance(sweeps)
        done += sweeps
        progress(done, iterations)
    return unload(plan, comm, device, tiles)


def load(plan: SweepPlan, comm: Comm, device: Device, tiles: Tiles, blocks: Blocks) -> None:
    """Copy blocks into the tiles of a rank; collective."""
    moved = blocks if plan.into is None else redistribute_rank(plan.into, comm, device, blocks)
    with device.computing():
        tiles.load(moved)
    device.join()  # before the moved blocks are freed


def unload(plan: SweepPlan, comm: Comm, device: Device, tiles: Tiles) -> dict[Index, Array]:
    """Return the tiles of a rank as blocks; collective."""
    with device.computing():
        values = tiles.values()
    if plan.back is not None:
        return redistribute_rank(plan.back, comm, device, values)
    device.join()
    return values
