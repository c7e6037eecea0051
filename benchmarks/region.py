"""A spectral solver and a chain of products without GPUs: as one program, and as many tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait
from fft_harness import DASKS_FFTN, turned
from harness import PLAIN, Report, fresh, options
from process_harness import blas_threads, processes

import dask_dgpu as dgpu

RANKS = 4
OUT = Path(__file__).parent / "results" / "region-cpu.jsonl"
PRODUCTS = 10


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    grid : int
        Side of the grid of the spectral solver, in 8 slabs.
    n, chunk : int
        Side of the factors of the chain and of their chunks.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    grid: int
    n: int
    chunk: int
    repetitions: int


FULL = Sizes(grid=2048, n=1024, chunk=128, repetitions=5)
QUICK = Sizes(grid=64, n=64, chunk=32, repetitions=1)


def wave_numbers(n: int, rows: int) -> da.Array:
    """Return the squares of the wave numbers of a periodic grid, 1 in place of 0."""
    k = da.fft.fftfreq(n, d=1 / n, chunks=rows)
    square = k[:, None] ** 2 + k[None, :].rechunk(n) ** 2
    return da.where(square == 0, 1, square)


def forward(x: da.Array) -> da.Array:
    """Transform slabs of rows as one would in plain Dask."""
    return DASKS_FFTN(turned(DASKS_FFTN(x, axes=(1,))), axes=(0,))


def poisson(n: int, seed: int, *, plain: bool) -> da.Array:
    """Return how far a spectral solution of Poisson's equation is from what it was made of.

    From random numbers to a scalar. In plain Dask each transform is a rechunk between two
    of Dask's own.
    """
    rows = n // 8
    u = da.random.default_rng(seed).random((n, n), chunks=(rows, n))
    u = u - u.mean()
    k2 = wave_numbers(n, rows)
    if plain:
        spectrum = forward(u)
        laplacian = -spectrum * k2.rechunk(spectrum.chunks)
        solution = -laplacian / k2.rechunk(spectrum.chunks)
        back = dask.array.fft.ifft(solution, axis=0).rechunk((rows, n))
        again = dask.array.fft.ifft(back, axis=1).real
    else:
        laplacian = -da.fft.fft2(u) * k2
        again = da.fft.ifft2(-laplacian / k2).real
    return abs(again - u).max()


def chain(a: da.Array) -> da.Array:
    """Return ten products, each of the one before, scaled lest they grow."""
    x = a
    for _ in range(PRODUCTS):
        x = (x @ a) * (2.0 / a.shape[0])
    return x


def numpys_chain(rank: int, pipe: Any, sizes: Sizes) -> None:
    """Multiply in one process with two threads."""
    seconds = []
    rng = np.random.default_rng(rank)
    for _ in range(1 + sizes.repetitions):
        a = x = rng.random((sizes.n, sizes.n))
        start = time.perf_counter()
        for _ in range(PRODUCTS):
            x = (x @ a) * (2.0 / sizes.n)
        seconds.append(time.perf_counter() - start)
    pipe.send(seconds[1:])


@contextmanager
def _cluster() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


Way = tuple[Client, Callable[..., Any]]


def _in_turns(
    report: Report, what: str, ways: dict[str, tuple[Client, Callable[[int], float]]], **facts: Any
) -> None:
    """Time each way in turn; ratios are to plain Dask."""
    repetitions = facts.pop("repetitions")
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for repetition in range(1 + repetitions):
        for way, (client, run) in ways.items():
            with client.as_current():
                seconds[way].append(run(repetition))
    medians = {way: median(times[1:]) for way, times in seconds.items()}
    for way, times in seconds.items():
        ratio = medians[way] / medians["dask"]
        report.add(f"{what}, {way}", times[1:], ratio=ratio, **facts)


def main() -> None:
    """Run all and print a table."""
    given = options(__doc__, OUT).parse_args()
    sizes = QUICK if given.quick else FULL
    report = Report(given.out, RANKS)
    with blas_threads(2), processes(1, numpys_chain, (sizes,)) as pipes:
        numbers = pipes[0].recv()
    report.add("ten products, numpy", numbers, n=sizes.n, dtype="float64", threads=2)
    with (
        _cluster() as client,
        _cluster() as plain,
        dgpu.enable(client, when="always", on_error="raise") as enabled,
        dgpu.enable(client, when="always", on_error="raise", regions=False) as pieces,
    ):

        def solve(optimizer: Callable[..., Any], *, plain: bool) -> Callable[[int], float]:
            def run(repetition: int) -> float:
                with dask.config.set(array_optimize=optimizer):
                    start = time.perf_counter()
                    error = float(poisson(sizes.grid, repetition, plain=plain).compute())
                    seconds = time.perf_counter() - start
                if not error < 1e-9:
                    raise RuntimeError(f"the solution is off by {error}")
                return seconds

            return run

        def multiply(optimizer: Callable[..., Any]) -> Callable[[int], float]:
            def run(_: int) -> float:
                a = fresh(sizes.n, sizes.chunk, "float64")
                with dask.config.set(array_optimize=optimizer):
                    start = time.perf_counter()
                    x = chain(a).persist()
                    wait(x)
                    return time.perf_counter() - start

            return run

        _in_turns(
            report,
            "spectral Poisson solve",
            {
                "dask_dgpu": (client, solve(enabled.optimizer, plain=False)),
                "dask_dgpu, a gang for each collective": (
                    client,
                    solve(pieces.optimizer, plain=False),
                ),
                "dask": (plain, solve(PLAIN, plain=True)),
            },
            repetitions=sizes.repetitions,
            n=sizes.grid,
            chunk=sizes.grid // 8,
            dtype="float64",
        )
        _in_turns(
            report,
            "ten products",
            {
                "dask_dgpu": (client, multiply(enabled.optimizer)),
                "dask_dgpu, a gang for each collective": (client, multiply(pieces.optimizer)),
                "dask": (plain, multiply(PLAIN)),
            },
            repetitions=sizes.repetitions,
            n=sizes.n,
            chunk=sizes.chunk,
            dtype="float64",
        )
    report.print()


if __name__ == "__main__":
    main()
