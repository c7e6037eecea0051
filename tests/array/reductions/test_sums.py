"""dgpu.sum, mean, max and min in one process: values, dtypes, bits, tasks, errors, settings."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import convert_legacy_graph
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.exact import FAMILIES, exact, family, to_nearest, within_bound
from tests.support.profiles import examples

METHODS = ("compensated", "reproducible", "dask")
DTYPES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
QUICK = "bool", "int32", "float16", "float64", "complex64"
SHAPE = (7, 11, 5)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    with dask.config.set(scheduler="synchronous"):
        yield


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(3)
    if dtype == "bool":
        return rng.random(shape) < 0.4
    values = rng.integers(0, 5, shape)
    return (values + 1j * values[::-1]).astype(dtype) if dtype[0] == "c" else values.astype(dtype)


def check(result: da.Array, wanted: Any) -> None:
    value = result.compute()
    assert type(value) is type(wanted)
    assert (value.dtype, value.shape) == (result.dtype, result.shape)
    assert (value.dtype, value.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(value, wanted, rtol=4 * np.finfo("float32").eps)


@pytest.mark.parametrize(
    "dtype",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in DTYPES],
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_dtype_shape_and_value_are_those_of_numpy(name: str, method: Any, dtype: str) -> None:
    a = numbers(SHAPE, dtype)
    x = da.from_array(a, chunks=(3, 4, 5))
    for axis in (None, 0, -1, (0, 2), (), (1,), (-1, 0, 1)):
        for keepdims in (False, True):
            result = getattr(dgpu, name)(x, axis, keepdims, method=method)
            check(result, getattr(np, name)(a, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize("wanted", ["int64", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
@pytest.mark.parametrize("method", METHODS)
def test_dtype_of_the_result(method: Any, dtype: str, wanted: str) -> None:
    a = numbers(SHAPE, dtype)
    x = da.from_array(a, chunks=3)
    check(dgpu.sum(x, 0, dtype=wanted, method=method), a.sum(0, dtype=wanted))


def test_numbers_are_converted_first_where_the_dtype_cannot_hold_them() -> None:
    x = da.from_array(np.array([1 + 2.0**-30] * 4), chunks=2)
    assert dgpu.sum(x, dtype="float32").compute() == 4
    assert dgpu.sum(x.astype("float32"), dtype="float64").compute() == 4


@pytest.mark.parametrize("name", ["max", "min"])
def test_largest_and_smallest(name: str) -> None:
    a = numbers(SHAPE, "float32")
    x = da.from_array(a, chunks=3)
    for axis in (None, 1, (0, -1)):
        check(getattr(dgpu, name)(x, axis, True), getattr(np, name)(a, axis, keepdims=True))
    for axis in (None, 0, (0, 1)):
        with pytest.raises(ValueError, match="expected x with elements along axis 0, got 0"):
            getattr(dgpu, name)(da.zeros((0, 3)), axis)


@examples(200)
@given(data=st.data(), name=st.sampled_from(FAMILIES), dtype=st.sampled_from(["f4", "f8"]))
def test_compensated_error_for_any_chunks(data: st.DataObject, name: str, dtype: str) -> None:
    n = data.draw(st.integers(1, 3000))
    values = family(name, n, dtype)
    cuts = data.draw(st.sets(st.integers(1, n), max_size=9))
    chunks = tuple(np.diff([0, *sorted(cuts - {n}), n]).tolist())
    value = dgpu.sum(da.from_array(values, chunks=(chunks,))).compute()
    assert within_bound(value, values, np.finfo(dtype).eps)


@examples(1000)
@given(data=st.data(), name=st.sampled_from(FAMILIES), dtype=st.sampled_from(["f4", "f8"]))
def test_same_bits_for_any_chunks_and_order(data: st.DataObject, name: str, dtype: str) -> None:
    n = data.draw(st.integers(1, 300))
    values = family(name, n, dtype)
    if data.draw(st.booleans()):
        values = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(values)
    chunks = data.draw(st.integers(max(1, n // 9), n))
    x = da.from_array(values, chunks=chunks)
    value = dgpu.sum(x, method="reproducible").compute()
    assert value.tobytes() == to_nearest(exact(values), values.dtype.name).tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "complex64"])
def test_sums_of_narrow_numbers_are_as_good_as_the_result(dtype: str) -> None:
    """The bound is that of the result's dtype: added as plain doubles they would not keep it."""
    real, wanted = ("float32", "complex128") if dtype == "complex64" else (dtype, "float64")
    for name in ("condition 1e16", "wide", "huge and tiny"):
        values = family(name, 3000, real)
        if real == "float32":
            values[:3] = 1, 1e-20, -1
        x = da.from_array(values.astype(dtype), chunks=1100)
        for y in (x, da.stack([x] * 3, axis=1)):
            sums = dgpu.sum(y, 0, dtype=wanted).compute()
            means = dgpu.mean(y, 0, dtype=wanted).compute()
            for value, mean in zip(np.atleast_1d(sums), np.atleast_1d(means), strict=True):
                assert within_bound(value.real, values, np.finfo(float).eps)
                assert mean.real == value.real / 3000
    x = da.from_array(np.array([1, 1e-20, -1], "float32"))
    assert dgpu.sum(x, dtype=float).compute() == float(np.float32(1e-20))
    assert dgpu.sum(x[:, None], 0, dtype=float).compute() == float(np.float32(1e-20))


