"""Unusual arguments of operations, against the operations themselves and NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.support.memory import bounded

X = np.random.default_rng(5).random(98)
MEANS = np.ones(7) / 7


STACKS = [((3, 4, 7), (7, 5)), ((3, 4, 7), (1, 7, 5)), ((4, 7), (3, 7, 5)), ((7,), (3, 7, 5))]


@pytest.mark.parametrize("shapes", STACKS)
@pytest.mark.parametrize("strategy", ["auto", "row", "column", "summa", "inner"])
def test_strategies_of_stacks_are_those_of_matmul(shapes: Any, strategy: Any) -> None:
    a, b = (np.random.default_rng(7).random(shape) for shape in shapes)
    for function in (dgpu.matmul, partial(dgpu.run, "matmul"), partial(dgpu.plan, "matmul")):
        if strategy == "auto":
            function(a, b, strategy=strategy)
        else:
            with pytest.raises(ValueError, match="with 1 or 2 axes because of options, got 3"):
                function(a, b, strategy=strategy)
    np.testing.assert_allclose(dgpu.run("matmul", a, b, strategy="auto"), a @ b)


FLOATS, NUMBERS = X[:20].reshape(5, 4), np.arange(20).reshape(5, 4)
CASTS = ["no", "equiv", "safe", "same_kind", "unsafe"]


def same(call: Callable[..., Any], function: Any, *args: Any, **options: Any) -> None:
    """Compare a call of a function with NumPy's: the result, or the error."""
    try:
        expected = function(*args, **options)
    except Exception as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            call(function, *args, **options)
        return
    found = call(function, *args, **options)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("casting", [*CASTS, "any"])
@pytest.mark.parametrize("dtype", [None, "f8", "f4", "i8"])
@pytest.mark.parametrize("limit", [None, 200])
def test_casts_of_operands_are_those_of_numpy(casting: Any, dtype: Any, limit: Any) -> None:
    options = {"casting": casting} | ({} if dtype is None else {"dtype": dtype})
    with bounded(limit):
        for args in ((FLOATS, FLOATS), (FLOATS, NUMBERS), (FLOATS.astype("f4"), 2.5)):
            same(dgpu.run, np.multiply, *args, **options)
    with bounded(None):
        same(dgpu.run, np.multiply, FLOATS, [1, 2, 3, 4], **options)


@pytest.mark.parametrize("casting", CASTS)
@pytest.mark.parametrize("dtype", [None, "f4"])
def test_casts_to_out_are_those_of_numpy(casting: Any, dtype: Any) -> None:
    for kind in ("f8", "f4", "i8", "c16"):

        def to_out(function: Any, *args: Any, kind: str = kind, **options: Any) -> Any:
            return function(*args, out=np.zeros((5, 4), kind), **options)

        def ours(function: Any, *args: Any, **options: Any) -> Any:
            return to_out(partial(dgpu.run, np.multiply), *args, **options)

        same(ours, partial(to_out, np.multiply), FLOATS, NUMBERS, casting=casting, dtype=dtype)


@pytest.mark.parametrize("casting", CASTS)
@pytest.mark.parametrize("dtype", [None, "f8", "f4"])
def test_casts_from_another_byte_order_are_those_of_numpy(casting: Any, dtype: Any) -> None:
    options = {"casting": casting} | ({} if dtype is None else {"dtype": dtype})
    swapped = FLOATS.astype(FLOATS.dtype.newbyteorder())
    for args in ((swapped, FLOATS), (FLOATS, swapped), (FLOATS.astype("f4"), swapped)):
        same(dgpu.run, np.multiply, *args, **options)
        same(_run_lazily, np.multiply, *args, **options)
    assert dgpu.run(np.add, swapped, FLOATS).dtype == FLOATS.dtype


def _run_lazily(function: Any, *args: Any, **options: Any) -> Any:
    return dgpu.run(function, *(da.from_array(each, chunks=2) for each in args), **options)


def test_a_cast_that_numpy_refuses_has_no_plan() -> None:
    for args in ((FLOATS, NUMBERS), (FLOATS, FLOATS.astype(FLOATS.dtype.newbyteorder()))):
        with pytest.raises(TypeError, match="Cannot cast ufunc 'add' input 1 from"):
            dgpu.plan("add", *args, casting="no")


@pytest.mark.parametrize("op", [np.negative, np.hypot, "floor_divide"])
def test_dtypes_that_a_ufunc_refuses_are_errors_of_numpy(op: Any) -> None:
    ufunc = getattr(np, op) if isinstance(op, str) else op
    args = (FLOATS > 0.5,) if ufunc.nin == 1 else (FLOATS, 1j * FLOATS)
    same(lambda _, *args: dgpu.run(op, *args), ufunc, *args)


@pytest.mark.parametrize(("op", "args"), [("exp", 2), (da.exp, 2), (np.add, 3), ("add", 1)])
def test_a_ufunc_has_out_by_name_only(op: Any, args: int) -> None:
    arrays = [np.zeros(3) for _ in range(args)]
    for function in (dgpu.run, dgpu.plan):
        with pytest.raises(TypeError, match=rf"positional arguments? of \w+, got {args}$"):
            function(op, *arrays)


@pytest.mark.parametrize("op", ["matmul", "dot", "tensordot", np.dot])
@pytest.mark.parametrize("other", [2.0, [1.0, 2.0, 3.0, 4.0], np.float64(2)])
def test_factors_are_arrays(op: Any, other: Any) -> None:
    with pytest.raises(TypeError, match=r"^expected two arrays with axes, got 1$"):
        dgpu.run(op, FLOATS, other)


EMPTY = [(0,), (0, 5), (5, 0), (0, 0), (3, 0, 2)]
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "same shape": lambda x: x + 1,
    "transposed": lambda x: x.T,
    "reduced": lambda x: x.sum(axis=0),
    "scalar": lambda x: x.sum(),
    "product": lambda x: x.T @ x,
    "unknown": lambda x: x[x > 0],
}


def check_without_elements(name: str, shape: tuple[int, ...]) -> None:
    """Run and plan a function of an array without elements, with and without ``out``."""
    if name == "product" and len(shape) == 3:
        return
    function, x = FUNCTIONS[name], np.zeros(shape)
    expected = function(x)
    assert dgpu.plan(function, shape).feasible
    plan = dgpu.plan(function, x)
    assert plan.feasible
    assert plan.host_bytes == (0 if name == "unknown" else expected.nbytes)
    out = np.ones_like(expected)
    for found in (dgpu.run(function, x), dgpu.run(function, x, out=out), out):
        np.testing.assert_array_equal(found, expected, strict=True)
    (found,) = dgpu.run_many(function, [(x,)])
    np.testing.assert_array_equal(found, expected, strict=True)
    if name == "same shape":
        added = dgpu.run(lambda a, b, c: a + b + c, x, np.float64(1), np.ones(shape[-1:]))
        np.testing.assert_array_equal(added, expected + 1, strict=True)


@pytest.mark.parametrize("shape", EMPTY)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_arrays_without_elements(name: str, shape: tuple[int, ...]) -> None:
    check_without_elements(name, shape)


@pytest.mark.parametrize("shape", EMPTY)
@pytest.mark.parametrize("name", ["transposed", "unknown"])
def test_arrays_without_elements_fit_any_memory(name: str, shape: tuple[int, ...]) -> None:
    with bounded(100):
        check_without_elements(name, shape)
