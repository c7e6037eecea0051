"""Aggregates of means and variances as one kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.runtime import partials
from graph_opt.dask_graph import internals
from graph_opt.dask_graph.functions import exchanged

SHAPES = [(1,), (1, 5), (5, 1), (3, 1, 4), (1, 7, 1)]


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take NumPy's arrays for CuPy's."""
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=np.ndarray))


def parts(shape: tuple[int, ...], count: int, dtype: str, empty: bool = False) -> list[Any]:
    """Return parts of a mean or variance, of blocks of several lengths."""
    rng = np.random.default_rng(count)
    found = []
    for at in range(count):
        n = np.full(shape, at + 2 if at or not empty else 0, "int64")
        total = (rng.normal(size=shape) + 3).astype(dtype) * n.astype(dtype)
        squares = rng.random((*shape, 1)).astype(dtype) * n[..., None].astype(dtype)
        found.append({"n": n, "total": total, "M": squares})
    return found


def axes_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis, length in enumerate(shape) if length == 1)


def nested(flat: list[Any], axes: tuple[int, ...]) -> Any:
    """Return parts in lists, one level for each reduced axis; all along the first."""
    if len(axes) == 1:
        return flat
    return [nested([each], axes[1:]) for each in flat]


def alike(found: Any, known: Any, dtype: str) -> None:
    if isinstance(known, dict):
        assert found.keys() == known.keys()
        for name in known:
            alike(found[name], known[name], dtype)
        return
    assert (found.dtype, found.shape) == (known.dtype, known.shape)
    np.testing.assert_allclose(found, known, rtol=40 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("on_host")
def test_as_dasks(shape: tuple[int, ...], count: int, dtype: str) -> None:
    axis = axes_of(shape)
    moments = parts(shape, count, dtype)
    means = [{name: each[name] for name in ("n", "total")} for each in moments]
    for name, given, options in (
        ("mean_combine", means, {"keepdims": True}),
        ("mean_agg", means, {"keepdims": False, "dtype": dtype}),
        ("mean_agg", means, {"keepdims": True, "dtype": dtype}),
        ("moment_combine", moments, {"keepdims": True, "dtype": dtype}),
        ("moment_agg", moments, {"keepdims": False, "dtype": dtype, "ddof": 0}),
        ("moment_agg", moments, {"keepdims": True, "dtype": dtype, "ddof": 1}),
    ):
        pairs, options = nested(given, axis), {"axis": axis, **options}
        assert partials._states(pairs, options) is not None
        found = getattr(partials, name)(pairs, **options)
        alike(found, getattr(internals, name)(pairs, **options), dtype)


@pytest.mark.usefixtures("on_host")
def test_parts_of_nothing_and_too_little_freedom() -> None:
    pairs = parts((1, 4), 3, "float64", empty=True)
    options: dict[str, Any] = {"axis": (0,), "keepdims": False, "dtype": "f8"}
    with np.errstate(all="ignore"):
        for ddof in (0, 1, 7, 8, 9):
            known = internals.moment_agg(pairs, ddof=ddof, **options)
            alike(partials.moment_agg(pairs, ddof=ddof, **options), known, "float64")


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda part: part, {"order": 3}),
        (lambda part: part, {"sum": np.nansum}),
        (lambda part: part, {"axis": (1,)}),
        (lambda part: part, {"axis": None}),
        (lambda part: part, {"computing_meta": True}),
        (lambda part: part | {"total": part["total"] + 1j}, {}),
        (lambda part: part | {"n": part["n"][:, :1]}, {}),
        (lambda part: part | {"n": 4}, {}),
        (lambda part: np.ones((1, 4)), {}),
    ],
)
@pytest.mark.usefixtures("on_host")
def test_all_else_is_left_to_dask(change: Callable[[Any], Any], options: dict[str, Any]) -> None:
    pairs = [change(each) for each in parts((1, 4), 2, "float64")]
    given = {"axis": (0,), "dtype": "f8", "keepdims": True} | options
    assert partials._states(pairs, given) is None


def test_blocks_of_numpy_are_left_to_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=set))
    assert partials._states(parts((1, 4), 2, "float64"), {"axis": (0,)}) is None


def test_bound_functions_are_replaced() -> None:
    axis, dtype = (0,), np.dtype("f8")
    function = partial(partial(internals.mean_agg, axis=axis), dtype=dtype)
    call: Any = exchanged(function, partials.FUNCTIONS)
    assert call.func is partials.mean_agg
    assert call.keywords == {"axis": axis, "dtype": dtype}
    assert exchanged(partial(np.sum, axis=0), partials.FUNCTIONS) is None


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
@pytest.mark.parametrize("axis", [0, 1, (0, 2), None])
def test_of_blocks_on_a_gpu(
    axis: Any, dtype: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    calls: list[int] = []
    flat = partials._states

    def noting(pairs: Any, options: Any) -> Any:
        found = flat(pairs, options)
        calls.append(found is not None)
        return found

    monkeypatch.setattr(partials, "_states", noting)
    values = (np.random.default_rng(0).normal(size=(13, 11, 9)) * 50 + 20).astype(dtype)
    x = da.from_array(cupy.asarray(values), chunks=(3, 2, 4), asarray=False)
    with dgpu.enable(local_ranks=ranks, when="always", on_error="raise"):
        found = [
            each.compute(scheduler="sync").get()
            for each in (x.mean(axis=axis), x.var(axis=axis), (x + 1).std(axis=axis, ddof=1))
        ]
    wide = values.astype("f8")
    known = wide.mean(axis=axis), wide.var(axis=axis), wide.std(axis=axis, ddof=1)
    for mine, theirs in zip(found, known, strict=True):
        eps = 1e-13 if dtype != "float32" else 1e-4
        np.testing.assert_allclose(mine, theirs, rtol=eps)
    assert all(calls)
    assert calls or axis is None  # sums over everything are not left to Dask's tree