def test_reproducible_along_axes() -> None:
    a = family("wide", 6 * 7 * 8, "float64").reshape(6, 7, 8)
    wanted = {}
    for chunks in [(6, 7, 8), (1, 2, 3), (4, 7, 5), (5, 1, 8)]:
        x = da.from_array(a, chunks=chunks)
        for axis in (0, 1, 2, (0, 1), (1, 2), None):
            for mean in (False, True):
                function = dgpu.mean if mean else dgpu.sum
                value = function(x, axis, method="reproducible").compute()
                assert wanted.setdefault((axis, mean), value.tobytes()) == value.tobytes()


def test_strided_axis_keeps_its_digits() -> None:
    a = np.full((300_000, 2), 0.1, "float32")
    x = da.from_array(a, chunks=(70_000, 2))
    exact_sum = 300_000 * float(np.float32(0.1))
    for method in ("compensated", "reproducible"):
        error = abs(dgpu.sum(x, 0, method=method).compute() - exact_sum) / exact_sum
        assert error.max() <= np.finfo("float32").eps / 2
    assert (abs(a.sum(0) - exact_sum) / exact_sum).max() > 1e-4


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
@pytest.mark.parametrize(
    ("values", "wanted"),
    [([np.inf, 1], np.inf), ([-np.inf, np.inf], np.nan), ([np.nan, np.inf], np.nan), ([], 0.0)],
)
def test_what_is_not_finite_or_empty(method: Any, values: list[float], wanted: float) -> None:
    x = da.from_array(np.array([*values, *values]), chunks=1 if values else -1)
    np.testing.assert_equal(dgpu.sum(x, method=method).compute(), wanted)


@pytest.mark.parametrize("chunks", [1, 2, 5])
@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_overflow_on_the_way(method: Any, chunks: int) -> None:
    huge = np.finfo("float64").max
    x = da.from_array(np.array([huge, huge, -huge, -huge, 1.0]), chunks=chunks)
    assert dgpu.sum(x, method=method).compute() == 1
    assert dgpu.sum(x * 1j, method=method).compute() == 1j
    assert dgpu.sum(x[:3], method=method).compute() == huge
    assert dgpu.sum(x[:2], method=method).compute() == np.inf


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(1000,), (1000, 3), (300, 40), (60, 5, 7)], ids=str)
def test_small_numbers_beside_large_ones_keep_their_digits(shape: Any, order: Any) -> None:
    huge, rng = 2.0**1023, np.random.default_rng(len(shape))
    places = np.argsort(rng.random(shape), axis=0)
    small = np.where(places < 40, 0, rng.random(shape))
    values = np.where(places < 40, np.where(places < 20, huge, -huge), small)
    values = np.asarray(values, order=order)
    wanted = np.sum(small, axis=0)
    for chunks in (-1, 17):
        x = da.from_array(values, chunks=chunks)
        np.testing.assert_allclose(dgpu.sum(x, axis=0).compute(), wanted, rtol=1e-13)
    values[(3,) + (0,) * (len(shape) - 1)] = np.inf
    found = np.atleast_1d(dgpu.sum(da.from_array(values, chunks=29), axis=0).compute()).ravel()
    assert found[0] == np.inf
    np.testing.assert_allclose(found[1:], np.ravel(wanted)[1:], rtol=1e-13)


