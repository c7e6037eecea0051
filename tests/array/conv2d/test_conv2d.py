"""``dgpu.conv2d`` against torch: plain Dask, and gangs whose ranks are threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import dask
import dask.array as da
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.profiles import examples
from tests.support.reference.conv2d import check_conv2d, conv2d_reference

Array = Any
ALWAYS = {"on_error": "raise", "when": "always"}
DTYPES = ["float32", "float64", "float16", "bfloat16"]
MASKED = da.ones((1, 1, 4, 4)).map_blocks(np.ma.array, meta=np.ma.array(np.empty((0,) * 4)))
X, W = da.ones((2, 4, 6, 8), chunks=3), da.ones((6, 2, 3, 3))


@pytest.fixture(params=[None, 1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param is None:
        yield None
    else:
        with dgpu.enable(local_ranks=request.param, **ALWAYS) as state:
            yield state


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def chunks_of(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Uneven chunks, some of them empty."""
    found = []
    for length in shape:
        edges = sorted(draw(st.lists(st.integers(0, length), max_size=3)))
        found.append(tuple(np.diff([0, *edges, length]).tolist()))
    return tuple(found)


@st.composite
def problems(
    draw: st.DrawFn,
) -> tuple[tuple[da.Array | None, ...], tuple[Array, ...], dict[str, Any]]:
    """Images, weights, and a bias or none, as Dask's arrays and as NumPy's; the options."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inputs, outputs = (draw(st.integers(1, 2)) for _ in range(2))
    taps = tuple(draw(st.integers(1, 5)) for _ in range(2))
    stride, dilation = ((draw(st.integers(1, 3)), draw(st.integers(1, 3))) for _ in range(2))
    padding: Any = draw(st.sampled_from(["same", "valid", "numbers", "numbers"]))
    if padding == "numbers":
        padding = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    zeros = padding if isinstance(padding, tuple) else (0, 0)
    if padding == "same":
        stride = 1, 1
    least = (max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilation, taps, zeros, strict=True))
    lengths = tuple(n + draw(st.integers(0, 13)) for n in least)
    images = draw(st.sampled_from([0, 1, 2, 3, 5]))
    # without both images and channels, torch drops the output's channels too
    channels = groups * inputs if draw(st.integers(0, 19)) or not images else 0
    x_shape = (images, channels, *lengths)
    w_shape = (groups * outputs, channels // groups, *taps)
    dtype = draw(st.sampled_from(DTYPES))
    shapes = [x_shape, w_shape, w_shape[:1]] if draw(st.booleans()) else [x_shape, w_shape]
    arrays = [numbers(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    parts = [da.from_array(each, chunks=chunks_of(draw, each.shape)) for each in arrays]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return parts, arrays, options


@examples(300)
@given(problem=problems(), ranks=st.sampled_from([None, 1, 2, 3, 5, 7]))
def test_equals_torch(problem: Any, ranks: int | None) -> None:
    parts, arrays, options = problem
    with nullcontext() if ranks is None else dgpu.enable(local_ranks=ranks, **ALWAYS):
        y = dgpu.conv2d(*parts, **options)
        value = y.compute(scheduler="synchronous")
        blocks = dask.compute(*y.to_delayed().ravel(), scheduler="synchronous")
    assert (value.shape, value.dtype) == (y.shape, y.dtype)
    for index, block in zip(np.ndindex(*y.numblocks), blocks, strict=True):
        assert block.shape == tuple(c[at] for c, at in zip(y.chunks, index, strict=True))
    check_conv2d(value, arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None, **options)


@pytest.mark.parametrize("shape", [(4, 2, 16, 16), (1, 2, 40, 16), (2, 2, 7, 11)])
def test_runs_in_a_gang(shape: tuple[int, ...], gangs: list[str], enabled: Any) -> None:
    x, w = numbers(shape, "float32"), numbers((3, 2, 3, 3), "float32", 1)
    y = dgpu.conv2d(da.from_array(x, chunks=(1, 2, 8, 8)), w, padding=1)
    check_conv2d(y.compute(), x, w, None, padding=1)
    assert len(gangs) == (0 if enabled is None else 1)


def test_arguments_as_torch_takes_them(enabled: Any) -> None:
    x, w, b = (numbers(shape, "float64") for shape in [(2, 4, 9, 8), (4, 1, 3, 2), (4,)])
    y = dgpu.conv2d(x, w, b, stride=[2], padding=np.array([1, 2]), dilation=np.int64(2), groups=4)
    options = {"stride": 2, "padding": (1, 2), "dilation": 2, "groups": 4}
    check_conv2d(y.compute(), x, w, b, **options)


def test_is_part_of_a_region(gangs: list[str], enabled: Any) -> None:
    x, w = numbers((2, 3, 20, 20), "float32"), numbers((3, 3, 3, 3), "float32", 1)
    first = dgpu.conv2d(da.from_array(x, chunks=(1, 3, 10, 10)) * 2, w, padding="same")
    y = dgpu.conv2d(da.maximum(first, 0), w, padding="same").sum(axis=1)
    inner = np.maximum(dgpu.conv2d(2 * x, w, padding="same").compute(), 0)
    wanted = dgpu.conv2d(inner, w, padding="same").compute().sum(axis=1)
    gangs.clear()
    np.testing.assert_allclose(y.compute(), wanted, rtol=1e-4, atol=1e-4)
    assert len(gangs) == (0 if enabled is None else 1)


def test_a_part_computes_only_what_it_needs(enabled: Any) -> None:
    x, w = numbers((4, 2, 30, 9), "float32"), numbers((3, 2, 3, 3), "float32", 1)
    read = []

    def seen(block: Array, block_info: Any = None) -> Array:
        read.append(tuple(block_info[0]["chunk-location"]))
        return block

    source = da.from_array(x, chunks=(1, 2, 10, 9))
    noted = source.map_blocks(seen, dtype=x.dtype, meta=source._meta)
    y = dgpu.conv2d(noted, w, padding=1)[2:3, :, :10]
    wanted = conv2d_reference(x, w, None, padding=1)[2:3, :, :10]
    np.testing.assert_allclose(y.compute(scheduler="synchronous"), wanted, atol=1e-5)
    assert set(read) == {(2, 0, 0, 0), (2, 0, 1, 0)}


def test_chunks_follow_those_of_the_images() -> None:
    x = da.zeros((5, 2, 20, 30), chunks=((2, 3), (1, 1), (7, 13), (10, 10, 10)))
    w = np.ones((4, 2, 3, 3))
    assert dgpu.conv2d(x, w, padding="same").chunks == ((2, 3), (4,), (7, 13), (10, 10, 10))
    assert dgpu.conv2d(x, w, padding=1).chunks == ((2, 3), (4,), (7, 13), (10, 10, 10))
    assert dgpu.conv2d(x, w).chunks == ((2, 3), (4,), (6, 12), (9, 10, 9))
    assert dgpu.conv2d(x, w, stride=2, padding=1).chunks == ((2, 3), (4,), (4, 6), (5, 5, 5))


def test_is_deterministic_in_its_name() -> None:
    x, w = X[:, :2], W
    assert dgpu.conv2d(x, w).name == dgpu.conv2d(x, w).name != dgpu.conv2d(x, w, padding=1).name


@pytest.mark.parametrize("shape", [(40, 2, 130, 90), (2, 2, 1200, 300)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_images_larger_than_a_slab(dtype: str, shape: tuple[int, ...]) -> None:
    """Blocks are convolved some images, or some rows of an image, at a time."""
    x, w, b = (numbers(each, dtype) for each in [shape, (4, 1, 4, 3), (4,)])
    for options in ({"padding": "same"}, {"padding": 9, "stride": 2}, {"dilation": 3}):
        y = dgpu.conv2d(x, w, b, groups=2, **options)
        check_conv2d(y.compute(), x, w, b, groups=2, **options)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra brings it; a worker may lack it though the client has it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"conv2d needs torch: pip install 'dask-dgpu\[torch\]'"):
        dgpu.conv2d(X, W, groups=2).compute(scheduler="sync")


def test_blocks_of_any_strides_and_byte_order() -> None:
    x, w = numbers((2, 3, 9, 8), "float32"), numbers((2, 3, 3, 3), "float32", 1)
    for view in (x[::-1, :, ::-2], np.asfortranarray(x), np.broadcast_to(x[:1], x.shape)):
        y = dgpu.conv2d(da.from_array(view, chunks=(1, 3, -1, -1), asarray=False), w)
        check_conv2d(y.compute(), np.ascontiguousarray(view), w, None)
    swapped = da.from_array(x.astype(">f4"), chunks=4)
    assert dgpu.conv2d(swapped, w).dtype.isnative
    check_conv2d(dgpu.conv2d(swapped, w).compute(), x, w, None)


BAD: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((X[0], W), {}, ValueError, "expected x with 4 axes, got 3"),
    ((X, W[0]), {}, ValueError, "expected weight with 4 axes, got 3"),
    ((X, W, W), {}, ValueError, "expected bias with 1 axes, got 4"),
    ((X, W), {}, ValueError, r"expected x with 2 channels for weight of shape \(6, 2, 3, 3\) and"),
    ((X, W, np.ones(5)), {"groups": 2}, ValueError, r"expected bias of shape \(6,\), got \(5,\)"),
    ((X, W[:5]), {"groups": 2}, ValueError, "multiple of groups=2 output channels, got 5"),
    ((X, W[:0]), {"groups": 2}, ValueError, "multiple of groups=2 output channels, got 0"),
    ((X, W[:, :, :0]), {"groups": 2}, ValueError, "kernels of at least 1 of rows, got 0"),
    ((X, W), {"groups": 0}, ValueError, "groups to be an integer of at least 1, got 0"),
    ((X, W), {"groups": 2.0}, TypeError, "groups to be an integer of at least 1, got 2.0"),
    ((X, W), {"stride": 0}, ValueError, "stride to be an integer of at least 1, got 0"),
    ((X, W), {"stride": (1, -1)}, ValueError, "each of stride to be an integer of at least 1, got"),
    ((X, W), {"stride": (1, 1, 1)}, ValueError, "stride to be an integer or a pair of integers"),
    ((X, W), {"dilation": -1}, ValueError, "dilation to be an integer of at least 1, got -1"),
    ((X, W), {"padding": -1}, ValueError, "padding to be an integer of at least 0, got -1"),
    (
        (X, W),
        {"padding": "full"},
        ValueError,
        "unknown padding 'full', expected one of valid",
    ),
    ((X, W), {"padding": None}, TypeError, "padding to be an integer of at least 0, got None"),
    ((X, W), {"padding": "same", "stride": 2}, ValueError, "stride 1 with padding 'same', got 2"),
    ((X, W), {"groups": 2, "dilation": 3}, ValueError, "reach at most 6 rows, the padded length"),
    (
        (X[:, :, :, :0], W),
        {"groups": 2},
        ValueError,
        "x with at least 1 of columns, got 0",
    ),
    ((X.astype("f4"), W), {}, TypeError, "expected weight of dtype float32 as x, got float64"),
    ((X, W, np.ones(6, "f4")), {}, TypeError, "expected bias of dtype float64 as x, got float32"),
    ((X.astype(int), W), {}, TypeError, "expected x to be of real floating-point numbers.*got int"),
    ((X, W.astype(complex)), {}, TypeError, "weight to be of real floating-point .*got complex128"),
    ((X.astype("g"), W), {}, TypeError, "expected x to be of real floating-point numbers"),
    ((X[X[:, 0, 0, 0] > 0], W), {}, ValueError, "expected x with known chunk sizes, got unknown"),
    ((MASKED, W), {}, TypeError, "expected x with blocks of NumPy or CuPy, got numpy.ma"),
    ((None, W), {}, TypeError, "expected x to be an array, got None"),
]


@pytest.mark.parametrize(("arrays", "options", "error", "message"), BAD)
def test_bad_arguments(
    arrays: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        dgpu.conv2d(*arrays, **options)
    assert "\n" not in str(raised.value)
