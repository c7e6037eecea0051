"""Products of CuPy blocks on one device: launches, plans, and memory that is lent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.array.matmul.test_gpu import numbers

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, params=[1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[None]:
    with dgpu.enable(local_ranks=request.param, on_error="raise", when="always"):
        yield


def keep_busy() -> None:
    """Give the current stream work for some tens of milliseconds."""
    import cupy

    busy = cupy.ones((4096, 4096), "float32")
    for _ in range(20):
        busy = busy @ busy * np.float32(1 / 4096)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_small_products_of_one_shape_are_one_launch(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    from dask_dgpu.kernels import gemm
    from dask_dgpu.kernels.gemm import cuda

    called: list[str] = []
    call = cuda.call_cublas

    def noted(routine: str, *arguments: Any) -> None:
        called.append(routine)
        call(routine, *arguments)

    monkeypatch.setattr(cuda, "call_cublas", noted)
    a = [cupy.asarray(numbers((7, 5), dtype, at)) for at in range(6)]
    wide = cupy.asarray(numbers((5, 12), dtype, 9))
    b = [wide[:, 2:5], wide[:, 2:5], wide[:, 1:4], wide.T[2:5].T, wide[:, ::4], wide[:, 2:6]]
    outs = [cupy.full((7, each.shape[1]), 2, dtype) for each in b]
    gemm.accumulate_group(list(zip(outs, a, b, strict=True)))
    assert called == ["gemmBatched"] * 3  # views, a copy, another shape
    for out, left, right in zip(outs, a, b, strict=True):
        assert (out == left @ right + 2).all()


@pytest.mark.parametrize("view", [False, True])
def test_memory_of_a_result_waits_for_the_tasks_that_read_it(view: bool) -> None:
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    device = CudaDevice()
    with device.computing():
        block = cupy.ones(1 << 22, "float32")
    device.synchronize()
    block = device.hand_over(block)
    if view:
        block = block[::2]  # which outlives it
    keep_busy()
    copy = block + 1
    del block
    with device.computing():
        others = [cupy.zeros(1 << 22, "float32") for _ in range(4)]
    device.synchronize()
    assert (copy == 2).all()
    assert all((other == 0).all() for other in others)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("lane", ["computing", "transferring"])
def test_borrowed_memory_waits_for_the_lanes_that_read_it(view: bool, lane: str) -> None:
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    device = CudaDevice()
    block = cupy.ones(1 << 22, "float32")
    device.begin()
    block = device.borrow(block)
    if view:
        block = block[::2]
    with getattr(device, lane)():
        keep_busy()
        copy = block + 1
    del block
    others = [cupy.zeros(1 << 22, "float32") for _ in range(4)]
    device.synchronize()
    assert (copy == 2).all()
    assert all((other == 0).all() for other in others)
    assert not device._borrowed


def test_what_was_borrowed_goes_back_as_it_came() -> None:
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    device = CudaDevice()
    block = cupy.arange(12.0).reshape(3, 4)
    back = device.hand_over(device.borrow(block)[:, ::-1].T)
    assert back.data.mem is block.data.mem
    np.testing.assert_array_equal(cupy.asnumpy(back), cupy.asnumpy(block)[:, ::-1].T)
    for nothing in (cupy.empty((0, 3)), np.ones(3)):
        assert device.hand_over(device.borrow(nothing)) is nothing
    partial = {"n": block, "total": [block, 2]}  # as Dask's means have them
    lent = device.borrow(partial)
    for array in (lent["n"], lent["total"][0]):
        assert array.data.mem is not block.data.mem
        assert array.data.ptr == block.data.ptr
    assert device.hand_over(lent)["n"].data.mem is block.data.mem


def test_plans_are_ready_when_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy
    from cupy.cuda import cufft

    from dask_dgpu.kernels.device.cuda import CudaDevice

    kind = getattr(cufft.Plan1d, "kind", cufft.Plan1d)
    earlier = kind(36, cufft.CUFFT_Z2Z, 3)  # as of a user who has made it before
    device = CudaDevice()
    block = cupy.random.default_rng(0).random((3, 36)) + 0j
    expected = np.fft.fft(cupy.asnumpy(block))

    def transform(plan: Any) -> Any:
        own = plan or cufft.Plan1d(36, cufft.CUFFT_Z2Z, 3)
        with own:  # which CuPy takes for its own
            return cupy.asnumpy(cupy.fft.fft(block))

    with monkeypatch.context() as patch:  # a stream cannot say whether it was waited for
        null = Mock(wraps=cupy.cuda.Stream.null)
        patch.setattr(cupy.cuda.Stream, "null", null)
        found = device.each(transform, [earlier, None])
    null.synchronize.assert_called_once_with()
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=0, atol=1e-12)
