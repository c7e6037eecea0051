"""What Dask finds out for each new array: answers from memory are those of Dask."""

from __future__ import annotations

import functools
import gc
import operator
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from dask.array import chunk, core
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.session import hooks
from dask_dgpu.session.building import remembered
from tests.support.calls import Counting

METAS = import_module("dask.array.utils")
TOKENS = import_module("dask.tokenize")

Build = Callable[..., Any]


def keyword_only(x: Any, *, computing_meta: bool = False) -> Any:
    return x


FUNCTIONS = [
    keyword_only,
    functools.partial(keyword_only, computing_meta=True),
    functools.partial(keyword_only, 1),
    functools.partial(functools.partial(keyword_only), x=1),
    np.add,
    np.sum,
    abs,
    len,
    lambda x, computing_meta=None: x,
    int,
    np.vectorize(lambda x: x),
    3,
    [],
]

PROGRAMS: dict[str, Build] = {
    "add": lambda x, s: x + x.T,
    "scaled": lambda x, s: s * x - 1,
    "divided": lambda x, s: (x / s).astype("f4"),
    "sums": lambda x, s: x.sum(axis=0) + x.mean(),
    "extremes": lambda x, s: (x.max(), x.argmin(axis=1), x.std(axis=1, keepdims=True)),
    "product": lambda x, s: x @ (x.T @ x.sum(axis=1)),
    "where": lambda x, s: da.where(x > s, x, 0),
    "exp": lambda x, s: da.exp(da.sqrt(abs(x))) ** 2,
    "slices": lambda x, s: x[1:, None, 0] * x[0],
    "stacked": lambda x, s: da.stack([x, x + 1])[..., ::-1].reshape(2, -1),
    "einsum": lambda x, s: da.einsum("ij,kj->ik", x, x),
    "mapped": lambda x, s: da.map_blocks(np.clip, x, 0, 1, dtype=x.dtype),
    "cumulative": lambda x, s: da.cumsum(x, axis=1),
    "comparison": lambda x, s: ((x == s) & (x != x)).any(axis=0),
    "masked": lambda x, s: da.ma.masked_greater(x, 1).sum(axis=0),
}
DTYPES = ["?", "i1", "u1", "i4", "u8", "f2", "f4", ">f4", "f8", "c8", "c16", "M8[s]", "O", "S3"]
SCALARS = [2, -1, 300, 0.5, True, 1j, np.float32(1.5), np.int8(3), np.array(2.0), float("nan")]


def built(program: Build, dtype: str, scalar: Any) -> list[Any]:
    """Return what is known of the arrays that a program builds, or the error."""
    x = da.from_array(np.zeros((6, 6), dtype), chunks=(3, 2), name="x")
    try:
        found = program(x, scalar)
    except Exception as error:
        return [type(error), str(error)]
    arrays = found if isinstance(found, tuple) else (found,)
    return [
        (y.name, y.chunks, y.dtype, type(y._meta), y._meta.dtype, y._meta.shape, [*y.dask.layers])
        for y in arrays
    ]


@given(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(DTYPES), st.sampled_from(SCALARS))
def test_arrays_are_those_of_dask(name: str, dtype: str, scalar: Any) -> None:
    with np.errstate(all="ignore"):
        expected = built(PROGRAMS[name], dtype, scalar)
        with dgpu.enable():
            assert built(PROGRAMS[name], dtype, scalar) == expected
            assert built(PROGRAMS[name], dtype, scalar) == expected


@pytest.mark.parametrize("function", FUNCTIONS, ids=range(len(FUNCTIONS)))
@pytest.mark.parametrize("keyword", ["computing_meta", "x", "axis"])
def test_keywords_are_those_of_dask(function: Any, keyword: str) -> None:
    expected = METAS.has_keyword(function, keyword)
    with dgpu.enable():
        assert METAS.has_keyword(function, keyword) == expected
        assert METAS.has_keyword(function, keyword) == expected


def test_a_signature_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def signature(function: Any) -> Any:
        asked.append(function)
        raise ValueError

    with dgpu.enable():
        monkeypatch.setattr("inspect.signature", signature)
        for _ in range(3):
            METAS.has_keyword(keyword_only, "never asked before")
    assert asked == [keyword_only]