def test_overflow_of_the_result() -> None:
    single = da.full(4, np.finfo("float32").max, chunks=1, dtype="float32")
    assert dgpu.sum(single).compute() == np.float32(np.inf)
    assert dgpu.mean(single).compute() == np.finfo("float32").max


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_mean_of_nothing_is_nan(method: Any) -> None:
    assert np.isnan(dgpu.mean(da.zeros((0,)), method=method).compute())
    x = da.from_array(np.arange(9.0), chunks=2)
    assert dgpu.mean(x[x > 3], method=method).compute() == 6
    assert dgpu.sum(x[x > 3], method=method).compute() == 30


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
@pytest.mark.parametrize("method", METHODS)
def test_variance_and_deviation(method: Any, dtype: str) -> None:
    a = (np.random.default_rng(8).standard_normal((50, 7)) * 30 + 100).astype(dtype)
    wide = a.astype("complex128" if dtype[0] == "c" else "float64")
    x = da.from_array(a, chunks=(13, 4))
    for axis in (None, 0, 1, (0, 1)):
        for ddof in (0, 1):
            for name in ("var", "std"):
                y = getattr(dgpu, name)(x, axis, axis == 0, ddof=ddof, method=method)
                value = y.compute()
                wanted = getattr(np, name)(wide, axis=axis, keepdims=axis == 0, ddof=ddof)
                assert (value.shape, value.dtype) == (wanted.shape, y.dtype)
                assert value.dtype == getattr(np, name)(a).dtype
                rtol = np.finfo(value.dtype).eps * (16 if method != "dask" else 1e3)
                np.testing.assert_allclose(value, wanted, rtol=rtol)


def test_variance_beside_a_large_mean() -> None:
    small = np.random.default_rng(9).integers(0, 1 << 20, 5000) / 2**20
    fractions = [Fraction(each) for each in small.tolist()]
    mean = sum(fractions) / 5000
    wanted = sum((each - mean) ** 2 for each in fractions) / 5000
    for method in ("compensated", "reproducible"):
        values = {
            dgpu.var(da.from_array(small + 2.0**30, chunks=chunks), method=method).compute()
            for chunks in (5000, 700, 33)
        }
        assert all(abs(Fraction(float(v)) / wanted - 1) < 2**-50 for v in values)
        assert len(values) == 1 or method == "compensated"


def test_variance_of_too_few_is_nan() -> None:
    assert np.isnan(dgpu.var(da.ones(1), ddof=1).compute())
    assert np.isnan(dgpu.std(da.ones(0)).compute())
    with pytest.raises(TypeError, match="expected dtype to be real or complex, got int64"):
        dgpu.var(da.ones(3), dtype=int)


