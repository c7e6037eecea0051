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
