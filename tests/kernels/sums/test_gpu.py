"""Sums of one CuPy block: the bits that NumPy blocks give, bounds, any axes and strides."""

from __future__ import annotations

import itertools
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.kernels.sums import binned, compensated
from dask_dgpu.kernels.sums.conversion import narrowed, widened
from dask_dgpu.kernels.sums.partial import Kind, added, finished, partial_sum
from tests.support.exact import FAMILIES, exact, family, to_nearest, within_bound

pytestmark = pytest.mark.gpu


SHAPES = [
    (1,),
    (7,),
    (100_003,),
    (50_000, 3),
    (3, 50_000),
    (4099, 16),
    (70, 400),
    (400, 70),
    (9, 11, 13),
    (2, 3000, 5),
    (5, 2, 3, 400),
]


def views(block: Any) -> dict[str, Any]:
    """Return the same numbers at other strides."""
    return {
        "as it is": block,
        "transposed": block.T,
        "turned": block[tuple(slice(None, None, -1) for _ in block.shape)],
        "every second": block[..., ::2],
    }


def all_axes(ndim: int) -> list[tuple[int, ...]]:
    counts = range(ndim + 1)
    return [axes for count in counts for axes in itertools.combinations(range(ndim), count)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reproducible_bits_are_those_of_the_host(shape: tuple[int, ...], dtype: str) -> None:
    import cupy

    for name in ("uniform", "wide"):
        block = family(name, int(np.prod(shape)), dtype).reshape(shape)
        for here, there in zip(
            views(block).values(), views(cupy.asarray(block)).values(), strict=True
        ):
            for axes in all_axes(block.ndim):
                wanted = binned.block_sum(here, axes).value(dtype)
                found = binned.block_sum(there, axes).value(dtype)
                assert found.shape == wanted.shape
                assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n", [1, 2, 7, 1000, 100_003, 3_000_017])
def test_hard_sums(name: str, n: int, dtype: str) -> None:
    import cupy

    values = family(name, n, dtype)
    block = cupy.asarray(values)
    assert binned.block_sum(block, (0,)).value(dtype) == to_nearest(exact(values), dtype)
    value = cupy.asnumpy(compensated.block_sum(block, (0,)).value()).astype(dtype)
    assert within_bound(value, values, np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compensated_along_any_axes(shape: tuple[int, ...], dtype: str) -> None:
    import cupy

    block = np.random.default_rng(1).integers(-50, 50, shape).astype(dtype)
    for here, there in zip(views(block).values(), views(cupy.asarray(block)).values(), strict=True):
        for axes in all_axes(block.ndim):
            wanted = compensated.block_sum(here, axes).value()
            found = compensated.block_sum(there, axes)
            assert isinstance(found.sums, cupy.ndarray)
            np.testing.assert_array_equal(cupy.asnumpy(found.value()), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_few_columns_in_any_order(order: tuple[int, ...], dtype: str) -> None:
    """One run of memory, of which the kept axes are in another order than those of the block."""
    import cupy

    block = family("wide", 5000 * 3 * 4, dtype).reshape(5000, 3, 4)
    here, there = block.transpose(order), cupy.asarray(block).transpose(order)
    axes = (order.index(0),)
    for x, y in ((here, there), (here[::-1, :, ::-1], there[::-1, :, ::-1])):
        wanted, found = (binned.block_sum(each, axes).value() for each in (x, y))
        assert found.tobytes() == wanted.tobytes()
        value = cupy.asnumpy(compensated.block_sum(y, axes).value())
        np.testing.assert_allclose(value, compensated.block_sum(x, axes).value(), rtol=1e-6)


@pytest.mark.parametrize("n", [0, 5000])
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1, np.inf, 2], np.inf),
        ([1, -np.inf, 2], -np.inf),
        ([np.inf, 1, -np.inf], np.nan),
        ([np.nan, np.inf], np.nan),
        ([-0.0, -0.0], 0.0),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_not_finite(values: list[float], wanted: float, dtype: str, n: int) -> None:
    import cupy

    ones = np.arange(2 * n) % 2 * 2 - 1.0
    block = cupy.asarray(np.concatenate([ones, values, ones]).astype(dtype))
    np.testing.assert_equal(float(compensated.block_sum(block, (0,)).value()), wanted)
    np.testing.assert_equal(float(compensated.block_sum(block, (0,), "float64").value()), wanted)
    np.testing.assert_equal(float(binned.block_sum(block, (0,)).value()), wanted)


@pytest.mark.parametrize("shape", [(90_001,), (30_000, 3), (70, 400), (400, 70)], ids=str)
@pytest.mark.parametrize("more", [0, 1, 2**25])
def test_doubles_that_could_overflow_are_summed_apart(shape: tuple[int, ...], more: int) -> None:
    """Small numbers beside them keep their digits, wherever they are."""
    import cupy

    huge, rng = 2.0**1000, np.random.default_rng(len(shape))
    x = rng.random(shape)
    places = np.argsort(rng.random(shape), axis=0)
    x[places < 20], x[(places >= 20) & (places < 40)] = huge, -huge
    x[places == 40] = more * huge  # beyond the largest double if there are as many
    large = np.where(abs(x) >= huge, x / huge, 0).sum(0)
    small = np.where(abs(x) >= huge, 0, x).sum(0)
    wanted = np.where(large == 0, small, large * huge)
    pair = compensated.block_sum(cupy.asarray(x), (0,))
    np.testing.assert_allclose(cupy.asnumpy(pair.value()), wanted, rtol=1e-13)
    np.testing.assert_array_equal(pair.large.get() * 2.0**64, large * huge)
    parts = [compensated.block_sum(cupy.asarray(part), (0,)) for part in np.array_split(x, 5)]
    np.testing.assert_allclose(cupy.asnumpy(compensated.merged(parts).value()), wanted, rtol=1e-13)


@pytest.mark.parametrize("kind", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex128", "int32"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_the_host_waits_for_no_compensated_sum(
    axes: tuple[int, ...], dtype: str, kind: Kind
) -> None:
    """So a GPU can record its launches, and repeat them for other numbers."""
    import cupy

    rng = np.random.default_rng(7)
    blocks = [cupy.empty((300, 70), dtype) for _ in range(3)]
    result = dtype if np.dtype(dtype).kind in "fc" else "float64"

    def work() -> Any:
        partials = [partial_sum(block, axes, "compensated", result) for block in blocks]
        return finished(added(partials), kind, result, axes, False)

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        work()  # compiles, and allocates
        stream.begin_capture()
        found = work()
        graph = stream.end_capture()
        for factor in (1.0, 0.5):
            data = [(rng.random((300, 70)) * factor).astype(dtype) for _ in blocks]
            for block, own in zip(blocks, data, strict=True):
                block.set(own)
            graph.launch()
            wide = np.concatenate(data, axis=-1).astype(complex)
            wanted = sum(own.astype(complex).sum(axes) for own in data)
            wanted = wanted / (wide.size / np.size(wanted)) if kind == "mean" else wanted
            eps = 1e-3 if dtype == "float16" else 1e-6
            np.testing.assert_allclose(found.get().astype(complex), wanted, rtol=eps)


def test_narrowed_on_the_device() -> None:
    """Each double beside a tie becomes what it does on the host."""
    import cupy

    bits = np.arange(0x7F80, dtype=np.uint32)
    values = (bits << np.uint32(16)).view(np.float32).astype(float)
    middles = (values[1:] + values[:-1]) / 2
    for each in (values, middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf)):
        for signed in (each, -each):
            found = cupy.asnumpy(narrowed(cupy.asarray(signed), "bfloat16"))
            assert found.tobytes() == narrowed(signed, "bfloat16").tobytes()


