"""CuPy blocks without a cluster: CuPy in, CuPy out, as NumPy computes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu

pytestmark = pytest.mark.gpu

DTYPES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


@pytest.fixture(autouse=True, params=[1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[None]:
    with dgpu.enable(local_ranks=request.param, on_error="raise", when="always"):
        yield


def on_device(values: Any, chunks: Any) -> da.Array:
    import cupy

    return da.from_array(cupy.asarray(values), chunks=chunks, asarray=False)


def numbers(shape: tuple[int, int], dtype: str, seed: int) -> Any:
    """Small integers: exact in every dtype, and so is their product but in half precision."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.3
    low = 0 if dtype.startswith("u") else -3
    values = rng.integers(low, 4, shape)
    if dtype.startswith("c"):
        return (values + 1j * rng.integers(low, 4, shape)).astype(dtype)
    return values.astype(dtype)


def check(z: da.Array, expected: Any) -> None:
    import cupy

    assert dgpu.explain(z).rewritten
    value = z.compute(scheduler="threads")
    assert isinstance(value, cupy.ndarray)
    assert value.dtype == z.dtype
    np.testing.assert_array_equal(cupy.asnumpy(value), expected.astype(z.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [((13, 17, 1),), ((31,),)])
def test_every_dtype(dtype: str, inner: Any) -> None:
    a, b = numbers((29, 31), dtype, 0), numbers((31, 23), dtype, 1)
    z = on_device(a, ((8, 21), *inner)) @ on_device(b, (*inner, (7, 16)))
    check(z, np.matmul(a.astype(z.dtype), b.astype(z.dtype)))


@pytest.mark.parametrize(("left", "right"), [("int8", "float32"), ("float16", "float64")])
def test_mixed_dtypes(left: str, right: str) -> None:
    a, b = numbers((5, 31), left, 0), numbers((31, 3), right, 1)
    check(on_device(a, (2, 7)) @ on_device(b, (7, 2)), a.astype(right) @ b.astype(right))


def test_transposed_and_strided_blocks() -> None:
    a = numbers((58, 31), "float64", 0)
    x = on_device(a, (29, 16))
    check(x.T @ x, a.T @ a)
    check(x[::2, ::-1] @ x[1::2].T, a[::2, ::-1] @ a[1::2].T)


@pytest.mark.parametrize("shape", [(1, 31, 1), (1, 1, 1), (2, 1, 3)])
def test_tiny(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = numbers((m, k), "float32", 0), numbers((k, n), "float32", 1)
    check(on_device(a, (1, 5)) @ on_device(b, (5, 1)), a @ b)


def test_a_chain_and_a_reduction() -> None:
    import cupy

    a = numbers((29, 31), "float64", 0)
    x = on_device(a, (8, 9))
    check(x @ x.T @ x, a @ a.T @ a)
    np.testing.assert_array_equal(cupy.asnumpy((x @ x.T).sum(axis=0).compute()), (a @ a.T).sum(0))


def test_half_precision_is_summed_in_single() -> None:
    import cupy

    x = on_device(np.ones((1, 4099), "float16"), (1, 1000))
    value = (x @ x.T).compute(scheduler="threads")
    assert cupy.asnumpy(value)[0, 0] == np.float16(4099)


def test_nan_and_infinity() -> None:
    import cupy

    a = np.ones((7, 7), "float32")
    a[1, 2], a[3, 4], a[5, 6] = np.nan, np.inf, -np.inf
    x = on_device(a, (3, 2))
    value = cupy.asnumpy((x @ x).compute(scheduler="threads"))
    with np.errstate(invalid="ignore"):
        wanted = a @ a
    np.testing.assert_array_equal(value, wanted)


def test_numpy_blocks_stay_numpy() -> None:
    a = numbers((29, 31), "float64", 0)
    x = da.from_array(a, chunks=9)
    value = (x @ x.T).compute(scheduler="threads")
    assert type(value) is np.ndarray
    np.testing.assert_array_equal(value, a @ a.T)


def test_one_operand_of_each_kind_is_left_to_dask() -> None:
    x = da.from_array(numbers((8, 8), "float64", 0), chunks=4)
    (piece,) = dgpu.explain(on_device(np.eye(8), 4) @ x).declined
    assert piece.reason == "one operand has NumPy blocks and the other CuPy blocks"


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


def test_kernels_of_another_stream() -> None:
    """Numba, for one, waits for CuPy's stream, and leaves its own kernels on the legacy one."""
    import cupy

    spin = cupy.RawKernel(
        """extern "C" __global__ void spin(long long cycles) {
            const long long begin = clock64();
            while (clock64() - begin < cycles) {}
        }""",
        "spin",
    )

    def later(block: Any) -> Any:
        out = cupy.zeros_like(block)
        cupy.cuda.get_current_stream().synchronize()
        with cupy.cuda.Stream.null:
            spin((1,), (1,), (50_000_000,))
            cupy.add(block, 1, out=out)
        return out

    a = numbers((29, 31), "float64", 0)
    x = on_device(a, (10, 31)).map_blocks(later, dtype=a.dtype, meta=cupy.empty((0, 0)))
    check(x.rechunk((29, 8)), a + 1)


def test_plans_are_ready_when_they_are_made() -> None:
    import cupy
    from cupy.cuda import cufft

    from dask_dgpu.kernels.device.cuda import CudaDevice

    kind = getattr(cufft.Plan1d, "kind", cufft.Plan1d)
    earlier = kind(36, cufft.CUFFT_Z2Z, 3)  # as of a user who has made it before
    device = CudaDevice()
    block = cupy.random.default_rng(0).random((3, 36)) + 0j
    expected = np.fft.fft(cupy.asnumpy(block))
    with device.computing():
        own = cufft.Plan1d(36, cufft.CUFFT_Z2Z, 3)
        assert cupy.cuda.Stream.null.done
        for plan in (earlier, own):
            with plan:  # which CuPy takes for its own
                found = cupy.asnumpy(cupy.fft.fft(block))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
