"""Layers of elementwise work and reductions run as one kernel on each block, as Dask's own do."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.base
import numpy as np
import pytest
from dask.local import get_sync
from dask.tokenize import tokenize
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from graph_opt.model.expression import Apply, Expression
from tests.support.profiles import examples

Program = Callable[..., Any]
RNG = np.random.default_rng(7)
X = RNG.normal(size=(8, 6)).astype("float32")
Y = RNG.normal(size=(8, 6))
ONE_BLOCK_OF_COLUMNS = (4, 6)
SYNC = {"scheduler": "synchronous"}


def softmax(x: Any, y: Any) -> Any:
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def layer_norm(x: Any, y: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)


def standardise(x: Any, y: Any) -> Any:
    return (x - x.mean(axis=1)[:, None]) / x.std(axis=1)[:, None]


ELEMENTWISE: dict[str, Program] = {
    "gelu": lambda x, y: 0.5 * x * (1 + np.tanh(0.79788456 * (x + 0.044715 * x * x * x))),
    "powers": lambda x, y: x**2 - abs(x) ** 0.5 + y**-1 * (x + 3) ** 1.5,
    "where of scalars": lambda x, y: da.where(x > 0, 1, 0.0) * x,
    "casts": lambda x, y: (x * 3).astype("int16") + y.astype("float16"),
    "clip": lambda x, y: da.clip(x, -0.5, None) + y.clip(None, 1) + da.clip(x, 0, 1),
    "transposes": lambda x, y: x.T * 2 + y.T,
    "new axes": lambda x, y: (x * 2)[:, None] + (y + 1)[None],
    "inserted axes": lambda x, y: da.expand_dims(x * 2, (0, 2)) + da.expand_dims(y, 1)[None],
    "dropped axes": lambda x, y: da.squeeze((x * 2)[:, None, :, None]) + y,
    "swapped axes": lambda x, y: da.swapaxes(x * 2, 0, 1) + da.moveaxis(y, 0, 1) * 3,
    "broadcast": lambda x, y: da.broadcast_to(x * 2 + 1, (3, *x.shape)) + y,
    "broadcast rows": lambda x, y: x * 2 + (y[0] * 3 + 1),
    "broadcast columns": lambda x, y: x * 2 + (y[:, 0] * 3 + 1)[:, None],
    "declared dtype": lambda x, y: da.add(x, y, dtype="float32") * 2,
    "complex": lambda x, y: (x * 1j + y).real + da.angle(x - 1j) + (y * 1j).imag,
    "bits": lambda x, y: ~((x > 0) & (y < 1)) ^ (x.astype("int8") << 1 > 2),
    "rounding": lambda x, y: da.round(x, 1) - da.around(y, 2) + np.float32(3) * da.nan_to_num(y),
    "scalars of arrays": lambda x, y: (x - x[0, 0]) * (y[0, 0] + 1),
    "random numbers": lambda x, y: da.random.default_rng(3).normal(size=6, chunks=6) * 2 + x,
}
REDUCTIONS: dict[str, Program] = {
    "softmax": softmax,
    "layer norm": layer_norm,
    "standardise": standardise,
    "norm": lambda x, y: da.linalg.norm(x - y, axis=1),
    "mean": lambda x, y: (x * y).mean(axis=1),
    "std": lambda x, y: (x * y).std(axis=1, ddof=1),
    "complex variance": lambda x, y: (x * 1j + y).var(axis=1),
    "sum of float32": lambda x, y: (x * 2).sum(axis=1, dtype="float64"),
    "nanmax": lambda x, y: da.nanmax(da.where(x > 0, x, np.nan), axis=1),
    "argmax": lambda x, y: (x * 2).argmax(axis=1),
    "any": lambda x, y: (x > 1).any(axis=1),
}
TREES: dict[str, Program] = {
    "mean": lambda x, y: (x * y).mean(axis=0),
    "nanmean": lambda x, y: da.nanmean(da.where(x > 0, x, np.nan), axis=0),
    "std": lambda x, y: (x * y).std(axis=0),
    "complex variance": lambda x, y: (x * 1j + y).var(axis=0),
    "total": lambda x, y: (x * y).sum(),
    "count": lambda x, y: da.count_nonzero(x * 2 > 1, axis=0),
}


def arrays(chunks: Any = ONE_BLOCK_OF_COLUMNS) -> tuple[da.Array, da.Array]:
    return da.from_array(X, chunks=chunks), da.from_array(Y, chunks=chunks)


def tasks(array: da.Array) -> int:
    return len(dask.base.optimize(array)[0].dask)


def check_alike(found: Any, expected: Any, exact: bool = True) -> None:
    """Check values, dtype, shape and type of a result; exact ones bit for bit, NaN alike."""
    assert type(found) is type(expected)
    assert (np.asarray(found).dtype, np.shape(found)) == (
        np.asarray(expected).dtype,
        np.shape(expected),
    )
    if exact:
        np.testing.assert_array_equal(found, expected)
        if expected.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    else:
        eps = np.finfo(expected.dtype).eps if expected.dtype.kind in "fc" else 0.0
        np.testing.assert_allclose(found, expected, rtol=64 * eps, atol=64 * eps)


@pytest.mark.parametrize(
    ("program", "exact"),
    [
        *(pytest.param(program, True, id=name) for name, program in ELEMENTWISE.items()),
        *(pytest.param(program, False, id=name) for name, program in REDUCTIONS.items()),
    ],
)
def test_a_chain_is_one_call_a_block(
    evaluated: list[Expression], program: Program, exact: bool
) -> None:
    array = program(*arrays())
    expected, before = array.compute(**SYNC), tasks(array)
    with dgpu.enable(on_error="raise"):
        check_alike(array.compute(**SYNC), expected, exact)
        assert len(evaluated) == array.npartitions
        assert tasks(array) <= before


@pytest.mark.parametrize("exponent", [3, 4, 3.0, 4.0, 5])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int64"])
def test_small_powers_are_products(
    evaluated: list[Expression], dtype: str, exponent: float
) -> None:
    """They take 1/25 of the time and are within two roundings."""
    values = np.concatenate([RNG.normal(size=500) * 9, [0.0, -0.0, 1e-20, 1e-13, -1e13, 1e30]])
    with np.errstate(all="ignore"):
        x = values.astype(dtype)
    if dtype != "int64":
        x = np.concatenate([x, np.array([np.inf, -np.inf, np.nan], dtype)])
    array = -(da.from_array(x, chunks=-1) ** exponent)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = array.compute(**SYNC)
        with dgpu.enable(on_error="raise"):
            found = array.compute(**SYNC)
    functions = {node.function for node in evaluated[0].nodes if isinstance(node, Apply)}
    multiplied = dtype in ("float32", "float64") and exponent != 5
    assert ("power" in functions) != multiplied
    if not multiplied:
        check_alike(found, expected)
        return
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    limits = np.finfo(found.dtype)
    np.testing.assert_allclose(found, expected, rtol=2 * limits.eps, atol=limits.smallest_subnormal)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("program", TREES.values(), ids=TREES)
def test_the_first_step_of_a_tree_is_one_call_a_block(
    evaluated: list[Expression], program: Program
) -> None:
    array = program(*arrays((4, 3)))
    expected, before = array.compute(**SYNC), tasks(array)
    with dgpu.enable(on_error="raise"):
        check_alike(array.compute(**SYNC), expected, exact=expected.dtype.kind == "i")
        assert len(evaluated) == 4
        assert tasks(array) == before


@pytest.mark.parametrize("program", [softmax, layer_norm, standardise])
def test_normalised_rows_are_one_task_a_block(program: Program) -> None:
    array = program(*arrays())
    with dgpu.enable():
        assert tasks(array) == 2 * array.npartitions  # the data, and the fusion


def test_a_setting_switches_it_off(evaluated: list[Expression]) -> None:
    array = softmax(*arrays())
    before = tasks(array)
    with dgpu.enable(fuse=False, on_error="raise"):
        assert tasks(array) == before
        array.compute(**SYNC)
    assert evaluated == []


def test_unknown_functions_stay_between_two_calls(evaluated: list[Expression]) -> None:
    x, _ = arrays()
    array = ((x + 1) * 2).map_blocks(np.sort) * 2 + 1
    expected, before = array.compute(**SYNC), tasks(array)
    with dgpu.enable(on_error="raise"):
        check_alike(array.compute(**SYNC), expected)
        assert tasks(array) == before
    assert len(evaluated) == 2 * array.npartitions


def test_block_info_is_that_of_dask() -> None:
    x, _ = arrays((4, 3))

    def place(block: Any, block_info: Any = None) -> Any:
        return block * block_info[0]["chunk-location"][0]

    array = (x * 2 + 1).map_blocks(place, dtype=x.dtype) + x * 3
    expected = array.compute(**SYNC)
    with dgpu.enable(on_error="raise"):
        check_alike(array.compute(**SYNC), expected)


def test_requested_arrays_stay_arrays(evaluated: list[Expression]) -> None:
    x, y = arrays()
    middle = x * y + 1
    results = middle, middle.sum(axis=1), np.sqrt(abs(middle)) * 2
    expected = dask.base.compute(*results, **SYNC)
    with dgpu.enable(on_error="raise"):
        for found, wanted in zip(dask.base.compute(*results, **SYNC), expected, strict=True):
            check_alike(found, wanted, exact=False)
    assert len(evaluated) == 2 * 2  # the sum alone is no gain on a CPU


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(lambda x: np.ma.masked_greater(x, 0.5), id="masked"),
        pytest.param(lambda x: x.astype("float16"), id="another dtype"),
        pytest.param(lambda x: x[:0], id="empty"),
    ],
)
def test_other_blocks_run_dasks_own_tasks(
    evaluated: list[Expression], block: Callable[[Any], Any]
) -> None:
    x, _ = arrays()
    declared = da.map_blocks(block, x, dtype=x.dtype, meta=x._meta)
    array = (declared * 2 + 1).sum(axis=1)
    expected = [each.compute(**SYNC) for each in array.to_delayed().ravel()]
    with dgpu.enable(on_error="raise"):
        optimized = dask.base.optimize(array)[0]
        found = [each.compute(**SYNC) for each in optimized.to_delayed().ravel()]
    assert evaluated == []
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        np.testing.assert_array_equal(one, other)


def test_a_declared_dtype_that_cannot_be_cast_to_raises_as_in_dask() -> None:
    x, _ = arrays()
    array = da.add(x, x, dtype="int32") * 2
    for enabled in (False, True):
        with dgpu.enable(fuse=enabled), pytest.raises(ValueError, match="can't be cast"):
            array.compute(**SYNC)


def test_annotations_stay_apart(evaluated: list[Expression]) -> None:
    x, _ = arrays()
    inner = x * 2 + 1
    with dask.annotate(priority=5):
        array = np.sqrt(abs(inner)) - 1
    with dgpu.enable(on_error="raise"):
        check_alike(array.compute(**SYNC), np.sqrt(abs(X * 2 + 1)) - 1)
    assert len(evaluated) == 2 * array.npartitions


def test_tasks_are_deterministic_and_travel() -> None:
    array = layer_norm(*arrays())
    with dgpu.enable():
        graphs = [dict(dask.base.optimize(array)[0].dask) for _ in range(2)]
    assert tokenize(graphs[0]) == tokenize(graphs[1])
    again = pickle.loads(pickle.dumps(graphs[0]))
    found = get_sync(again, array.__dask_keys__())
    np.testing.assert_allclose(np.block([*map(list, found)]), layer_norm(X, Y), rtol=1e-5)


def test_gangs_evaluate_expressions_too(evaluated: list[Expression]) -> None:
    x, _ = arrays((4, 3))
    array = np.tanh((x * 2 + 1).rechunk((2, 6)) - 1).mean(axis=1)
    expected = array.compute(**SYNC)
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        check_alike(array.compute(**SYNC), expected, exact=False)
    assert len(evaluated) == 4 + 4


def test_a_list_of_axes_is_predicted() -> None:
    x, _ = arrays((4, 3))
    array = da.median(x * 2, axis=[0, 1])
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        assert array.compute(**SYNC) == np.median(X * 2)


UNARY: dict[str, Callable[..., Any]] = {
    "negative": np.negative,
    "absolute": np.absolute,
    "exp": np.exp,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "isnan": np.isnan,
    "sign": np.sign,
    "floor": np.floor,
    "not": np.logical_not,
    "real": np.real,
    "invert": lambda x: ~x,
    "half": lambda x: x**0.5,
    "squared": lambda x: x**2,
    "plus": lambda x: x + 1,
    "times": lambda x: 0.5 * x,
    "strong": lambda x: x * np.float32(3),
    "transposed": lambda x: x.T,
    "row": lambda x: x[None] if x.ndim < 3 else x,
    "column": lambda x: x[..., None] if x.ndim < 3 else x,
    "first axis dropped": lambda x: x[0] if x.shape[:1] == (1,) else x,
    "float32": lambda x: x.astype("float32"),
    "int8": lambda x: (x > 0).astype("int8"),
}
BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "fmin": np.fmin,
    "copysign": np.copysign,
    "hypot": np.hypot,
    "subtract": lambda x, y: x - y,
    "divide": lambda x, y: x / y,
    "less": lambda x, y: x < y,
    "and": lambda x, y: x & y,
    "modulo": lambda x, y: x % y,
}
UNFIT = (TypeError, ValueError, OverflowError, np.exceptions.ComplexWarning)
INTEGERS = ("bool", "int8", "int32", "int64", "uint8")
DTYPES = (*INTEGERS, "float16", "float32", "float64", "complex64", "complex128")


@st.composite
def leaves(draw: st.DrawFn) -> tuple[Any, tuple[int, ...]]:
    """Draw an array with special values, and the largest lengths of its chunks."""
    shape = tuple(draw(st.sampled_from([(5, 5), (5,), (1, 5), (5, 1), (), (0, 5)])))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    values = np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape) * 3
    if dtype.kind in "fc":
        special = np.array([np.nan, np.inf, -np.inf, -0.0])
        values = np.where(values > 3, special[np.abs(values * 8).astype(int) % 4], values)
    with np.errstate(all="ignore"):
        array = np.asarray(values).astype(dtype)
    return array, tuple(draw(st.integers(1, 5)) for _ in shape)


def grown(draw: Callable[..., Any], values: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Draw up to twelve steps on pairs of NumPy's and Dask's arrays; return the last pair."""
    for _ in range(draw(st.integers(2, 12))):
        name = draw(st.sampled_from([*UNARY, *BINARY]))
        function = (UNARY | BINARY)[name]
        read = [values[draw(st.integers(0, len(values) - 1))] for _ in range(1 + (name in BINARY))]
        try:
            made = function(*(known for known, _ in read)), function(*(lazy for _, lazy in read))
        except UNFIT:  # not of this dtype or shape
            continue
        if isinstance(made[1], da.Array):
            values.append(made)
    return values[-1]


