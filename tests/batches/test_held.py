"""What functions of users hold in this process: plans against measured peaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.batches.test_plan import limits
from tests.support.memory import assert_peak, bounded

Function = Callable[[Any], Any]

MOST = 1.15
"""Measured peaks, over planned ones."""

X = np.random.default_rng(0).normal(size=(4000, 500))

FUNCTIONS: dict[str, Function] = {
    "transform": lambda x: dgpu.fft.fft2(x).real,
    "cosine transform": lambda x: dgpu.fft.dctn(x) * 1,
    "stencil": lambda x: dgpu.stencil(x, boundary="periodic", iterations=3),
    "convolution": lambda x: dgpu.conv2d(x[None, None], np.ones((1, 1, 3, 3)), padding=1)[0, 0],
    "median": lambda x: da.median(x, axis=0),
    "percentiles": lambda x: da.percentile(x.ravel().rechunk(-1), [10, 50], method="linear"),
    "qr": lambda x: da.linalg.qr(x.rechunk((500, -1)))[0],
    "svd": lambda x: da.linalg.svd(x.rechunk((1000, -1)))[0],
    "scores": lambda x: (x - x.mean(axis=0)) / x.std(axis=0),
    "ufuncs": lambda x: da.exp(x) + 1,
    "transposed": lambda x: x.T + 1,
    "product": lambda x: x.T @ x,
    "sum": lambda x: (x * 2).sum(axis=0),
    "sort": lambda x: da.apply_along_axis(np.sort, 1, x, shape=(x.shape[1],), dtype=x.dtype),
    "user's": lambda x: x.map_blocks(lambda b: (b + 1) * (b - 1) / (b * b + 2)),
    "cumsum": lambda x: x.cumsum(axis=0),
    "overlap": lambda x: da.map_overlap(lambda b: b + 0, x, depth=1, boundary="reflect"),
    "variance": lambda x: x.var(axis=1),
    "argmax": lambda x: x.argmax(axis=0),
    "histogram": lambda x: da.histogram(x, bins=10, range=(-3, 3))[0],
    "topk": lambda x: da.topk(x, 2, axis=0),
    "argtopk": lambda x: da.argtopk(x, 2, axis=0),
}


DECLARED = {"histogram": 16.0}
"""Temporaries of functions that allocate more than the usual ones."""

OF_MANY_THREADS = ("cumsum", "product", "overlap")
QUICK = ("scores", "sort", "product", "argmax")


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        *(pytest.param(each, 400 << 20, id=f"{each}-once") for each in FUNCTIONS),
        *(
            pytest.param(each, 24 << 20, id=each, marks=() if each in QUICK else pytest.mark.slow)
            for each in FUNCTIONS
        ),
    ],
)
def test_peaks_are_at_most_the_plan(name: str, limit: int, graphs: list[int]) -> None:
    function, temporaries = FUNCTIONS[name], DECLARED.get(name, 2.0)
    out = np.empty_like(function(da.from_array(X, chunks=1000)).compute())
    with bounded(limit):
        plan = dgpu.plan(function, X, temporaries=temporaries)
        if not plan.feasible:
            (advised,) = limits(plan.advice).values()
    with bounded(limit if plan.feasible else dask.utils.parse_bytes(advised)):
        plan = dgpu.plan(function, X, temporaries=temporaries)
        assert plan.feasible
        objects = graphs[-1]
        assert_peak(
            lambda: dgpu.run(function, X, out=out, temporaries=temporaries, progress=False),
            MOST * plan.peak_bytes + objects,
        )


@pytest.mark.parametrize(
    "name", ["sort", *(pytest.param(each, marks=pytest.mark.slow) for each in OF_MANY_THREADS)]
)
def test_peaks_of_many_threads(name: str, graphs: list[int]) -> None:
    """Threads at short tasks run ahead of those at long ones."""
    function = FUNCTIONS[name]
    out = np.empty_like(function(da.from_array(X, chunks=1000)).compute())
    with bounded(48 << 20), dask.config.set(num_workers=8):
        plan = dgpu.plan(function, X)
        assert plan.feasible
        assert_peak(
            lambda: dgpu.run(function, X, out=out, progress=False),
            MOST * plan.peak_bytes + graphs[-1],
        )


@pytest.mark.parametrize("dtype", ["u1", "f4", "c8"])
def test_moments_in_double_precision(dtype: str, graphs: list[int]) -> None:
    x, out = X.astype(dtype), np.empty(len(X))
    with bounded(24 << 20):
        plan = dgpu.plan(FUNCTIONS["variance"], x)
        assert_peak(
            lambda: dgpu.run(FUNCTIONS["variance"], x, out=out, progress=False),
            MOST * plan.peak_bytes + graphs[-1] + (1 << 19),
        )


def test_a_gang_in_this_process_counts(graphs: list[int]) -> None:
    out = np.empty_like(X)
    with dgpu.enable():
        plan = dgpu.plan(FUNCTIONS["transform"], X)
        assert_peak(
            lambda: dgpu.run(FUNCTIONS["transform"], X, out=out, progress=False),
            MOST * plan.peak_bytes + graphs[-1],
        )
    assert plan.peak_bytes < 16 * X.nbytes


def test_blocks_between_are_no_larger_than_blocks_of_operands() -> None:
    with bounded(56 << 20):  # Dask's own limit would join all rows and columns to one block
        assert dgpu.plan(FUNCTIONS["transform"], X).feasible


@pytest.mark.filterwarnings("ignore:Increasing number of chunks")
def test_graphs_that_explode_are_refused() -> None:
    counts = []

    def gram(x: Any) -> Any:
        counts.append(x.npartitions)
        return x.T @ x

    with bounded(2 << 20):
        assert not dgpu.plan(gram, (4000, 4000)).feasible
    assert max(counts) < 1000


def greedy(x: Any) -> Any:
    """Return a function of blocks that holds eight blocks beside its result."""
    return x.map_blocks(lambda block: sum([block + at for at in range(8)]), dtype=x.dtype)


@pytest.mark.parametrize("threads", [1, 2])
def test_declared_temporaries_count_for_each_thread(threads: int, graphs: list[int]) -> None:
    out = np.empty_like(X)
    with bounded(threads * (2 << 20)), dask.config.set(num_workers=threads):
        few, many = (dgpu.plan(greedy, X, temporaries=each) for each in (2, 9))
        assert few.feasible
        assert many.feasible
        assert many.batches > few.batches
        assert_peak(
            lambda: dgpu.run(greedy, X, out=out, temporaries=9, progress=False),
            MOST * many.peak_bytes + graphs[-1],
        )
        (found,) = dgpu.run_many(greedy, [(X,)], temporaries=9, progress=False)
    np.testing.assert_array_equal(out, found)
    np.testing.assert_allclose(found, 8 * X + 28, rtol=1e-12)


def test_more_temporaries_than_fit_are_refused_with_numbers() -> None:
    with bounded(1 << 20):
        plan = dgpu.plan(greedy, X, temporaries=1000)
        assert not plan.feasible
        with pytest.raises(dgpu.errors.DgpuError, match=r"does not fit: .* 1.00 MiB may be used"):
            dgpu.run(greedy, X, temporaries=1000)


@pytest.mark.parametrize("wrong", [-1, float("nan"), "2", True])
def test_temporaries_are_a_number(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="expected temporaries to be a number of at"):
        dgpu.run(greedy, X, temporaries=wrong)


@pytest.mark.parametrize("name", ["overlap of results", "running sum of results"])
def test_what_few_later_tasks_read_is_not_kept_to_the_end(name: str) -> None:
    function: Function = {
        "overlap of results": lambda x: FUNCTIONS["overlap"](x + 1),
        "running sum of results": lambda x: FUNCTIONS["cumsum"](x + 1),
    }[name]
    with bounded(X.nbytes / 2), dask.config.set(num_workers=2):
        assert dgpu.plan(function, X).feasible


def test_arrays_in_memory_do_not_count() -> None:
    x = da.ones((4000, 500), chunks=500).persist(scheduler="sync")
    with bounded(x.nbytes):
        plan = dgpu.plan(lambda x: x - x.mean(), x)
    assert plan.feasible
    assert plan.parts[1].nbytes < x.nbytes / 4


def test_tasks_count_if_they_are_many() -> None:
    for count, counts in ((1000, False), (10_000, True)):
        names = [part.name for part in dgpu.plan(lambda x: x, da.ones(count, chunks=1)).parts]
        assert ("Dask's tasks" in names) is counts
