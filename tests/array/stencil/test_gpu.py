"""Ghost cells, stencils and Jacobi's iteration of CuPy blocks: CuPy in, CuPy out."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.algorithms.halo.plan import plan_halo
from dask_dgpu.algorithms.halo.rank import halo_rank
from dask_dgpu.algorithms.stencil.plan import SweepPlan, even_tiles
from dask_dgpu.algorithms.stencil.rank import stencil_rank
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.stencil import LAPLACIAN_9PT, Taps
from graph_opt.model.layout import Layout
from tests.algorithms.test_halo import blocks_of, expected
from tests.array.stencil.test_stencil import numbers, reference
from tests.support.reference.stencil import stencil_reference

pytestmark = pytest.mark.gpu

BOUNDARIES = ["zero", "periodic", "reflect", "mirror", "nearest", 1.5]
RANKS = [None, 1, 3]
HEAT = np.pad([[1.0]], 1) + LAPLACIAN_9PT / 8
"""Its results do not fade away."""


def on_device(values: Any, chunks: Any) -> da.Array:
    import cupy

    return da.from_array(cupy.asarray(values), chunks=chunks, asarray=False)


def computed(array: da.Array, ranks: int | None) -> Any:
    import cupy

    if ranks is None:
        value = array.compute(scheduler="synchronous")
    else:
        with dgpu.enable(local_ranks=ranks, on_error="raise", when="always"):
            assert dgpu.explain(array).rewritten
            value = array.compute(scheduler="threads")
    assert isinstance(array._meta, cupy.ndarray)
    assert isinstance(value, cupy.ndarray)
    assert value.dtype == array.dtype
    return cupy.asnumpy(value)


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
    plan = SweepPlan(tiles, tiles, "float64", taps, (0.0, "periodic"), 6, size)
    whole = numbers((40, 33), "float64")
    every = blocks_of(whole, tiles)

    def rank_program(comm: Comm) -> Any:
        device = cuda.CudaDevice()
        mine = {index: cupy.asarray(every[index]) for index in tiles.owned(comm.rank)}
        device.begin()
        made = stencil_rank(plan, 60, comm, device, mine)
        device.synchronize()
        return {index: cupy.asnumpy(block) for index, block in made.items()}

    wanted = blocks_of(stencil_reference(whole, taps, plan.boundary, 60), tiles)
    for made in run_local(size, rank_program):
        for index, block in made.items():
            np.testing.assert_allclose(block, wanted[index], rtol=0, atol=1e-12)
    assert len(replays) <= 2 * size  # for either buffer
    assert all(replay.recorded for replay in replays)


def test_other_threads_may_wait_for_the_device() -> None:
    """Theirs may fail while launches are recorded; a program goes on without the recording."""
    import cupy

    over = threading.Event()

    def wait() -> None:
        while not over.is_set():
            with suppress(cupy.cuda.runtime.CUDARuntimeError):
                cupy.cuda.Device().synchronize()

    a = numbers((70, 190), "float64")
    y = dgpu.stencil(on_device(a, (40, 60)), HEAT, boundary="periodic", iterations=100)
    wanted = reference(a, HEAT, "periodic", 100)
    other = threading.Thread(target=wait)
    other.start()
    try:
        for _ in range(20):
            np.testing.assert_allclose(computed(y, 3), wanted, atol=1e-12)
    finally:
        over.set()
        other.join()


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
@pytest.mark.parametrize("corners", [True, False])
def test_ghost_cells(boundary: Any, dtype: str, corners: bool) -> None:
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    layout = Layout(((0, 1, 5, 9), (0, 4, 11)), (0, 1, 2, 2, 1, 0))
    if boundary == 2.5 and dtype in ("bool", "int16"):
        boundary = 1
    both = (boundary, boundary)
    plan = plan_halo(layout, dtype, ((2, 3), (1, 2)), both, 3, corners=corners)
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
            if corners:
                np.testing.assert_array_equal(block, wanted[index])
            else:
                inner = plan.interior(index)
                np.testing.assert_array_equal(block[inner[0]], wanted[index][inner[0]])
                np.testing.assert_array_equal(block[:, inner[1]], wanted[index][:, inner[1]])


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("name", ["LAPLACIAN_5PT", "LAPLACIAN_9PT"])
@pytest.mark.parametrize("iterations", [1, 6, 25])
def test_laplacians(ranks: int | None, boundary: Any, name: str, iterations: int) -> None:
    a, kernel = numbers((70, 190), "float64"), 0.1 * getattr(dgpu, name)
    y = dgpu.stencil(on_device(a, (40, 60)), kernel, boundary=boundary, iterations=iterations)
    value = computed(y, ranks)
    np.testing.assert_allclose(value, reference(a, kernel, boundary, iterations), atol=1e-12)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("shape", [(500,), (40, 30), (12, 14, 16), (6, 7, 8, 9)])
@pytest.mark.parametrize("dtype", ["int16", "float16", "float32", "complex64", "complex128"])
def test_any_axes_and_dtypes(ranks: int | None, shape: tuple[int, ...], dtype: str) -> None:
    a = numbers(shape, dtype)
    kernel = numbers((5, *(3,) * (len(shape) - 1)), "float64")
    kernel /= np.abs(kernel).sum()
    y = dgpu.stencil(on_device(a, 5), kernel, boundary="reflect", iterations=3)
    wanted = reference(a, kernel, "reflect", 3)
    eps = float(np.finfo(y.dtype).eps)
    np.testing.assert_allclose(
        computed(y, ranks).astype(wanted.dtype), wanted, rtol=0, atol=100 * eps
    )


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("boundary", ["zero", "reflect", 2.0])
@pytest.mark.parametrize("shape", [(300,), (40, 30), (12, 14, 16)])
def test_jacobi(ranks: int | None, boundary: Any, shape: tuple[int, ...]) -> None:
    import cupy

    a = numbers(shape, "float64")
    a -= a.mean()  # so that mirrored grids have a solution
    most = {"boundary": boundary, "max_iterations": 400, "tol": 1e-3}
    with dask.config.set(scheduler="synchronous"):
        x = da.from_array(a, chunks=12)
        v, known = dgpu.jacobi(x * 0, x, **most)
        y = on_device(a, 12)
        if ranks is None:
            u, info = dgpu.jacobi(y * 0, y, **most)
        else:
            with dgpu.enable(local_ranks=ranks, on_error="raise", when="always"):
                u, info = dgpu.jacobi(y * 0, y, **most)
        value = u.compute()
        assert isinstance(value, cupy.ndarray)
        assert info.converged == known.converged
        laplacian = dgpu.stencil(
            da.from_array(cupy.asnumpy(value)), _cross(a.ndim), boundary=boundary
        )
        of_zero = dgpu.stencil(x * 0, _cross(a.ndim), boundary=boundary)
        residual = np.linalg.norm(laplacian.compute() - a) / np.linalg.norm(of_zero.compute() - a)
    assert info.residuals[-1] == pytest.approx(residual, rel=1e-4)
    if not info.converged:  # else they may have stopped at different sweeps
        np.testing.assert_allclose(cupy.asnumpy(value), v.compute(), atol=1e-9)


def _cross(ndim: int) -> Any:
    """The Laplacian of 2 ndim + 1 points."""
    weights = np.zeros((3,) * ndim)
    middle = (1,) * ndim
    for axis in range(ndim):
        for step in (0, 2):
            weights[(*middle[:axis], step, *middle[axis + 1 :])] = 1
    weights[middle] = -2 * ndim
    return weights