def test_single_precision_keeps_subnormal_numbers() -> None:
    import cupy

    values = np.random.default_rng(3).standard_normal(999) * 2.0 ** np.arange(-999, 0)
    for step in (1, 2):
        found = cupy.asnumpy(narrowed(cupy.asarray(values)[::step], "float32"))
        np.testing.assert_array_equal(found, values[::step].astype("float32"))
    block = np.full((7, 20_000), 3e-45, "float32")
    sums = dgpu.sum(da.from_array(cupy.asarray(block), asarray=False), 0)
    found = cupy.asnumpy(sums.compute(scheduler="synchronous"))
    np.testing.assert_array_equal(found, block.astype(float).sum(0).astype("float32"))


def test_narrow_numbers_become_doubles_on_the_device() -> None:
    import cupy

    bits = np.arange(0x7F80, dtype=np.uint32) << np.uint32(16)
    for dtype in ("bfloat16", "float32"):
        values = narrowed(bits.view(np.float32), dtype)
        found = cupy.asnumpy(widened(cupy.asarray(values)))
        assert found.tobytes() == widened(values).tobytes()


def test_sums_on_their_way_may_be_looked_at_from_another_stream() -> None:
    import cupy

    block = cupy.ones(1 << 28, "float32")
    cupy.cuda.Stream.null.synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        sums = binned.block_sum(block, (0,))
    assert float(sums.value()) == 1 << 28


def test_two_billion_values() -> None:
    import cupy

    block = cupy.full(1 << 31, 0.1, "float32")
    wanted = np.float32(float(np.float32(0.1)) * 2**31)
    assert binned.block_sum(block, (0,)).value("float32") == wanted
    assert compensated.block_sum(block, (0,)).value().astype("float32") == wanted
