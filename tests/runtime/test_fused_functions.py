"""Every elementwise function that Dask takes from NumPy is read, or is an exception stated here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.array.ufunc import ufunc as DaskUfunc
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.kernels.fused.nodes import FUNCTIONS
from graph_opt.dask_graph.calls import Nodes, Operand, read_call
from graph_opt.dask_graph.parse import parse
from graph_opt.dask_graph.readings import read_blockwise
from tests.support.profiles import examples

SYNC = {"scheduler": "synchronous"}
UFUNCS = {name: each for name in dir(da) if isinstance(each := getattr(da, name), DaskUfunc)}
EXCEPTIONS = {
    "frexp": "two results",
    "modf": "two results",
    "divmod": "two results",
    "matmul": "a product",
    "matvec": "a product",
    "vecmat": "a product",
    "vecdot": "a product",
}
"""Ufuncs of NumPy that are no node of an expression."""

OTHERS: dict[str, Callable[..., Any]] = {
    "isclose": lambda x, y: da.isclose(x, y),
    "isclose of NaN": lambda x, y: da.isclose(x, y, rtol=0.5, atol=0, equal_nan=True),
    "isclose to a number": lambda x, y: da.isclose(x, 1.5, atol=1),
    "sinc": lambda x, y: da.sinc(x),
    "nan_to_num": lambda x, y: x.map_blocks(np.nan_to_num, nan=2.0, posinf=3),
    "isposinf": lambda x, y: da.isposinf(x) ^ da.isneginf(y),
    "angle": lambda x, y: da.angle(x),
    "real": lambda x, y: da.real(x) + da.imag(y),
    "clip": lambda x, y: da.clip(x, -1, 1),
    "where": lambda x, y: da.where(x > y, x, y),
    "around": lambda x, y: da.around(x, 1),
}


def is_read(array: da.Array) -> bool:
    keys = array.__dask_keys__()
    return read_blockwise(parse(array.dask, keys), array.name) is not None


def arguments(function: DaskUfunc) -> list[da.Array]:
    """Return arrays of dtypes that a ufunc takes."""
    inputs = next(kinds for kinds in reversed(function.types) if not {*kinds} & set("OMmgG"))
    kinds = inputs.split("->")[0]
    return [da.from_array(np.array([1, 2, 3]).astype(kind), chunks=2) for kind in kinds]


def test_the_exceptions_are_all() -> None:
    ufuncs = {each for each in vars(np).values() if isinstance(each, np.ufunc)}
    known = {each.__name__ for each in ufuncs if each.nout == 1 and each.signature is None}
    assert {each.__name__ for each in ufuncs} - known == {*EXCEPTIONS} - ({"vecdot"} - set(dir(np)))
    assert known <= FUNCTIONS.keys()


@pytest.mark.parametrize("name", UFUNCS)
def test_each_ufunc_of_dask_is_read(name: str) -> None:
    assert is_read(UFUNCS[name](*arguments(UFUNCS[name])))


@pytest.mark.parametrize(
    "function",
    sorted({each for each in vars(np).values() if isinstance(each, np.ufunc)}, key=str),
)
def test_each_ufunc_of_numpy_is_read(function: np.ufunc) -> None:
    operands = [Operand(at, "float64", 1) for at in range(function.nin)]
    found = read_call(Nodes(), function, operands, {})
    assert (found is None) == (function.__name__ in EXCEPTIONS)


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_are_read(name: str) -> None:
    x = da.from_array(np.array([1.5, np.nan, -np.inf, -0.0]), chunks=2)
    array = OTHERS[name](x, x[::-1].rechunk(2))
    assert is_read(array)


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(lambda x: da.select([x > 0], [x], default=1j), id="wider default"),
        pytest.param(lambda x: da.select([x > 0], [x], default=da.ones(())), id="array default"),
        pytest.param(lambda x: da.add(x, x, where=x > 0, out=da.zeros(4, chunks=2)), id="where"),
        pytest.param(lambda x: da.frexp(x)[0], id="two results"),
    ],
)
def test_what_is_not_read_gives_the_same(array: Callable[[da.Array], da.Array]) -> None:
    lazy = array(da.from_array(np.array([1.5, 2, -4, -0.0]), chunks=2)) * 2 + 1
    expected = lazy.compute(**SYNC)
    with dgpu.enable(on_error="raise"):
        np.testing.assert_array_equal(lazy.compute(**SYNC), expected)


DTYPES = ("bool", "int8", "uint8", "int64", "float16", "float32", "float64", "complex64")


@examples(100)
@given(data=st.data(), name=st.sampled_from([*UFUNCS, *OTHERS]))
def test_functions_have_the_bits_of_dask(data: st.DataObject, name: str) -> None:
    seed = data.draw(st.integers(0, 999))
    rng = np.random.default_rng(seed)
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0, 1, -1, 100])
    function = UFUNCS.get(name) or OTHERS[name]
    count = function.nin if isinstance(function, DaskUfunc) else 2
    lazy = []
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        for _ in range(count):
            values = np.where(rng.random(11) < 0.4, rng.choice(special, 11), rng.normal(size=11))
            values = values.astype(data.draw(st.sampled_from(DTYPES)))
            lazy.append(da.from_array(values, chunks=(4, 7)))
        try:
            made = function(*lazy)
            array = abs(made.astype("complex128"))
            expected = array.compute(**SYNC)
        except (AttributeError, TypeError, ValueError, OverflowError):  # not of these dtypes
            return
        with dgpu.enable(on_error="raise"):
            np.testing.assert_array_equal(array.compute(**SYNC), expected)
