"""Running sums, factorizations and the like as gangs: results, steps, bytes, predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.base
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import dask_dgpu as dgpu
from tests.support.clusters import explained
from tests.support.profiles import examples
from tests.support.programs import HEADER, loaded, run_evenly

ALWAYS = {"on_error": "raise", "when": "always"}
SLOW = pytest.mark.slow
RNG = np.random.default_rng(7)
A, V, T = RNG.random((23, 13)), RNG.random(37), RNG.random((41, 5))
S = RNG.random((12, 12)) + 12 * np.eye(12)
P = S @ S.T
C = A[:, :4] + 1j * A[:, 4:8]
GAPS = np.where(A > 0.9, np.nan, A)
KINDS = (V * 10).astype(int)


def lazy(values: Any, chunks: Any = (5, 4)) -> da.Array:
    return da.from_array(values, chunks=chunks)


def gram(r: Any) -> Any:
    return r.T @ r


def running(x: da.Array) -> da.Array:
    return da.reductions.cumreduction(np.maximum.accumulate, larger, -np.inf, x, 0, x.dtype)


def larger(x: Any, y: Any) -> Any:
    return np.maximum(x, y)


def assigned(x: Any) -> Any:
    x[2:19:3, 3:] = 7.0
    return x


FORMS: dict[str, tuple[Callable[[], da.Array], Any]] = {
    "rows": (lambda: da.cumsum(lazy(A), axis=0), A.cumsum(axis=0)),
    "columns": (lambda: da.cumsum(lazy(A), axis=1), A.cumsum(axis=1)),
    "by Blelloch": (
        lambda: da.cumsum(lazy(A), axis=0, method="blelloch"),
        A.cumsum(axis=0),
    ),
    "flattened": (lambda: da.cumsum(lazy(A), axis=None), A.cumsum()),
    "products": (lambda: da.cumprod(lazy(A + 0.5), axis=0), (A + 0.5).cumprod(axis=0)),
    "gaps": (lambda: da.nancumsum(lazy(GAPS), axis=0), np.nancumsum(GAPS, axis=0)),
    "gaps of products": (lambda: da.nancumprod(lazy(GAPS), axis=1), np.nancumprod(GAPS, axis=1)),
    "thin": (lambda: da.cumsum(lazy(A, (1, 13)), axis=0), A.cumsum(axis=0)),
    "uneven": (lambda: da.cumsum(lazy(V, ((1, 20, 3, 13),))), V.cumsum()),
    "complex": (lambda: da.cumsum(lazy(C), axis=0), C.cumsum(axis=0)),
    "truths": (lambda: da.cumsum(lazy(V > 0.5, 7)), (V > 0.5).cumsum()),
    "narrow": (lambda: da.cumsum(lazy(KINDS.astype("i2"), 7), dtype="i2"), KINDS.cumsum()),
    "of a user": (lambda: running(lazy(A)), np.maximum.accumulate(A, axis=0)),
    "of a result": (lambda: da.cumsum(lazy(A) @ lazy(A).T, axis=0), (A @ A.T).cumsum(axis=0)),
    "twice": (lambda: lazy(A).cumsum(axis=0).cumsum(axis=1).sum(), A.cumsum(0).cumsum(1).sum()),
    "R": (lambda: gram(da.linalg.qr(lazy(T, (6, 5)))[1]), gram(T)),
    "Q": (lambda: gram(da.linalg.qr(lazy(T, (6, 5)))[0]), np.eye(5)),
    "one QR": (lambda: gram(da.linalg.qr(lazy(T, 41))[1]), gram(T)),
    "wide QR": (lambda: gram(da.linalg.qr(lazy(T.T.copy(), (5, 6)))[1]), gram(T.T)),
    "complex QR": (lambda: abs(da.linalg.qr(lazy(C, (5, 4)))[1]), abs(np.linalg.qr(C)[1])),
    "singular values": (lambda: da.linalg.svd(lazy(T, (6, 5)))[1], np.linalg.svd(T)[1]),
    "least squares": (
        lambda: da.linalg.lstsq(lazy(T, (6, 5)), lazy(V[:1].repeat(41), 6))[0],
        np.linalg.lstsq(T, V[:1].repeat(41))[0],
    ),
    "spectral norm": (lambda: da.linalg.norm(lazy(T, (6, 5)), 2), np.linalg.norm(T, 2)),
    "Cholesky": (lambda: da.linalg.cholesky(lazy(P, 3)), scipy.linalg.cholesky(P)),
    "lower Cholesky": (lambda: da.linalg.cholesky(lazy(P, 4), lower=True), np.linalg.cholesky(P)),
    "LU": (lambda: da.linalg.lu(lazy(S, 4))[2], scipy.linalg.lu(S)[2]),
    "system": (lambda: da.linalg.solve(lazy(S, 4), lazy(P, 4)), np.linalg.solve(S, P)),
    "inverse": (lambda: da.linalg.inv(lazy(S, 6)), np.linalg.inv(S)),
    "largest percentile": (lambda: da.percentile(lazy(V, 5), [100]), V.max(keepdims=True)),
    "largest": (lambda: da.topk(lazy(V, 5), -4), np.sort(V)[:4]),
    "histogram": (lambda: da.histogram(lazy(V, 5), 8, (0, 1))[0], np.histogram(V, 8, (0, 1))[0]),
    "counts": (lambda: da.bincount(lazy(KINDS, 6), minlength=11), np.bincount(KINDS, minlength=11)),
    "taken": (lambda: lazy(A)[[3, 20, 1, 4, 3]], A[[3, 20, 1, 4, 3]]),
    "shuffled": (lambda: lazy(A).shuffle([[9, 1], [0], [22, 5, 7]], 0), A[[9, 1, 0, 22, 5, 7]]),
    "assigned": (lambda: assigned(lazy(A)), assigned(A.copy())),
    "median": (lambda: da.median(lazy(A), axis=0), np.median(A, axis=0)),
    "one element": (lambda: da.cumsum(lazy(V[:1], 1)), V[:1]),
    "nothing": (lambda: da.cumsum(lazy(V[:0], 3)), V[:0]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [*(pytest.param(n, marks=SLOW) for n in (1, 2, 5)), 3])
def test_results_are_numpys_and_dasks(form: str, ranks: int) -> None:
    make, wanted = FORMS[form]
    expected = make().compute(scheduler="sync")
    with dgpu.enable(local_ranks=ranks, **ALWAYS):
        z = make()
        found = z.compute(scheduler="sync")
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    assert np.shape(found) == z.shape


ALONE = {"one element", "nothing"}
"""Forms of one block, which a task computes as well."""


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_they_are_one_gang(form: str, programs: list[Any]) -> None:
    with dgpu.enable(local_ranks=3, **ALWAYS):
        z = FORMS[form][0]()
        explanation = dgpu.explain(z)
        z.compute(scheduler="sync")
    assert len(programs) == len(explanation.regions) == (0 if form in ALONE else 1)
    for launch in programs:
        assert launch.plain is None  # without errors nothing falls back


dtypes = st.sampled_from(["f4", "f8", "i4", "u1", "c16", "?"])


@examples(40)
@given(npst.array_shapes(max_dims=3, max_side=9), st.data(), st.integers(1, 5), dtypes)
def test_any_running_sum(shape: Any, data: Any, ranks: int, dtype: str) -> None:
    """Integers are exact in any dtype, so in any order."""
    values = np.random.default_rng(0).integers(0, 4, shape).astype(dtype)
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    axis = data.draw(st.sampled_from([None, *range(len(shape))]))
    method = data.draw(st.sampled_from(["sequential", "blelloch"]))
    x = da.cumsum(lazy(values, chunks), axis=axis, method=method)
    with dgpu.enable(local_ranks=ranks, **ALWAYS):
        found = x.compute(scheduler="sync")
    np.testing.assert_array_equal(found, values.cumsum(axis=axis), strict=True)


def sent(z: da.Array, ranks: int) -> tuple[int, int]:
    """Return the bytes that ranks send for an array, and the steps."""
    launch, staged = loaded(z, ranks)
    return run_evenly(launch, staged, ranks).sent, len(launch.program.nodes)


ROWS, COLUMNS, CHUNKS = 64, 48, 8


@pytest.mark.parametrize("ranks", [3, 4, 5])
@pytest.mark.parametrize("method", ["sequential", "blelloch"])
def test_a_running_sum_sends_one_row_of_each_block(method: str, ranks: int) -> None:
    """Of all blocks but the last, to each other rank, in one exchange."""
    x = lazy(RNG.random((ROWS, COLUMNS)), (ROWS // CHUNKS, COLUMNS))
    nbytes, steps = sent(da.cumsum(x, axis=0, method=method), ranks)
    row, copies = COLUMNS * 8, (CHUNKS - 1) * (ranks - 1)
    most = copies * (row + HEADER)
    if method == "sequential":
        assert nbytes == most
        assert steps == 4  # sums, rows, totals, results
    else:  # the first rank reads no total; sums of blocks are rows, which need no header
        assert copies * row // 3 < nbytes < most
        assert steps == 3


def test_totals_as_large_as_blocks_travel_from_rank_to_rank() -> None:
    ranks = 4
    x = lazy(RNG.random((CHUNKS, 4 * COLUMNS)), (1, 4 * COLUMNS))
    nbytes, steps = sent(da.cumsum(x, axis=0), ranks)
    # to the rank that adds the next total, and to the one that adds it to its block
    assert nbytes == 2 * (ranks - 1) * (4 * COLUMNS * 8 + HEADER)
    assert steps == 1 + CHUNKS + 1


def test_factors_of_a_tall_matrix_meet_on_one_rank() -> None:
    ranks, n, blocks = 4, 16, 4
    values = RNG.random((1024, n))
    x = lazy(values, (1024 // blocks, n))
    r = da.linalg.qr(x)[1]
    nbytes, _ = sent(r, ranks)
    assert nbytes == (ranks - 1) * (n * n * values.itemsize + HEADER)


X = da.random.default_rng(0).random((4096, 2048), chunks=(512, 2048)).persist(scheduler="sync")


def planned(z: da.Array, **settings: Any) -> Any:
    """Return the regions on four workers, each with every fourth of the blocks in order."""
    places = {(X.name, at, 0): at // 2 for at in range(8)}
    return explained(z, places=places, **settings).regions


@pytest.mark.parametrize("method", ["sequential", "blelloch"])
def test_a_running_sum_of_large_blocks_is_a_gang(method: str) -> None:
    ((region, prediction),) = planned(da.cumsum(X, axis=0, method=method))
    assert prediction.tasks == 8 + 8 + 1
    assert prediction.moved_bytes <= 8 * 2048 * 8
    assert prediction.seconds < prediction.dask_seconds
    assert prediction.peak_bytes <= 4 * X.nbytes // 4
    assert len(region.pieces) + len(region.works) == len(prediction.steps)


def test_small_ones_stay_with_dask() -> None:
    x = lazy(A, (12, 13)).persist(scheduler="sync")
    assert planned(da.cumsum(x, axis=0)) == ()
    assert planned(da.percentile(x[:, 0], 50)) == ()


def test_users_functions_stay_with_dask_unless_asked() -> None:
    z = da.reductions.cumreduction(np.cumsum, larger, 0, X, 0, X.dtype)
    assert planned(z) == ()
    ((region, _),) = planned(z, when="always")
    assert all(step.once for work in region.blockworks[-1:] for step in work.steps[1:])


@pytest.mark.gpu
@pytest.mark.parametrize("form", sorted(set(FORMS) - {"of a user", "shuffled"}))
def test_on_a_gpu(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy blocks, with one rank; what Dask cannot compute on them alone is skipped."""
    import cupy

    def on_device(values: Any, chunks: Any = (5, 4)) -> da.Array:
        return da.from_array(cupy.asarray(values), chunks=chunks, asarray=False)

    monkeypatch.setitem(globals(), "lazy", on_device)
    make, wanted = FORMS[form]
    try:
        expected = cupy.asnumpy(make().compute(scheduler="sync"))
    except Exception as error:
        pytest.skip(f"plain Dask: {error!r}")
    with dgpu.enable(local_ranks=1, **ALWAYS):
        found = make().compute(scheduler="sync")
    np.testing.assert_allclose(cupy.asnumpy(found), wanted, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(cupy.asnumpy(found), expected, rtol=1e-12, atol=1e-13)


def test_all_factors_at_once() -> None:
    """Dask's layer for several results names layers that none of its tasks reads."""
    x = lazy(RNG.random((20, 10)), (10, 10))
    expected = dask.base.compute(*da.linalg.svd(x), scheduler="sync")
    with dgpu.enable(local_ranks=3, **ALWAYS):
        found = dask.base.compute(*da.linalg.svd(x), scheduler="sync")
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


def test_elements_at_points_stay_with_dask() -> None:
    numbers = np.arange(56).reshape(7, 8)
    points = [0, 1, 6], [0, 1, 0]
    with dgpu.enable(local_ranks=3, **ALWAYS):
        found = lazy(numbers, (3, 4)).vindex[points].compute(scheduler="sync")
    np.testing.assert_array_equal(found, numbers[points])