@pytest.mark.parametrize("blocks", [1, 7, 500])
def test_tasks(blocks: int) -> None:
    x = da.from_array(np.ones(1000), chunks=1000 // blocks)
    source = len(dask.optimize(x)[0].__dask_graph__())
    for method in ("compensated", "reproducible"):
        (y,) = dask.optimize(dgpu.sum(x, method=method))
        assert len(y.__dask_graph__()) <= source + x.npartitions + 2
    (one,) = dask.optimize(dgpu.sum(da.ones(1000, chunks=1000 // blocks) * 2))
    assert len(one.__dask_graph__()) == x.npartitions + 1  # fused with what is before


def test_large_partial_sums_are_added_a_few_at_a_time() -> None:
    x = da.zeros((1000, 2_000_000), chunks=(1, 1_000_000), dtype="float32")
    y = dgpu.sum(x, axis=0)
    graph = convert_legacy_graph(dict(y.dask))
    most = max(len(task.dependencies) for task in graph.values())
    assert 2 <= most <= 4
    assert len(y.dask) < 2 * len(dgpu.sum(x).dask)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"axis": 2}, ValueError, "axis 2 is out of bounds"),
        ({"axis": (0, -2)}, ValueError, "repeated axis"),
        ({"axis": 1.5}, TypeError, "expected axis to be an integer, got 1.5"),
        ({"axis": "rows"}, TypeError, "expected axis to be an integer, got 'rows'"),
        ({"method": "kahan"}, ValueError, "unknown method 'kahan', expected one of compensated,"),
        ({"dtype": object}, TypeError, "expected dtype to be of bools or numbers.*, got object"),
    ],
)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_bad_arguments(name: str, arguments: Any, error: type[Exception], message: str) -> None:
    x = da.ones((4, 4), chunks=2)
    with pytest.raises(error, match=message):
        getattr(dgpu, name)(x, **arguments)


def test_bad_arrays() -> None:
    for values in (np.array([1, 2], object), np.array(["a"]), np.array(["2020"], "M8[Y]")):
        for function in (dgpu.sum, dgpu.mean, dgpu.var, dgpu.std, dgpu.norm):
            with pytest.raises(TypeError, match=r"expected x to be of (bools or )?numbers"):
                function(values)
        with pytest.raises(TypeError, match=r"expected x to be of (bools or )?numbers"):
            dgpu.sum(da.from_array(values, chunks=1))
        with pytest.raises(TypeError, match=r"expected x to be of (bools or )?numbers"):
            dgpu.var(da.from_array(values, chunks=1))
    with pytest.raises(TypeError, match="of at most double precision"):
        dgpu.sum(da.ones(4, chunks=2, dtype="longdouble"))
    with pytest.raises(TypeError, match="expected ddof to be a finite number, got 'a'"):
        dgpu.var(da.ones(4, chunks=2), ddof="a")  # type: ignore[arg-type]
    masked = da.ma.masked_greater(da.ones(4, chunks=2), 2)
    with pytest.raises(TypeError, match="expected x with blocks of NumPy or CuPy, got "):
        dgpu.sum(masked)
    with pytest.raises(ValueError, match="axis 1 is out of bounds"):
        dgpu.max(da.ones(3), axis=1)


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_masked_blocks_of_a_plain_array(method: Any) -> None:
    x = da.ones(4, chunks=2).map_blocks(np.ma.masked_greater, 0, meta=np.empty(0))
    with pytest.raises(TypeError, match="got a masked array"):
        dgpu.sum(x, method=method).compute()


@pytest.mark.parametrize("name", ["var", "std"])
def test_variance_of_unknown_chunk_sizes(name: str) -> None:
    x = da.from_array(np.arange(12.0).reshape(4, 3), chunks=2)
    some = x[x[:, 0] > 2]
    with pytest.raises(ValueError, match="x with known chunk sizes, got unknown ones along axis 0"):
        getattr(dgpu, name)(some)
    along = np.arange(3.0, 12).reshape(3, 3)
    rows = getattr(dgpu, name)(some, axis=1).compute()
    np.testing.assert_allclose(rows, getattr(np, name)(along, axis=1), rtol=1e-14, strict=True)
    check(getattr(dgpu, name)(some, method="dask"), getattr(np, name)(along))


