"""Sums without GPUs: plain, compensated and reproducible, of a block and of an array on workers."""

from __future__ import annotations

import math
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
from harness import PLAIN, Report, finished, options
from process_harness import processes

import dask_dgpu as dgpu
from dask_dgpu.kernels.sums import binned, compensated

RANKS = 4
OUT = Path(__file__).parent / "results" / "kahan_sum-cpu.jsonl"


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    length : int
        Values of the long array, of single precision, in 16 chunks.
    rows : int
        Rows of 8 of the array that is summed along its first axis, in 16 chunks.
    block : int
        Values of one block.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    length: int
    rows: int
    block: int
    repetitions: int


FULL = Sizes(length=1 << 28, rows=1 << 24, block=1 << 24, repetitions=9)
QUICK = Sizes(length=1 << 14, rows=1 << 10, block=1 << 10, repetitions=1)

Way = Callable[[Any, Any], da.Array]

WAYS: dict[str, Way] = {
    "dask": lambda x, axis: da.sum(x, axis),
    "dask, dtype float64": lambda x, axis: da.sum(x, axis, dtype="float64"),
    "compensated": dgpu.sum,
    "reproducible": lambda x, axis: dgpu.sum(x, axis, method="reproducible"),
}
KERNELS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda block: block.sum(),
    "compensated": lambda block: compensated.block_sum(block, (0,)).value(),
    "reproducible": lambda block: binned.block_sum(block, (0,)).value(),
}


def blocks(rank: int, pipe: Any, sizes: Sizes) -> None:
    """Sum a block in one process, in each way and precision."""
    for dtype in ("float32", "float64"):
        rng = np.random.default_rng(rank)
        block = rng.random(sizes.block, dtype=dtype)
        for way, function in KERNELS.items():
            seconds = []
            for _ in range(1 + sizes.repetitions):
                start = time.perf_counter()
                function(block)
                seconds.append(time.perf_counter() - start)
            pipe.send((dtype, way, seconds))


def _numbers(shape: tuple[int, ...], seed: int) -> da.Array:
    chunks = (max(1, shape[0] // 16), *shape[1:])
    numbers = da.random.default_rng(seed).random(shape, chunks=chunks, dtype="float32")
    return finished(numbers.persist())


def _error(found: Any, x: da.Array, axis: Any) -> float:
    """Return the largest relative error, to the exact sums."""
    exact = dgpu.sum(x.astype("float64"), axis, method="reproducible").compute()
    return float(np.max(np.abs(found - exact) / np.abs(exact)))


def _in_turns(report: Report, shape: tuple[int, ...], axis: Any, repetitions: int) -> None:
    """Time each way in turn, of numbers that no task has seen; ratios are to plain Dask."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    errors = dict.fromkeys(WAYS, math.nan)
    for repetition in range(1 + repetitions):
        x = _numbers(shape, repetition)
        for way, function in WAYS.items():
            with dask.config.set(array_optimize=PLAIN):
                start = time.perf_counter()
                found = function(x, axis).compute()
                seconds[way].append(time.perf_counter() - start)
                errors[way] = _error(found, x, axis)
        del x
    plain = median(seconds["dask"][1:])
    for way, times in seconds.items():
        report.add(
            f"sum, {way}",
            times[1:],
            ratio=median(times[1:]) / plain,
            first=times[0],
            shape=list(shape),
            axis=axis,
            dtype="float32",
            relative_error=errors[way],
        )


def main() -> None:
    """Run all and print a table."""
    given = options(__doc__, OUT).parse_args()
    sizes = QUICK if given.quick else FULL
    report = Report(given.out, RANKS)
    with processes(1, blocks, (sizes,)) as (pipe,):
        medians = {}
        for _ in range(2 * len(KERNELS)):
            dtype, way, seconds = pipe.recv()
            medians[way] = median(seconds[1:])
            ratio = medians[way] / medians["numpy"]
            more = {"n": sizes.block, "dtype": dtype, "first": seconds[0]}
            report.add(f"one block, {way}", seconds[1:], ratio=ratio, **more)
    with (
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        _in_turns(report, (sizes.length,), None, sizes.repetitions)
        _in_turns(report, (sizes.rows, 8), 0, sizes.repetitions)
    report.print()


if __name__ == "__main__":
    main()
