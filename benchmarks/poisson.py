"""``dgpu.poisson`` on a machine without GPUs, beside SciPy in one process and plain Dask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
import scipy.fft
from distributed import Client, LocalCluster
from fft_harness import slab_rows, turned
from harness import PLAIN, Report, fresh, no_wait, options, timed
from process_harness import processes

import dask_dgpu as dgpu

RANKS = 4
THREADS = 2
"""Of SciPy, which computes in one process."""
DTYPE = "float64"
OUT = Path(__file__).parent / "results" / "poisson-cpu.jsonl"
BOUNDARIES = ("zero", "reflect", "periodic")

Function = Callable[..., Any]
Way = tuple[Client, Callable[..., Any], Callable[[da.Array], da.Array]]
"""A cluster, an optimizer, and what is computed."""


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    n : int
        Side of the grid.
    slabs : int
        Chunks along its first axis.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    n: int
    slabs: int
    repetitions: int

    @property
    def rows(self) -> int:
        """Rows of a slab."""
        return slab_rows((self.n, self.n), self.slabs)

    @property
    def facts(self) -> dict[str, Any]:
        """What every figure says."""
        return {"n": self.n, "chunk": self.rows, "dtype": DTYPE}


FULL = Sizes(n=2048, slabs=8, repetitions=5)
QUICK = Sizes(n=64, slabs=8, repetitions=1)


@dataclass(frozen=True)
class Method:
    """What SciPy's transforms make of a boundary: there and back, each along rows and columns."""

    rows: Function
    columns: Function
    columns_back: Function
    rows_back: Function
    width: int
    dtype: str
    eigenvalues: Any

    @classmethod
    def of(cls, boundary: str, n: int) -> Method:
        """Return that of a grid of ``n`` by ``n`` points, of distance 1."""
        k = np.arange(n)
        there: Function
        back: Function
        functions: tuple[Function, ...]
        if boundary == "periodic":
            lines = -((2 * np.sin(np.pi * k / n)) ** 2)
            width = n // 2 + 1
            total = lines[:, None] + lines[:width]
            back = partial(scipy.fft.irfft, n=n)
            functions = (scipy.fft.rfft, scipy.fft.fft, scipy.fft.ifft, back)
            dtype = "complex128"
        else:
            zero = boundary == "zero"
            lines = -((2 * np.sin(np.pi * (k + zero) / (2 * (n + zero)))) ** 2)
            width, dtype, total = n, DTYPE, lines[:, None] + lines
            there = partial(scipy.fft.dst, type=1) if zero else scipy.fft.dct
            back = partial(scipy.fft.idst, type=1) if zero else scipy.fft.idct
            functions = (there, there, back, back)
        if boundary != "zero":
            total[0, 0] = -np.inf
        return cls(*functions, width=width, dtype=dtype, eigenvalues=total)

    def by_scipy(self, rhs: Any, workers: int = THREADS) -> Any:
        """Solve in one process."""
        spectrum = self.rows(rhs, axis=1, workers=workers)
        spectrum = self.columns(spectrum, axis=0, workers=workers, overwrite_x=True)
        spectrum /= self.eigenvalues
        back = self.columns_back(spectrum, axis=0, workers=workers, overwrite_x=True)
        return self.rows_back(back, axis=1, workers=workers)

    def by_dask(self, rhs: da.Array, method: str) -> da.Array:
        """Solve as one would in plain Dask: transform, rechunk, transform, and back."""
        wide = _mapped(rhs, self.rows, 1, self.width, self.dtype)
        spectrum = _mapped(turned(wide, method), self.columns, 0, rhs.shape[0], self.dtype)
        scaled = spectrum / da.from_array(self.eigenvalues, chunks=spectrum.chunks)
        back = _mapped(scaled, self.columns_back, 0, rhs.shape[0], self.dtype)
        back = back.rechunk((rhs.chunks[0], back.shape[1]), method=method)
        return _mapped(back, self.rows_back, 1, rhs.shape[1], DTYPE)


def _mapped(x: da.Array, function: Function, axis: int, length: int, dtype: str) -> da.Array:
    chunks = tuple((length,) if k == axis else sizes for k, sizes in enumerate(x.chunks))
    meta = np.empty((0, 0), dtype)
    y: da.Array = da.map_blocks(function, x, axis=axis, chunks=chunks, dtype=dtype, meta=meta)
    return y


def scipy_alone(report: Report, sizes: Sizes, boundary: str) -> None:
    """Solve by SciPy in one process."""
    with processes(1, _solve, (sizes, boundary)) as pipes:
        seconds = pipes[0].recv()
    what = f"{boundary}, scipy, one process"
    report.add(what, seconds, n=sizes.n, dtype=DTYPE, threads=THREADS)


def _solve(rank: int, pipe: Connection, sizes: Sizes, boundary: str) -> None:
    seconds = []
    rng = np.random.default_rng(rank)
    method = Method.of(boundary, sizes.n)
    for _ in range(1 + sizes.repetitions):
        rhs = rng.random((sizes.n, sizes.n))
        start = time.perf_counter()
        method.by_scipy(rhs)
        seconds.append(time.perf_counter() - start)
    pipe.send(seconds[1:])


def end_to_end(report: Report, sizes: Sizes) -> None:
    """Solve by dask_dgpu, and on workers that know nothing of it by Dask."""
    with (
        _cluster() as client,
        _cluster() as plain,
        dgpu.enable(client, when="always", on_error="raise") as enabled,
    ):
        for boundary in BOUNDARIES:
            method = Method.of(boundary, sizes.n)
            ours = partial(dgpu.poisson, boundary=boundary)
            ways: dict[str, Way] = {
                "dask_dgpu": (client, enabled.optimizer, ours),
                "dask, tasks": (plain, PLAIN, partial(method.by_dask, method="tasks")),
                "dask, p2p": (plain, PLAIN, partial(method.by_dask, method="p2p")),
            }
            _in_turns(report, sizes, boundary, method, ways)


@contextmanager
def _cluster() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def _in_turns(
    report: Report, sizes: Sizes, boundary: str, method: Method, ways: dict[str, Way]
) -> None:
    """Solve in each way; ratios are to the faster one of plain Dask."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for repetition in range(1 + sizes.repetitions):
        for way, (client, optimizer, function) in ways.items():
            with client.as_current():
                x = fresh(sizes.n, (sizes.rows, sizes.n), DTYPE)
                taken, u = timed(client, optimizer, function, (x,), no_wait)
                if repetition == 0:
                    _compare(way, u.compute(), method.by_scipy(x.compute()))
            seconds[way].append(taken)
            del x, u
    medians = {way: median(times[1:]) for way, times in seconds.items()}
    fastest = min(medians["dask, tasks"], medians["dask, p2p"])
    for way, times in seconds.items():
        what = f"{boundary}, end to end, {way}"
        report.add(what, times[1:], ratio=medians[way] / fastest, **sizes.facts)


def _compare(way: str, value: Any, wanted: Any) -> None:
    error = float(np.linalg.norm(value - wanted) / np.linalg.norm(wanted))
    if not error < 1e-10:
        raise RuntimeError(f"{way} is off by {error}")


def main() -> None:
    """Run all and print a table."""
    given = options(__doc__, OUT).parse_args()
    sizes = QUICK if given.quick else FULL
    report = Report(given.out, RANKS)
    for boundary in BOUNDARIES:
        scipy_alone(report, sizes, boundary)
    end_to_end(report, sizes)
    report.print()


if __name__ == "__main__":
    main()
