"""Loops of `da.map_overlap` without GPUs: as one program, and as plain Dask's tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from harness import PLAIN, Report, finished, fresh, options
from process_harness import blas_threads

import dask_dgpu as dgpu

RANKS = 4
OUT = Path(__file__).parent / "results" / "map_overlap-cpu.jsonl"
PADDING: dict[Any, Any] = {0.0: "constant", "periodic": "wrap", "reflect": "symmetric"}
"""NumPy's names for the boundaries."""


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    n, chunk : int
        Side of the grid and of its chunks.
    steps, many : int
        Steps of a loop, and of one that only dask_dgpu runs.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    n: int
    chunk: int
    steps: int
    many: int
    repetitions: int


FULL = Sizes(n=2048, chunk=1024, steps=100, many=1000, repetitions=3)
QUICK = Sizes(n=64, chunk=32, steps=5, many=10, repetitions=1)


def mean_of_neighbours(block: Any) -> Any:
    """Return the mean of the four neighbours of each cell but those at the edges."""
    return 0.25 * (block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:])


def loop(
    grid: da.Array,
    steps: int,
    boundary: Any,
    function: Callable[[Any], Any] = mean_of_neighbours,
    *,
    trim: bool = False,
) -> da.Array:
    """Return the grid after some steps, of which Dask trims ghost cells if there are any left."""
    options = {"depth": 1, "boundary": boundary, "trim": trim}
    for _ in range(steps):
        grid = da.map_overlap(function, grid, **options, dtype=grid.dtype, meta=grid._meta)
    return grid


def numpys(n: int, repetitions: int) -> list[float]:
    """Time a step in one process."""
    seconds = []
    block = np.random.default_rng(0).random((n, n))
    for _ in range(1 + repetitions):
        start = time.perf_counter()
        mean_of_neighbours(block)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def run(optimizer: Callable[..., Any], sizes: Sizes, steps: int, boundary: Any) -> Any:
    """Return the seconds of a loop, those in which Dask built it, and its result."""
    grid = fresh(sizes.n, sizes.chunk, "float64")
    with dask.config.set(array_optimize=optimizer):
        start = time.perf_counter()
        graph = loop(grid, steps, boundary)
        built = time.perf_counter() - start
        result = finished(graph.persist())
        seconds = time.perf_counter() - start
    return seconds, built, grid, result


def main() -> None:
    """Run all and print a table."""
    given = options(__doc__, OUT).parse_args()
    sizes = QUICK if given.quick else FULL
    report = Report(given.out, RANKS)
    facts: dict[str, Any] = {"n": sizes.n, "chunk": sizes.chunk, "dtype": "float64"}
    report.add("one step, numpy", numpys(sizes.n, sizes.repetitions), **facts)
    with (
        blas_threads(1),
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        dgpu.enable(client, when="always", on_error="raise") as enabled,
    ):
        ways: dict[str, Callable[..., Any]] = {"dask": PLAIN, "dask_dgpu": enabled.optimizer}
        for boundary in PADDING:
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            building: list[float] = []
            for _ in range(1 + sizes.repetitions):
                for way, optimizer in ways.items():
                    took, built, grid, result = run(optimizer, sizes, sizes.steps, boundary)
                    seconds[way].append(took / sizes.steps)
                    building.append(built / sizes.steps)
            _check(grid, result, sizes.steps, boundary)
            for way, times in seconds.items():
                report.add(
                    f"a step of {sizes.steps}, {way}",
                    times[1:],
                    ratio=median(times[1:]) / median(seconds["dask"][1:]),
                    boundary=boundary,
                    built_by_dask=median(building[2:]),
                    **facts,
                )
        seconds_of_many, built, grid, result = run(enabled.optimizer, sizes, sizes.many, 0.0)
        report.add(
            f"a step of {sizes.many}, dask_dgpu",
            [seconds_of_many / sizes.many],
            boundary=0.0,
            built_by_dask=built / sizes.many,
            **facts,
        )
        _check(grid, result, sizes.many, 0.0)
    report.print()


def _check(grid: da.Array, result: da.Array, steps: int, boundary: Any) -> None:
    """Compare with one array in one process."""
    expected = grid.compute()
    for _ in range(steps):
        expected = mean_of_neighbours(np.pad(expected, 1, mode=PADDING[boundary]))
    if not np.array_equal(expected, result.compute()):
        raise RuntimeError("the result is wrong")


if __name__ == "__main__":
    main()