@pytest.mark.parametrize("value", [-0.0, -np.inf])
def test_powers_without_axes_are_those_of_scalars(value: float) -> None:
    """``np.float64(-np.inf) ** 0.5`` is infinity, that of an array NaN."""
    known = np.array(value)
    lazy = da.from_array(known)
    expected, lazy = np.floor(known) ** 0.5, np.floor(lazy) ** 0.5
    with dgpu.enable(on_error="raise"):
        check_alike(lazy.compute(**SYNC), expected)


@examples(100)
@given(data=st.data(), ranks=st.sampled_from([0, 3]))
def test_random_expressions_have_the_bits_of_numpy(data: st.DataObject, ranks: int) -> None:
    given_arrays = [data.draw(leaves()) for _ in range(2)]
    with np.errstate(all="ignore"):
        values = [(known, da.from_array(known, chunks=size)) for known, size in given_arrays]
        known, lazy = grown(data.draw, values)
        plain = lazy.compute(**SYNC)
        if ranks and lazy.ndim and lazy.size:
            lazy = lazy.rechunk(tuple(min(2, n) for n in lazy.shape))
        before = tasks(lazy)
        when = "always" if ranks else "cheaper"
        with dgpu.enable(local_ranks=max(1, ranks), when=when, on_error="raise"):
            found = lazy.compute(**SYNC)
            assert ranks or tasks(lazy) <= before
        assert (lazy.dtype, lazy.shape) == (found.dtype, found.shape)
        check_alike(found, plain if type(found) is type(plain) else np.asarray(plain))
        np.testing.assert_array_equal(found, known)