x = da.zeros((4, 4), chunks=2, dtype="f4")
masked = da.ma.masked_greater(x, 1)
TAGGED = np.dtype("f4", metadata={"unit": "m"})

QUESTIONS: list[tuple[Any, tuple[Any, ...], dict[str, Any], int]] = [
    (np.add, (x, x), {}, 1),
    (operator.mul, (x, 0.5), {}, 1),
    (functools.partial(chunk.sum, dtype="f4"), (x,), {"axis": (0,), "keepdims": True}, 1),
    (np.frompyfunc(lambda a: a, 1, 1), (x,), {}, 3),
    (lambda a: a, (x,), {}, 3),
    (keyword_only, (x,), {}, 3),
    (np.add, (masked, masked), {}, 3),
    (np.transpose, (x,), {"axes": [1, 0]}, 3),
    (np.add, (x, np.zeros(0, TAGGED)), {}, 3),
    (functools.partial(keyword_only), (x,), {}, 3),
]


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "calls"), QUESTIONS, ids=range(len(QUESTIONS))
)
def test_only_functions_of_known_packages_on_plain_blocks_are_asked_once(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], calls: int
) -> None:
    counting = Counting(METAS.compute_meta)
    compute = remembered.remembering_metas(counting)
    found = [compute(function, np.dtype("f4"), *args, **kwargs) for _ in range(3)]
    assert counting.calls == calls
    expected = METAS.compute_meta(function, np.dtype("f4"), *args, **kwargs)
    assert all(type(each) is type(expected) for each in found)
    assert all((each.dtype, each.shape) == (expected.dtype, expected.shape) for each in found)


def test_errors_of_dtypes_are_not_remembered() -> None:
    counting = Counting(core.apply_infer_dtype)
    infer = remembered.remembering_dtypes(counting)
    for _ in range(2):
        with pytest.raises(OverflowError, match="out of bounds"):
            infer(np.add, [np.zeros(1, "u1"), 300], {}, "elemwise")
        assert infer(np.add, [np.zeros(1, "u1"), 3], {}, "elemwise") == "u1"
        assert infer(np.add, [np.zeros(1, "u1"), 3.0], {}, "elemwise") == "f8"
    assert counting.calls == 4


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST", 8)
    counting = Counting(METAS.compute_meta)
    compute = remembered.remembering_metas(counting)
    for number in range(100):
        compute(operator.mul, None, x, number)
    assert counting.calls == 100
    compute(operator.mul, None, x, 99)
    assert counting.calls == 100
    compute(operator.mul, None, x, 1)
    assert counting.calls == 101  # forgotten


@pytest.mark.parametrize("kind", [float, complex, np.float32, np.float64, np.complex64])
def test_the_values_of_floats_do_not_count_for_operators(kind: Any) -> None:
    counting, inferring = Counting(METAS.compute_meta), Counting(core.apply_infer_dtype)
    compute = remembered.remembering_metas(counting)
    infer = remembered.remembering_dtypes(inferring)
    enforced = {"enforce_dtype": x.dtype, "enforce_dtype_function": operator.mul}
    for number in (0.1, -3e300, np.nan, np.inf):
        with np.errstate(over="ignore"):
            value = kind(number)
        expected = np.result_type(x.dtype, value)
        assert compute(operator.mul, None, x, value).dtype == expected
        assert infer(np.multiply, [np.zeros(1, "f4"), value], {}, "elemwise") == expected
        compute(core._enforce_dtype, x.dtype, x, value, **enforced)
    assert (counting.calls, inferring.calls) == (2, 1)
    compute(chunk.sum, None, x, 0.5)
    compute(chunk.sum, None, x, 0.25)
    assert counting.calls == 4


def test_functions_of_users_are_called_as_often_as_by_dask() -> None:
    calls = []

    def own(block: Any) -> Any:
        calls.append(block.shape)
        return block + 1

    da.map_blocks(own, x)
    plain, calls = calls.copy(), []
    with dgpu.enable():
        da.map_blocks(own, x)
    assert calls == plain != []


