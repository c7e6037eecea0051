"""Sweeps and ghost cells of CuPy blocks on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dask_dgpu.algorithms.halo.plan import plan_halo
from dask_dgpu.algorithms.halo.rank import halo_rank
from dask_dgpu.algorithms.stencil.plan import StencilTask, SweepPlan, even_tiles
from dask_dgpu.algorithms.stencil.rank import stencil_rank
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.stencil import Taps
from graph_opt.model.layout import Layout
from tests.array.stencil.test_gpu import HEAT
from tests.array.stencil.test_stencil import numbers
from tests.support.reference.halo import blocks_of, expected
from tests.support.reference.stencil import stencil_reference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("size", "rows"), [(1, 1), (3, 3), (3, 1)])
def test_launches_are_replayed(size: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a rank that has no tile, whose recording is empty."""
    import cupy

    from dask_dgpu.kernels.device import cuda

    replays: list[Any] = []

    class Noted(cuda.Replay):
        def __init__(self) -> None:
            super().__init__()
            replays.append(self)

    monkeypatch.setattr(cuda, "Replay", Noted)
    tiles, taps = even_tiles((40, 33), (rows, 1)), Taps.of(HEAT)
    task = StencilTask("float64", taps, (0.0, "periodic"), 60)
    plan = SweepPlan(tiles, tiles, task, size, 6)
    whole = numbers((40, 33), "float64")
    every = blocks_of(whole, tiles)

    def rank_program(comm: Comm) -> Any:
        device = cuda.CudaDevice()
        mine = {index: cupy.asarray(every[index]) for index in tiles.owned(comm.rank)}
        device.begin()
        made = stencil_rank(plan, comm, device, mine)
        device.synchronize()
        return {index: cupy.asnumpy(block) for index, block in made.items()}

    wanted = blocks_of(stencil_reference(whole, taps, task.boundary, 60), tiles)
    for made in run_local(size, rank_program):
        for index, block in made.items():
            np.testing.assert_allclose(block, wanted[index], rtol=0, atol=1e-12)
    assert len(replays) <= 2 * size  # for either buffer
    assert all(replay.recorded for replay in replays)


@pytest.mark.parametrize("held", [False, True])
def test_room_around_blocks_is_used_if_nobody_can_see_it(held: bool) -> None:
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    layout = Layout(((0, 9), (0, 7)), (0,))
    plan = plan_halo(layout, "float32", ((1, 1), (1, 1)), ("periodic", 2.0), 1)
    whole = numbers((9, 7), "float32")
    storage = cupy.zeros(plan.target.block_shape((0, 0)), "float32")
    storage[plan.interior((0, 0))] = cupy.asarray(whole)
    place, blocks = storage.data.ptr, {(0, 0): storage[plan.interior((0, 0))]}
    kept = [storage] if held else []
    del storage

    def rank_program(comm: Comm) -> Any:
        device = CudaDevice()
        device.begin()
        made = halo_rank(plan, comm, device, blocks)
        device.synchronize()
        return made

    ((made,),) = (each.values() for each in run_local(1, rank_program))
    assert (made.data.ptr == place) is not held
    np.testing.assert_array_equal(cupy.asnumpy(made), expected(whole, plan)[0, 0])
    for array in kept:
        assert cupy.asnumpy(array).sum() == pytest.approx(whole.sum(), rel=1e-5)


@pytest.mark.parametrize("boundary", [None, "periodic", "reflect", "mirror", "nearest", 2.5])
@pytest.mark.parametrize("dtype", ["bool", "int16", "float16", "float64", "complex64"])
def test_ghost_cells(boundary: Any, dtype: str) -> None:
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    layout = Layout(((0, 1, 5, 9), (0, 4, 11)), (0, 1, 2, 2, 1, 0))
    if boundary == 2.5 and dtype in ("bool", "int16"):
        boundary = 1
    both = (boundary, boundary)
    plan = plan_halo(layout, dtype, ((2, 3), (1, 2)), both, 3)
    whole = numbers((9, 11), dtype)
    every = blocks_of(whole, layout)

    def rank_program(comm: Comm) -> Any:
        device = CudaDevice()
        mine = {index: cupy.asarray(every[index]) for index in layout.owned(comm.rank)}
        device.begin()
        made = halo_rank(plan, comm, device, mine)
        device.synchronize()
        return {index: cupy.asnumpy(block) for index, block in made.items()}

    wanted = expected(whole, plan)
    for made in run_local(3, rank_program):
        for index, block in made.items():
            assert block.shape == wanted[index].shape
            np.testing.assert_array_equal(block, wanted[index])
