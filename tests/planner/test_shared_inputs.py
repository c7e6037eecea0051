"""Results that share inputs are one gang, unless they depend on each other or do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.base
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.support.clusters import explained, placed

ALWAYS = {"on_error": "raise", "when": "always"}
RNG = np.random.default_rng(11)
A, B = RNG.random((23, 13)), RNG.random((23, 13))
Arrays = tuple[da.Array, ...]


def lazy(values: Any, chunks: Any = (5, 4)) -> da.Array:
    return da.from_array(values, chunks=chunks)


def gangs_of(*results: da.Array, **values: Any) -> Any:
    """Return the gangs on four workers, each with its prediction."""
    return explained(*results, when="always", **values).regions


def user(block: Any) -> Any:
    return block + 1


SHARED: dict[str, Callable[[da.Array, da.Array], Arrays]] = {
    "sums": lambda x, y: (x.sum(), (x * y).sum()),
    "columns": lambda x, y: (x.mean(axis=0), x.std(axis=0), x.max(axis=0)),
    "products": lambda x, y: (x @ x.T, x.T @ y),
    "product and sum": lambda x, y: (x @ y.T, y.sum(axis=0)),
}
APART: dict[str, Callable[[da.Array, da.Array], Arrays]] = {
    "nothing shared": lambda x, y: (x.sum(), y.sum()),
    "functions of a user": lambda x, y: (x.sum(), x.map_blocks(user, dtype=x.dtype).max()),
}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("form", [*SHARED, *APART])
def test_results_are_numpys(form: str, ranks: int) -> None:
    function = (SHARED | APART)[form]
    with dgpu.enable(local_ranks=ranks, **ALWAYS):
        found = dask.base.compute(*function(lazy(A), lazy(B)), scheduler="sync")
    if form == "functions of a user":
        wanted: tuple[Any, ...] = (A.sum(), (A + 1).max())
    else:
        wanted = function(A, B)  # type: ignore[arg-type]
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("form", SHARED)
def test_shared_inputs_make_one_gang(form: str) -> None:
    """It reads each block once and is predicted to take no longer than gangs for each result."""
    results = SHARED[form](lazy(A), lazy(B))
    ((region, prediction),) = gangs_of(*results)
    alone = [gangs_of(each) for each in results]
    assert all(len(regions) == 1 for regions in alone)
    assert prediction.seconds <= sum(each.seconds for ((_, each),) in alone)
    assert prediction.tasks == region.tasks
    assert region.tasks < sum(one.tasks for ((one, _),) in alone)
    assert {name for name, _ in region.wanted} == {each.name for each in results}


@pytest.mark.parametrize("form", APART)
def test_others_stay_apart(form: str) -> None:
    assert len(gangs_of(*APART[form](lazy(A), lazy(B)))) == 2


def test_what_depends_on_a_gang_through_other_layers_is_another() -> None:
    """Dask's own layer between them would wait for the gang, and the gang for it."""
    x = lazy(A)
    first = x.sum(axis=0)
    with dask.annotate(dgpu=False):
        middle = first * 2
    last = (x - middle).max()
    regions = [region for region, _ in gangs_of(first, last)]
    assert len(regions) == 2
    with dgpu.enable(local_ranks=3, **ALWAYS):
        found = dask.base.compute(first, last, scheduler="sync")
    np.testing.assert_allclose(found[0], A.sum(axis=0), rtol=1e-13)
    np.testing.assert_allclose(found[1], (A - 2 * A.sum(axis=0)).max(), rtol=1e-13)


def test_what_does_not_fit_together_stays_apart() -> None:
    """Both products of a large result fit one after the other only."""
    x = lazy(np.ones((64, 1024)), (64, 256))
    results = x.T @ x, (x + 1).T @ x
    both = gangs_of(*results)
    most = max(prediction.peak_bytes for _, prediction in both)
    apart = gangs_of(*results, memory_cap=most - 1)
    assert len(both) == 1
    assert len(apart) == 2


def test_what_may_begin_does_not_wait() -> None:
    """One result reads blocks in memory; the other also reads one that is not there yet."""
    x, y = lazy(A).persist(scheduler="sync"), lazy(B)
    places = placed((x, lambda index: 0))
    with dask.annotate(dgpu=False):
        z = y + 1
    apart = gangs_of(x.sum(), (x * z).sum(), places=places)
    assert [prediction.at_once for _, prediction in apart] == [True, False]
    ((_, prediction),) = gangs_of(x.sum(), (x * x).sum(), places=places)
    assert prediction.at_once