def test_functions_of_users_are_not_kept() -> None:
    block = np.zeros(3)

    def local(x: Any) -> Any:
        return x + block

    with dgpu.enable():
        METAS.has_keyword(local, "computing_meta")
        METAS.has_keyword(functools.partial(local), "computing_meta")
        da.map_blocks(local, da.zeros(6, chunks=3)).sum()
        dask.base.tokenize(local)
        kept = weakref.ref(local)
        del local
        gc.collect()
        assert kept() is None


def test_a_function_that_was_replaced_in_its_module_has_its_own_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other(a: Any) -> Any:
        return a

    other.__module__, other.__qualname__ = chunk.sum.__module__, "sum"
    with dgpu.enable():
        before = dask.base.tokenize(chunk.sum)
        monkeypatch.setattr(chunk, "sum", other)
        assert dask.base.tokenize(other) == dask.base.tokenize(chunk.sum)
        monkeypatch.undo()
        assert dask.base.tokenize(chunk.sum) == before


def test_a_meta_is_returned_as_it_is_and_data_is_not() -> None:
    meta, data, number = np.zeros((0, 0), "f4"), np.ones((2, 0), "f4"), np.array(3.0)
    with dgpu.enable():
        assert METAS.meta_from_array(meta) is meta
        assert METAS.meta_from_array(meta, 1).shape == (0,)
        assert METAS.meta_from_array(meta, dtype="f8").dtype == "f8"
        assert METAS.meta_from_array(data).shape == (0, 0)
        assert METAS.meta_from_array(number) is not number
        assert METAS.meta_from_array(None, 2, "i4").shape == (0, 0)


def test_graphs_have_layers_only() -> None:
    layers: dict[str, Any] = {"a": {"a": 1}, "b": MaterializedLayer({"b": "a"}), "c": {"c": "b"}}
    needs: dict[str, set[str]] = {"a": set(), "b": {"a"}, "c": {"b"}}
    plain = HighLevelGraph(layers, needs)
    with dgpu.enable():
        ours = HighLevelGraph(layers, needs, key_dependencies={"a": set()})
    assert [*ours.layers] == [*plain.layers]
    assert all(type(each) is MaterializedLayer for each in ours.layers.values())
    assert ours.layers["b"] is layers["b"]
    assert ours.dependencies is needs
    assert (ours.key_dependencies, plain.key_dependencies) == ({"a": set()}, {})
    assert ours.to_dict() == plain.to_dict()


@pytest.mark.parametrize("make", [da.ones_like, da.zeros_like, da.empty_like])
def test_functions_behind_a_curry_are_pickled_once(
    make: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask has a curry under the name of this function, so it pickles the function by value."""
    x = da.from_array(np.arange(6.0), chunks=3)
    expected = make(x).name
    with dgpu.enable():
        assert make(x).name == expected
        counting = Counting(cloudpickle.dumps)
        monkeypatch.setattr(cloudpickle, "dumps", counting)
        assert make(x).name == expected
    assert counting.calls == 0


def test_disabling_restores_the_originals() -> None:
    owners = [
        *((METAS, "compute_meta"), (METAS, "has_keyword"), (METAS, "meta_from_array")),
        *((core, "apply_infer_dtype"), (TOKENS, "_normalize_pickle")),
        (HighLevelGraph, "__init__"),
    ]
    originals = [getattr(owner, name) for owner, name in owners]
    for _ in range(2):
        with dgpu.enable():
            pairs = zip(owners, originals, strict=True)
            assert all(getattr(owner, name) is not own for (owner, name), own in pairs)
        assert [getattr(owner, name) for owner, name in owners] == originals


def test_what_dask_has_renamed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(TOKENS, "_normalize_pickle")
    monkeypatch.setattr(hooks, "BUILDING", (("no.such", "name", None), *hooks.BUILDING))
    compute_meta = METAS.compute_meta
    with dgpu.enable():
        assert METAS.compute_meta is not compute_meta
    assert METAS.compute_meta is compute_meta
