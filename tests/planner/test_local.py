"""Regions without a collective: results equal NumPy's, and which of them run as gangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import dask_dgpu as dgpu
from tests.support.clusters import explained, on_gpus, placed
from tests.support.profiles import examples

ALWAYS = {"on_error": "raise", "when": "always"}
RNG = np.random.default_rng(4)
A, B, V = RNG.random((23, 13)), RNG.random((23, 13)), RNG.random(37)
S = RNG.random((12, 12))
KINDS = (V * 10).astype(int)


def lazy(values: Any, chunks: Any = (5, 4)) -> da.Array:
    return da.from_array(values, chunks=chunks)


FORMS: dict[str, tuple[Callable[[], da.Array], Any]] = {
    "transpose": (lambda: lazy(S) + lazy(S, (4, 5)).T, S + S.T),
    "square": (lambda: lazy(S, 4) * 2 - lazy(S, 4).T, S * 2 - S.T),
    "shifted": (lambda: lazy(S, 4)[4:] - lazy(S, 4)[:-4], S[4:] - S[:-4]),
    "outer": (lambda: da.outer(lazy(V, 5), lazy(V, 7)), np.outer(V, V)),
    "sum": (lambda: lazy(A).sum(), A.sum()),
    "rows": (lambda: lazy(A).sum(axis=1, keepdims=True), A.sum(axis=1, keepdims=True)),
    "pairs": (lambda: lazy(A, 2).sum(split_every=2), A.sum()),
    "spread": (lambda: lazy(A).std(axis=0), A.std(axis=0)),
    "centred": (lambda: lazy(A) - lazy(A).mean(axis=0), A - A.mean(axis=0)),
    "position": (lambda: lazy(A).argmax(axis=0), A.argmax(axis=0)),
    "any": (lambda: (lazy(A) > 2).any(), (A > 2).any()),
    "integers": (lambda: lazy(KINDS, 6).sum(), KINDS.sum()),
    "scan": (lambda: da.cumsum(lazy(A), axis=0, method="blelloch"), A.cumsum(axis=0)),
    "running sum": (lambda: lazy(A).cumsum(axis=0).sum(axis=1), A.cumsum(axis=0).sum(axis=1)),
    "roll": (lambda: lazy(A) + da.roll(lazy(A), 5, axis=0), A + np.roll(A, 5, axis=0)),
    "pad": (lambda: da.pad(lazy(A), 2), np.pad(A, 2)),
    "edges": (lambda: da.pad(lazy(A), 2, mode="edge").max(), A.max()),
    "joined": (
        lambda: da.concatenate([lazy(A), lazy(B)]).max(axis=0),
        np.concatenate([A, B]).max(axis=0),
    ),
    "stacked": (lambda: da.stack([lazy(A), lazy(B)]).mean(axis=0), (A + B) / 2),
    "slices": (lambda: lazy(A)[3:20:2, ::-1].sum(axis=0), A[3:20:2, ::-1].sum(axis=0)),
    "taken": (lambda: lazy(A)[[3, 1, 20, 4]].prod(axis=0), A[[3, 1, 20, 4]].prod(axis=0)),
    "largest": (lambda: da.topk(lazy(V, 5), 4), np.sort(V)[:-5:-1]),
    "histogram": (
        lambda: da.histogram(lazy(V, 5), bins=8, range=(0, 1))[0],
        np.histogram(V, bins=8, range=(0, 1))[0],
    ),
    "counts": (lambda: da.bincount(lazy(KINDS, 6), minlength=11), np.bincount(KINDS, minlength=11)),
    "user": (lambda: lazy(A).map_blocks(np.sin).sum(axis=0), np.sin(A).sum(axis=0)),
    "nothing": (lambda: lazy(A[:0], (5, 4)).sum(axis=0), A[:0].sum(axis=0)),
    "one": (lambda: lazy(A[:1, :1]) - lazy(A[:1, :1]).sum(), A[:1, :1] * 0),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_results_are_numpys(form: str, ranks: int) -> None:
    make, wanted = FORMS[form]
    z = make()
    with dgpu.enable(local_ranks=ranks, **ALWAYS):
        found = z.compute(scheduler="sync")
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)
    assert np.asarray(found).dtype == z.dtype
    assert np.shape(found) == z.shape


@examples(25)
@given(
    npst.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from(["f4", "f8", "i4", "u1", "c16", "?"]),
)
def test_any_shape_and_dtype(shape: Any, chunk: int, ranks: int, dtype: str) -> None:
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    x = lazy(values, chunk)
    with dgpu.enable(local_ranks=ranks, **ALWAYS):
        results = dask.compute(x.sum(axis=0), x + x.max(), x * x.T.T[::-1], scheduler="sync")
    wanted = values.sum(axis=0), values + values.max(), values * values[::-1]
    for found, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("form", ["square", "outer", "centred", "spread", "largest", "histogram"])
def test_blocks_that_meet_are_one_gang(form: str, programs: list[Any]) -> None:
    with dgpu.enable(local_ranks=3, **ALWAYS):
        z = FORMS[form][0]()
        explanation = dgpu.explain(z)
        z.compute(scheduler="sync")
    assert len(programs) == len(explanation.regions) == 1
    assert explanation.rewritten == ()
    assert any(each.by == "gang" for each in explanation.operations)
    assert programs[0].title in z.name or z.name.startswith(programs[0].title[:-9])


@pytest.mark.parametrize("ranks", [1, 3])
def test_maps_are_left_to_dask(ranks: int, programs: list[Any]) -> None:
    x = lazy(A)
    with dgpu.enable(local_ranks=ranks, **ALWAYS):
        for z in (x + 1, x * lazy(B), np.exp(x).map_blocks(np.sin), x[::-1], x.T):
            assert dgpu.explain(z).regions == ()
            z.compute(scheduler="sync")
    assert programs == []


def test_one_process_has_no_blocks_to_move(programs: list[Any]) -> None:
    with dgpu.enable(local_ranks=3, on_error="raise"):
        (lazy(A) - lazy(A).mean(axis=0)).compute(scheduler="sync")
    assert programs == []


def planned(z: da.Array, *places: Any, **settings: Any) -> Any:
    """Return the gangs on four workers, if each block of some arrays is on one of them."""
    return explained(z, places=placed(*places), **settings).regions


def row(index: Any) -> int:
    return int(index[0]) % 4


def column(index: Any) -> int:
    return int(index[1]) % 4


X, Y = (
    da.random.default_rng(seed).random((2048, 2048), chunks=512).persist(scheduler="sync")
    for seed in range(2)
)


def test_arrays_on_different_workers_meet_in_a_gang() -> None:
    assert planned(X + Y) == ()
    assert planned(X + Y, (X, row), (Y, row), when="always") == ()
    ((region, prediction),) = planned(X + Y, (X, row), (Y, column))
    assert region.in_place
    block = X.nbytes // X.npartitions
    assert prediction.moved_bytes == 3 * block  # of four blocks in a row one stays
    assert prediction.seconds < prediction.dask_seconds


def test_predictions_know_where_blocks_are() -> None:
    ((_, spread),) = planned(X + X.T, (X, row), when="always")
    ((_, together),) = planned(X.sum(), (X, lambda index: 2), when="always")
    assert spread.moved_bytes > 0
    assert together.moved_bytes == 0


def test_what_users_ask_of_tasks_stays_with_dask() -> None:
    z = X + Y.T
    assert len(planned(z)) == 1
    assert planned(z.map_blocks(lambda block: block + 1)) == ()  # of unknown time
    with dask.annotate(workers=["tcp://a"]):
        assert planned(Y + X.T, when="always") == ()


def test_small_work_is_left_to_dask() -> None:
    x = lazy(A[:5, :8]).persist(scheduler="sync")  # two blocks
    assert planned(x + x.sum()) == ()
    assert planned(x + x.sum(), when="always") != ()
    assert planned(x + x.sum(), when="always", regions=False) == ()


def test_a_gang_without_room_is_left_to_dask() -> None:
    assert planned(X + X.T, memory_limit=1000, when="always") == ()
    assert planned(X + X.T, memory_cap=1000, when="always") == ()


@pytest.mark.parametrize(
    ("settings", "bytes_used"),
    [
        ({}, 80.0),
        ({"memory_limit": 50}, 40.0),
        ({"memory_limit": 50, "memory_cap": 45}, 40.0),
        ({"memory_limit": 500, "memory_cap": 45}, 45.0),
        ({"memory_cap": 45, "memory_safety_margin": 0}, 45.0),
    ],
)
def test_a_cap_only_lowers_what_is_used(settings: dict[str, int], bytes_used: float) -> None:
    z = lazy(S, 4).sum()
    assert explained(z, device_memory=100, **settings).room == bytes_used
    assert explained(z, memory_cap=45).room == 45


def test_copies_to_a_device_are_left_to_dask() -> None:
    x = lazy(S, 4)
    z = x.map_blocks(np.asarray)  # as with CuPy's
    z = on_gpus(z + z.T, lambda name: name not in x.dask.layers)
    found = explained(z, workers=2, device="cuda", device_memory=80 << 30, when="always")
    ((region, _),) = found.regions
    assert {node.container for node in region.nodes.values()} == {"cupy.ndarray"}
    assert {node.container for node, _ in region.inputs} == {"cupy.ndarray"}
