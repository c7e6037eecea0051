"""``da.matmul`` on a machine without GPUs: lowering, end to end, and the rank program alone."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from harness import PLAIN, Report, fresh, no_wait, options, timed
from process_harness import blas_threads, processes, run_ranks, slowest

import dask_dgpu as dgpu
from dask_dgpu.algorithms.summa.choose import plan_summa
from dask_dgpu.algorithms.summa.plan import Operand
from dask_dgpu.algorithms.summa.rank import summa_rank
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.environment import settings
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.optimizer import GraphOptimizer
from graph_opt.model.cost import HOST
from graph_opt.model.layout import block_spans, cuts_of

RANKS = 4
OUT = Path(__file__).parent / "results" / "summa-cpu.jsonl"


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    blocks : int
        Block rows and columns of the product that is only lowered.
    products : tuple of (int, int)
        Side of the matrices and of their chunks.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    blocks: int
    products: tuple[tuple[int, int], ...]
    repetitions: int


FULL = Sizes(blocks=50, products=((2048, 128), (4096, 512)), repetitions=5)
QUICK = Sizes(blocks=8, products=((256, 64),), repetitions=1)


def lowering(report: Report, sizes: Sizes) -> None:
    """Turn a product of persisted matrices into tasks, by dask_dgpu and by Dask."""
    side = 128
    n = sizes.blocks * side
    # blocks of zeros are views of one number
    x, y = (da.zeros((n, n), chunks=side).persist(scheduler="synchronous") for _ in range(2))
    facts = ClusterFacts(workers=RANKS, device="cpu", device_memory=None)
    gang = GraphOptimizer(settings.read({"when": "always", "on_error": "raise"}), facts)
    for what, optimizer in (("lowering, dask_dgpu", gang), ("lowering, dask", PLAIN)):
        seconds = []
        for _ in range(sizes.repetitions):
            z = da.matmul(x, y)
            graph, keys = z.__dask_graph__(), z.__dask_keys__()
            start = time.perf_counter()
            tasks = dict(optimizer(graph, keys))
            seconds.append(time.perf_counter() - start)
        inputs = sum(name in (x.name, y.name) for name, *_ in tasks)
        report.add(what, seconds, n=n, chunk=side, dtype="float64", tasks=len(tasks) - inputs)


def end_to_end(report: Report, sizes: Sizes) -> None:
    """Multiply on a cluster, by dask_dgpu and by Dask in turn."""
    with (
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        dgpu.enable(client, when="always", on_error="raise") as enabled,
    ):
        for n, chunk in sizes.products:
            ways: dict[str, tuple[Callable[..., Any], int]] = {
                "dask": (PLAIN, chunk),
                "dask_dgpu": (enabled.optimizer, chunk),
                "dask, its best chunks": (PLAIN, n // 2),
            }
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(1 + sizes.repetitions):
                for way, (optimizer, side) in ways.items():
                    x, y = (fresh(n, side, "float64") for _ in range(2))
                    taken, product = timed(client, optimizer, da.matmul, (x, y), no_wait)
                    seconds[way].append(taken)
                    del x, y, product
            plain = median(seconds["dask"][1:])
            for way, (_, side) in ways.items():
                kept = seconds[way][1:]
                ratio = median(kept) / plain
                report.add(
                    f"end to end, {way}", kept, n=n, chunk=side, dtype="float64", ratio=ratio
                )


def numpy_alone(report: Report, sizes: Sizes, threads: int = 2) -> None:
    """Multiply by NumPy in one process."""
    for n, _ in sizes.products:
        with blas_threads(threads), processes(1, _multiply, (n, sizes.repetitions)) as pipes:
            seconds = pipes[0].recv()
        report.add("numpy, one process", seconds, n=n, dtype="float64", threads=threads)


def _multiply(rank: int, pipe: Connection, n: int, repetitions: int) -> None:
    seconds = []
    rng = np.random.default_rng(rank)
    for _ in range(1 + repetitions):
        x, y = rng.random((n, n)), rng.random((n, n))
        start = time.perf_counter()
        np.matmul(x, y)
        seconds.append(time.perf_counter() - start)
    pipe.send(seconds[1:])


def rank_program(report: Report, sizes: Sizes) -> None:
    """Run the gang's program in bare processes over TCP: no Dask at all."""
    found = zip(*run_ranks(RANKS, _multiply_on_ranks, sizes), strict=True)
    for (n, chunk), ranks in zip(sizes.products, found, strict=True):
        seconds, (mesh, steps) = slowest([times for times, _ in ranks]), ranks[0][1]
        facts = {"mesh": mesh, "steps": steps}
        report.add("rank program", seconds, n=n, chunk=chunk, dtype="float64", **facts)


def _multiply_on_ranks(comm: Comm, sizes: Sizes) -> list[Any]:
    found, rank = [], comm.rank
    rng = np.random.default_rng(rank)
    for n, chunk in sizes.products:
        side = n // chunk
        cuts = cuts_of([chunk] * side)
        blocks = [(i, j) for i in range(side) for j in range(side)]
        spans = block_spans(tuple(range(len(blocks) + 1)), RANKS)
        owners = tuple(owner for owner, (lo, hi) in enumerate(spans) for _ in range(lo, hi))
        operand = Operand((cuts, cuts), owners, "float64")
        mine = blocks[slice(*spans[rank])]
        seconds = []
        for _ in range(1 + sizes.repetitions):
            a, b = ({at: rng.random((chunk, chunk)) for at in mine} for _ in range(2))
            comm.barrier()
            start = time.perf_counter()
            plan = plan_summa(operand, operand, "float64", RANKS, HOST)
            summa_rank(plan, comm, HostDevice(), a, b)
            seconds.append(time.perf_counter() - start)
        found.append((seconds[1:], (plan.mesh, plan.steps)))
    return found


def main() -> None:
    """Run all and print a table."""
    given = options(__doc__, OUT).parse_args()
    warnings.filterwarnings("ignore", category=da.PerformanceWarning)
    sizes = QUICK if given.quick else FULL
    report = Report(given.out, RANKS)
    for figures in (lowering, numpy_alone, rank_program, end_to_end):
        figures(report, sizes)
    report.print()


if __name__ == "__main__":
    main()