@pytest.mark.parametrize("method", METHODS)
def test_no_dimensions(method: Any) -> None:
    x = da.from_array(np.arange(4.0), chunks=2)[3]
    for result in (dgpu.sum(x, method=method), dgpu.mean(x, (), method=method)):
        assert result.compute() == 3


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex128", "int32"])
@pytest.mark.parametrize("method", METHODS)
def test_no_dimensions_after_arithmetic(method: Any, dtype: str) -> None:
    """What NumPy makes of an array without axes is no array."""
    x = da.from_array(np.array(3, dtype), chunks=())
    check(dgpu.sum(x * x, method=method), (np.array(3, dtype) * 3).sum())
    check(dgpu.mean(x * x, (), method=method), (np.array(3, dtype) * 3).mean(axis=()))
    check(dgpu.var(x, method=method), np.var(np.array(3, dtype)))


def test_lists_are_arrays() -> None:
    assert dgpu.sum([1.0, 2.0]).compute() == 3
    assert dgpu.mean(np.arange(5)).compute() == 2


class TestSetting:
    """``dgpu.sum.method`` is how plain sums and means add."""

    def kinds(self, x: da.Array) -> list[str]:
        results = [x.sum(), da.sum(x, 0), np.sum(x), x.mean(), np.mean(x, axis=1, keepdims=True)]
        return [result.name.partition("-")[0] for result in results]

    def test_on_and_off(self) -> None:
        x = da.ones((4, 6), chunks=2)
        own = ["sum", "sum", "sum", "mean_agg", "mean_agg"]
        assert self.kinds(x) == own
        with dgpu.enable(sum_method="reproducible", on_error="raise"):
            assert self.kinds(x) == ["reproducible_sum"] * 3 + ["reproducible_mean"] * 2
            with dgpu.enable(sum_method="compensated", on_error="raise"):
                assert self.kinds(x) == ["compensated_sum"] * 3 + ["compensated_mean"] * 2
                assert dgpu.sum(x, method="dask").name.startswith("sum-")
            assert self.kinds(x) == ["reproducible_sum"] * 3 + ["reproducible_mean"] * 2
            with dgpu.enable(on_error="raise"):
                assert self.kinds(x) == own
            assert x.sum(dtype=int).name.startswith("sum-")
            np.testing.assert_array_equal(x.sum(0, keepdims=True).compute(), [[4] * 6])
        assert self.kinds(x) == own

    def test_numpy_arrays(self) -> None:
        a = family("condition 1e16", 999, "float64")
        with dgpu.enable(sum_method="reproducible", on_error="raise"):
            assert da.sum(a).compute() == to_nearest(exact(a), "float64")
            assert da.mean(a, 0).name.startswith("reproducible_mean")
            assert da.sum(np.array([True, True])).compute() == 2
            assert type(np.sum(a)) is np.float64

    def test_what_it_cannot_do_is_left_to_dask(self) -> None:
        x = da.ones((4, 6), chunks=2)
        with dgpu.enable(sum_method="reproducible", on_error="raise"):
            masked = da.ma.masked_greater(x, 2)
            assert masked.sum().name.startswith("sum-")
            assert da.from_array(np.array([1, 2], object), chunks=1).sum().compute() == 3
            out = da.zeros(())
            x.sum(out=out)
            assert out.compute() == 24
            assert x.T.dot(x).name.startswith("sum-")  # a rule knows products by it

    def test_bad_value(self) -> None:
        with pytest.raises(ValueError, match=r"dgpu\.sum\.method"):
            dgpu.enable(sum_method="fast")


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_within_a_region(method: Any) -> None:
    a = np.random.default_rng(5).random((16, 12))
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        y = abs(da.fft.fft2(da.from_array(a, chunks=(4, 12)))) ** 2
        wanted = abs(np.fft.fft2(a)) ** 2
        for axis in (None, 0):
            z = dgpu.sum(y, axis, method=method)
            (gang,) = dgpu.explain(z).to_dict()["regions"]
            assert len(gang["steps"]) > 2
            np.testing.assert_allclose(z.compute(), wanted.sum(axis), rtol=1e-12)
