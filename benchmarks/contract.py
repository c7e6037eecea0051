"""Contractions on a machine without GPUs, by dask_dgpu and by Dask in turn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
from distributed import Client, LocalCluster
from harness import PLAIN, Report, finished, no_wait, options, timed

import dask_dgpu as dgpu

RANKS = 4
OUT = Path(__file__).parent / "results" / "contract-cpu.jsonl"
DTYPE = "float64"


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    matrix : tuple of (int, int)
        Side of the matrices and of their chunks.
    batch : tuple of (int, int)
        Number of products in a batch, and side of their matrices, each in one chunk.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    matrix: tuple[int, int]
    batch: tuple[int, int]
    repetitions: int


FULL = Sizes(matrix=(2048, 128), batch=(64, 256), repetitions=5)
QUICK = Sizes(matrix=(256, 64), batch=(8, 32), repetitions=1)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A contraction of two arrays of these shapes and chunks."""

    name: str
    compute: Callable[..., Any]
    shapes: tuple[Shape, Shape]
    chunks: tuple[Shape, Shape]

    def operands(self) -> tuple[da.Array, ...]:
        """Return operands of random numbers, on the workers already."""
        random = da.random.default_rng().random
        sizes = zip(self.shapes, self.chunks, strict=True)
        return tuple(finished(random(shape, chunks=chunks).persist()) for shape, chunks in sizes)


def einsum(subscripts: str) -> Callable[..., Any]:
    """Return an einsum of two operands."""

    def compute(x: da.Array, y: da.Array) -> Any:
        return da.einsum(subscripts, x, y)

    return compute


def tensordot(x: da.Array, y: da.Array) -> Any:
    """Contract the last two axes of x with the first two of y."""
    return da.tensordot(x, y, axes=2)


def cases(sizes: Sizes) -> list[Case]:
    """Return all contractions; those of two matrices have the same flops."""
    (n, chunk), (count, side) = sizes.matrix, sizes.batch
    square, block = (n, n), (chunk, chunk)
    deep = chunk // 8
    stack, piece = (count, side, side), (1, side, side)
    cut = (count // 8, side // 4, side // 4)
    long, longer = (n, n // deep, deep), (n // deep, deep, n)
    pieces = (chunk, chunk // deep, deep), (chunk // deep, deep, chunk)
    return [
        Case("matmul", da.matmul, (square, square), (block, block)),
        Case("einsum ij,jk->ik", einsum("ij,jk->ik"), (square, square), (block, block)),
        Case("einsum ij,kj->ki", einsum("ij,kj->ki"), (square, square), (block, block)),
        Case("tensordot of two axes", tensordot, (long, longer), pieces),
        Case("batch", da.matmul, (stack, stack), (piece, piece)),
        Case("batch, cut matrices", da.matmul, (stack, stack), (cut, cut)),
        Case("batch by einsum", einsum("bij,bkj->bik"), (stack, stack), (piece, piece)),
        Case("batch with one matrix", da.matmul, (stack, (side, side)), (piece, (side, side))),
    ]


def end_to_end(report: Report, sizes: Sizes) -> None:
    """Contract on a cluster, by dask_dgpu and by Dask in turn."""
    with (
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        dgpu.enable(client, when="always", on_error="raise") as enabled,
    ):
        ways: dict[str, Callable[..., Any]] = {"dask": PLAIN, "dask_dgpu": enabled.optimizer}
        for case in cases(sizes):
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(1 + sizes.repetitions):
                for way, optimizer in ways.items():
                    operands = case.operands()
                    taken, result = timed(client, optimizer, case.compute, operands, no_wait)
                    seconds[way].append(taken)
                    del operands, result
            plain = median(seconds["dask"][1:])
            for way, found in seconds.items():
                kept = found[1:]
                ratio = median(kept) / plain
                facts: dict[str, Any] = {"shapes": case.shapes, "chunks": case.chunks}
                report.add(f"{case.name}, {way}", kept, dtype=DTYPE, ratio=ratio, **facts)


def main() -> None:
    """Run all and print a table."""
    given = options(__doc__, OUT).parse_args()
    warnings.filterwarnings("ignore", category=da.PerformanceWarning)
    report = Report(given.out, RANKS)
    end_to_end(report, QUICK if given.quick else FULL)
    report.print()


if __name__ == "__main__":
    main()
