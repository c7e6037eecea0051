"""The first step of Dask's reductions over several blocks is one kernel with the work before it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from benchmarks import programs
from graph_opt.model.expression import Expression, Reduce
from tests.support.profiles import examples

SYNC = {"scheduler": "synchronous"}
PLACES: dict[str, Callable[..., Any]] = {
    name: getattr(da, name) for name in ("argmin", "argmax", "nanargmin", "nanargmax")
}
MOMENTS: dict[str, Callable[..., Any]] = {
    "nanvar": da.nanvar,
    "nanstd": da.nanstd,
    "var": da.var,
    "nanmean": da.nanmean,
}
HIGHER: dict[str, Callable[..., Any]] = {
    "third moment": lambda x, axis: x.moment(3, axis=axis),
    "fourth moment": lambda x, axis: x.moment(4, axis=axis),
}
"""Reductions by Dask's own functions."""

DTYPES = ("bool", "int8", "uint8", "int64", "float16", "float32", "float64", "complex64")


def outcome(array: da.Array) -> Any:
    """Return the result, or the type of the error; Dask warns of slices of NaN."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            return array.compute(**SYNC)
        except ValueError as error:
            return type(error)


@st.composite
def arrays(draw: st.DrawFn, dtypes: Sequence[str] = DTYPES, least: int = 0) -> tuple[Any, Any]:
    """Draw an array with ties, NaN and infinities, and the same of Dask's in uneven chunks."""
    shape = tuple(draw(st.lists(st.integers(least, 7), min_size=1, max_size=3)))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    values = np.round(rng.normal(size=shape) * 2)
    if dtype.kind in "fc":
        special = np.array([np.nan, np.nan, np.inf, -np.inf, -0.0])
        share = draw(st.sampled_from([0, 0.2, 0.9]))
        values = np.where(rng.random(shape) < share, rng.choice(special, shape), values)
    with np.errstate(all="ignore"):
        known = values.astype(dtype)
    chunks = []
    for length in shape:
        cuts = draw(st.sets(st.integers(1, max(1, length - 1)), max_size=3))
        edges = [0, *sorted(cut for cut in cuts if cut < length), length]
        chunks.append(tuple(np.diff(edges).tolist()))
    return known, da.from_array(known, chunks=tuple(chunks))


@examples(100)
@given(data=st.data(), function=st.sampled_from(sorted(PLACES)), ranks=st.sampled_from([0, 3]))
def test_places_are_those_of_dask(data: st.DataObject, function: str, ranks: int) -> None:
    known, lazy = data.draw(arrays())
    axis = data.draw(st.sampled_from([None, *range(known.ndim)]))
    every = data.draw(st.sampled_from([None, 2]))
    array = PLACES[function](abs(lazy), axis=axis, split_every=every)
    expected = outcome(array)
    when = "always" if ranks else "cheaper"
    with dgpu.enable(local_ranks=max(1, ranks), when=when, on_error="raise"):
        found = outcome(array)
    if isinstance(expected, type):
        assert found is expected
        return
    assert (type(found), found.dtype) == (type(expected), expected.dtype)
    np.testing.assert_array_equal(found, expected)
    # of equal values in several rows Dask takes the first in the order of blocks
    if known.size and not np.isnan(known).any() and (axis is not None or known.ndim == 1):
        np.testing.assert_array_equal(found, getattr(np, function)(abs(known), axis=axis))


@examples(100)
@given(
    data=st.data(),
    function=st.sampled_from(sorted(MOMENTS | HIGHER)),
    ranks=st.sampled_from([0, 3]),
)
def test_moments_are_those_of_dask(data: st.DataObject, function: str, ranks: int) -> None:
    known, lazy = data.draw(arrays(least=1))
    axis = data.draw(st.sampled_from([None, *range(known.ndim)]))
    array = (MOMENTS | HIGHER)[function](abs(lazy), axis=axis)
    expected = outcome(array)
    when = "always" if ranks else "cheaper"
    with dgpu.enable(local_ranks=max(1, ranks), when=when, on_error="raise"):
        found = outcome(array)
    assert (type(found), found.dtype) == (type(expected), expected.dtype)
    eps = np.finfo(found.dtype).eps
    scale = np.nanmax(np.abs(known[np.isfinite(known)]), initial=1.0) ** 4
    np.testing.assert_allclose(found, expected, rtol=64 * eps, atol=64 * eps * scale)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("function", [*PLACES.values(), *MOMENTS.values(), *HIGHER.values()])
