"""Rechunks without a cluster: one process, ranks as threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.explained import said
from tests.support.profiles import examples

ALWAYS = {"on_error": "raise", "when": "always"}
DTYPES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


@pytest.fixture(autouse=True, params=[1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[dgpu.Enabled]:
    with dgpu.enable(local_ranks=request.param, **ALWAYS) as state:
        yield state


RNG = np.random.default_rng(3)
A = RNG.integers(-9, 9, (12, 31)).astype(float)
S = RNG.random((13, 13))
X = da.from_array(A, chunks=(12, 5))
Y = da.from_array(S, chunks=(13, 3))


def same(actual: Any, expected: Any) -> None:
    np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("method", ["tasks", "p2p"])
def test_rows_to_columns(scheduler: str, method: str, gangs: list[str]) -> None:
    with dask.config.set({"array.rechunk.method": method, "scheduler": scheduler}):
        same(X.rechunk((5, 31)).compute(), A)
        same(X.T.rechunk((31, 5)).compute(), A.T)
        same((X + 1).rechunk((5, 7)).rechunk((12, 31)).sum(axis=0).compute(), (A + 1).sum(axis=0))
    assert len(gangs) == 3


def test_operands_of_different_chunks(gangs: list[str]) -> None:
    same((Y + Y.T).compute(), S + S.T)
    same((Y * Y.rechunk((4, 13))).compute(), S * S)
    assert [gang.count("rechunk") for gang in gangs] == [2, 2]


def test_products_of_what_is_rechunked(gangs: list[str]) -> None:
    z = (X.rechunk((5, 7)) @ X.T.rechunk((7, 12))).rechunk(4)
    same(z.compute(), A @ A.T)
    (gang,) = gangs
    kinds = sorted(name.strip().partition("-")[0] for name in gang.split(","))
    assert kinds == ["matmul", *["rechunk"] * 3]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str, gangs: list[str]) -> None:
    a = A.astype(dtype)
    same(da.from_array(a, chunks=(12, 5)).T.rechunk((31, 5)).compute(), a.T)
    assert len(gangs) == 1


@examples(40)
@given(st.data())
def test_any_shapes_chunks_axes_and_parts(data: st.DataObject) -> None:
    def chunks(length: int) -> tuple[int, ...]:
        edges = sorted(data.draw(st.lists(st.integers(0, length), max_size=3)))
        return tuple(hi - lo for lo, hi in pairwise([0, *edges, length]))

    shape = data.draw(st.lists(st.sampled_from([1, 2, 5, 7]), min_size=1, max_size=4))
    a = np.arange(np.prod(shape)).reshape(shape).astype(data.draw(st.sampled_from(DTYPES[1:])))
    axes = data.draw(st.permutations(range(len(shape))))
    x = da.from_array(a, chunks=tuple(map(chunks, shape))).transpose(axes)
    with dask.config.set({"array.rechunk.method": data.draw(st.sampled_from(["tasks", "p2p"]))}):
        z = x.rechunk(tuple(map(chunks, x.shape)))
    wanted = a.transpose(axes)
    same(z.compute(scheduler="sync"), wanted)
    part = tuple(slice(*sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in z.shape)
    same(z[part].compute(scheduler="sync"), wanted[part])


@pytest.mark.parametrize("shape", [(0, 5), (5, 0, 2), (0,)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    same(da.ones(shape, chunks=2).rechunk(3).compute(), np.ones(shape))


def test_chunks_of_length_zero(gangs: list[str]) -> None:
    z = X.rechunk(((0, 5, 0, 7), (31, 0)))
    same(z.compute(), A)
    same(z.rechunk((12, 5)).compute(), A)
    assert z.blocks[0, 1].compute().shape == (0, 0)
    assert len(gangs) == 3


def test_a_part_makes_and_reads_no_more_than_it_needs(gangs: list[str]) -> None:
    z = X.rechunk((3, 10))[:3, :7]
    (piece,) = dgpu.explain(z).to_dict()["rewritten"]
    assert piece["tasks"] == 2 + 1 + 1
    same(z.compute(), A[:3, :7])
    assert len(gangs) == 1


def test_a_part_and_then_the_whole(gangs: list[str]) -> None:
    z = X.rechunk((5, 31))
    whole, corner, part = dask.compute(z, z[:5, :5], (z + 1)[10:])
    same(whole, A)
    same(corner, A[:5, :5])
    same(part, A[10:] + 1)
    assert len(gangs) == 1
    kept = z[:5].persist()
    whole, corner = dask.compute(z, kept[:, :3])
    same(whole, A)
    same(corner, A[:5, :3])


def test_persisted(gangs: list[str]) -> None:
    x = X.persist()
    z = x.rechunk((5, 31)).persist()
    same((z + 1).compute(), A + 1)
    same(z.T.rechunk((5, 12)).compute(), A.T)
    assert len(gangs) == 2


def test_to_delayed_is_left_to_dask(gangs: list[str]) -> None:
    same(X.rechunk((5, 31)).to_delayed()[1, 0].compute(), A[5:10])
    assert gangs == []


def test_stored(tmp_path: Path, gangs: list[str]) -> None:
    z = X.rechunk((5, 31))
    target = np.zeros(A.shape)
    da.store(z, target)
    same(target, A)
    z[:10].to_zarr(str(tmp_path / "z.zarr"))
    same(da.from_zarr(str(tmp_path / "z.zarr")).compute(), A[:10])
    assert len(gangs) == 2


def test_the_source_stays_as_it_is() -> None:
    a = A.copy()
    z = da.from_array(a, chunks=(12, 31)).rechunk((12, 16))
    z[:3] = 0
    value = z.compute()
    value += 1
    np.testing.assert_array_equal(a, A)


def test_map_overlap_and_reshape(gangs: list[str]) -> None:
    x = da.from_array(A, chunks=(12, 3))
    z = x.map_overlap(lambda block: block * 2, depth=4, boundary="reflect", dtype=float)
    same(z.compute(), A * 2)
    same(x.reshape(-1).compute(), A.reshape(-1))
    assert gangs


DECLINED: list[tuple[Any, str]] = [
    (lambda: X.astype(object).rechunk((5, 31)), "dtype object has no kernel"),
    (lambda: X[X[:, 0] > 0].rechunk({1: 7}), "chunk sizes are unknown"),
    (lambda: da.ma.masked_greater(X, 3).rechunk((5, 31)), "MaskedArray"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED, ids=["object", "unknown", "masked"])
def test_what_is_declined_is_left_to_dask(make: Any, reason: str, gangs: list[str]) -> None:
    z = make()
    explanation = dgpu.explain(z)
    assert explanation.rewritten == ()
    assert reason in explanation.declined[0].reason
    keys = z.__dask_keys__()
    mine = dask.config.get("array_optimize")(z.dask, keys)
    assert list(mine) == list(da.optimize(z.dask, keys))
    value = z.compute()
    assert gangs == []
    with dask.config.set(array_optimize=da.optimize):
        np.testing.assert_array_equal(value, z.compute())


def test_the_cost_model_may_decline(gangs: list[str]) -> None:
    dgpu.enable(local_ranks=1, on_error="raise", when="cheaper")
    z = X.rechunk((12, 16))
    reason = dgpu.explain(z).declined[0].reason
    assert reason.startswith("plain Dask is predicted to be quicker")
    same(z.compute(), A)
    assert gangs == []


def test_explain() -> None:
    z = X.T.rechunk((31, 5))
    explanation = dgpu.explain(z)
    (piece,) = explanation.to_dict()["rewritten"]
    assert (piece["name"], piece["shape"], piece["dtype"]) == (z.name, (31, 12), "float64")
    assert (piece["axes"], piece["chunks_before"], piece["chunks"]) == ((1, 0), X.chunks, z.chunks)
    assert (piece["tasks"], piece["dask_tasks"]) == (7 + 3 + 1, 3 * 7 + 3)
    assert piece["peak_bytes"] >= 2 * A.nbytes // 3
    text = said(explanation)
    assert "(31, 12) float64, transposed to axes (1, 0), from 1 x 7 to 1 x 3 blocks" in text
    part = dgpu.explain(X.rechunk((3, 31))[:3])
    assert "from 1 x 7 to 1 of 4 x 1 blocks" in said(part)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_moved_bytes_are_those_of_the_plan(ranks: int) -> None:
    """Rows to columns on P ranks: of its rows each keeps one part in P."""
    n = 60
    dgpu.enable(local_ranks=ranks, **ALWAYS)
    x = da.ones((n, n), chunks=(n // ranks, n))
    (piece,) = dgpu.explain(x.rechunk((n, n // ranks))).to_dict()["rewritten"] or [None]
    if ranks > 1:
        assert piece["total_bytes"] == 8 * n * n * (ranks - 1) // ranks
        assert piece["moved_bytes"] == piece["total_bytes"] // ranks