def test_one_call_a_block(
    evaluated: list[Expression], function: Callable[..., Any], axis: int | None
) -> None:
    x = da.from_array(np.random.default_rng(3).normal(size=(11, 7)), chunks=(4, 3))
    array = function(x * 2 + 1, axis=axis)
    expected = array.compute(**SYNC)
    with dgpu.enable(on_error="raise"):
        np.testing.assert_allclose(array.compute(**SYNC), expected, rtol=1e-12)
    assert len(evaluated) == x.npartitions


def test_the_first_of_equal_values_is_found_across_blocks() -> None:
    x = da.from_array(np.array([[3, 1, 1, 1], [1, 1, 3, 3]]), chunks=(1, 2))
    with dgpu.enable(on_error="raise"):
        assert (x * 2).argmin().compute(**SYNC) == 1
        np.testing.assert_array_equal((x * 2).argmax(axis=0).compute(**SYNC), [0, 0, 1, 1])


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # of Dask's own chunks
def test_rows_of_nan_raise_as_in_dask(evaluated: list[Expression]) -> None:
    x = da.from_array(np.array([[np.nan, np.nan, np.nan], [1, np.nan, 0]]), chunks=(1, 2))
    array = da.nanargmin(x * 2, axis=1)
    for enabled in (False, True):
        with dgpu.enable(fuse=enabled), pytest.raises(ValueError, match="All NaN slice"):
            array.compute(**SYNC)
    assert len(evaluated) == x.npartitions


def test_variance_far_from_zero_does_not_cancel() -> None:
    values = 1e8 + np.random.default_rng(5).normal(size=(64, 3))
    values[::7] = np.nan
    x = da.from_array(values, chunks=(10, 2))
    with dgpu.enable(on_error="raise"):
        found = da.nanvar(x * 1, axis=0).compute(**SYNC)
    np.testing.assert_allclose(found, np.nanvar(values, axis=0), rtol=1e-7)


@pytest.mark.parametrize("rows", [3, 13])
def test_nearest_centres_are_one_call_a_block(evaluated: list[Expression], rows: int) -> None:
    rng = np.random.default_rng(1)
    points, centres = rng.normal(size=(13, 5)), rng.normal(size=(4, 5))
    x, c = da.from_array(points, chunks=(rows, 5)), da.from_array(centres, chunks=-1)
    expected = programs.kmeans_step(np, points, centres)
    with dgpu.enable(on_error="raise"):
        found = programs.kmeans_step(da, x, c).compute(**SYNC)
    np.testing.assert_array_equal(found, expected)
    assert len(evaluated) == x.npartitions


@pytest.mark.gpu
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("function", [*PLACES.values(), *MOMENTS.values()])
def test_blocks_on_gpus_give_the_results_of_hosts(
    evaluated: list[Expression], function: Callable[..., Any], axis: int | None
) -> None:
    import cupy

    values = np.random.default_rng(3).normal(size=(11, 7))
    values[2::5, 1] = np.nan
    expected = function(da.from_array(values, chunks=(4, 3)) * 2, axis=axis).compute(**SYNC)
    x = da.from_array(cupy.asarray(values), chunks=(4, 3), asarray=False)
    with dgpu.enable(on_error="raise"):
        found = function(x * 2, axis=axis).compute(**SYNC)
    # the root of a variance is a kernel of its own
    reducing = [each for each in evaluated if any(isinstance(node, Reduce) for node in each.nodes)]
    assert len(reducing) == x.npartitions
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.get(), expected, rtol=1e-12)
