"""The cost of a profiler: the same computations within one, and without.

A loop of small gangs, a product, and a graph of plain tasks. Ways take turns, and change places
after each turn. A block of a profiler without any work is measured by itself. ``--device cuda``
runs all on the GPUs of one host, and compares the seconds of products with those that torch's
profiler finds in the GPU's kernels.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import dask
import dask.array as da
import dask.base
from distributed import Client, wait
from gpu_harness import add_cluster, cluster_of, traced
from harness import PLAIN, Report, options
from worker_harness import synchronize

import dask_dgpu as dgpu

RESULTS = Path(__file__).parent / "results"
SMALL, LARGE = 64, {"cpu": 2048, "cuda": 16384}
IN_A_ROW = 20
TASKS = 400
PRODUCTS = 5
"""Of which both profilers find the seconds."""
WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "without": nullcontext,
    "within": dgpu.Profiler,
}


class Work:
    """Computations on one cluster.

    Parameters
    ----------
    client : Client
        The cluster.
    device : str
        "cuda" or "cpu".
    quick : bool
        Whether sizes are small.
    """

    def __init__(self, client: Client, device: str, quick: bool) -> None:
        self.client, self.device = client, device
        self.n = SMALL if quick else LARGE[device]
        self.numbers = count(1)
        rng = da.random.default_rng(_generator(device))
        draw = [rng.random((n, n), chunks=n // 4) for n in (SMALL, self.n)]
        self.small, self.large = dask.base.persist(*draw)
        wait([self.small, self.large])

    def synchronize(self) -> None:
        """Wait for the devices."""
        if self.device == "cuda":
            self.client.run(synchronize)

    def new(self, array: da.Array) -> da.Array:
        """Return an array with values of its own: Dask reuses results that it knows."""
        return array + next(self.numbers)

    def gangs(self) -> None:
        """Multiply small matrices many times."""
        for _ in range(IN_A_ROW):
            wait((self.small @ self.new(self.small)).persist())

    def product(self) -> None:
        """Multiply, and add up rows and columns."""
        wait((self.large @ self.new(self.large)).sum(axis=0).persist())

    def tasks(self) -> None:
        """Run many small tasks of plain Dask."""
        with dask.config.set(array_optimize=PLAIN):
            wait(da.map_blocks(abs, self.new(da.ones(TASKS, chunks=1))).persist())


def _generator(device: str) -> Any:
    if device == "cpu":
        return 0
    import cupy

    return cupy.random.default_rng(0)


def measure(work: Work, call: Callable[[], None], turns: int) -> dict[str, list[float]]:
    """Return the seconds of each way, in turn; the first turn is not counted."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(1 + turns):
        for way in sorted(WAYS, reverse=bool(turn % 2)):
            with WAYS[way]():
                work.synchronize()
                start = time.perf_counter()
                call()
                work.synchronize()
                seconds[way].append(time.perf_counter() - start)
    return {way: times[1:] for way, times in seconds.items()}


def run(given: argparse.Namespace, work: Work, report: Report) -> None:
    """Take all figures; a ratio is the median of the ratios of each turn."""
    for call in (work.gangs, work.product, work.tasks):
        found = measure(work, call, given.repetitions)
        without = found["without"]
        for way, seconds in found.items():
            pairs = zip(seconds, without, strict=True)
            ratio = median(mine / theirs for mine, theirs in pairs)
            n = {"gangs": SMALL, "product": work.n}.get(call.__name__)
            report.add(f"{call.__name__}, {way}", seconds, n=n, ratio=ratio)
    report.add("a block without work", empty_blocks(given.repetitions))
    if given.device == "cuda":
        ours, theirs = kernels(work)
        report.add("torch's profiler, kernels of a product", theirs, n=work.n)
        ratio = median(mine / torch for mine, torch in zip(ours, theirs, strict=True))
        report.add("dask_dgpu's profiler, compute of a product", ours, n=work.n, ratio=ratio)


def kernels(work: Work) -> tuple[list[float], list[float]]:
    """Return the seconds that products compute on the slowest GPU, by both profilers."""
    ours, theirs = [], []
    for _ in range(PRODUCTS):
        x = work.new(work.large).persist()
        wait(x)
        with traced(work.client) as traces, dgpu.Profiler() as prof:
            wait((x @ x.T).persist())
            work.synchronize()
        rows = prof.to_dict()["rows"]
        ours.append(sum(row["compute"] for row in rows if row["by"] == "gang"))
        theirs.append(max(trace["kernels_us"] for trace in traces) * 1e-6)
    return ours, theirs


def empty_blocks(number: int) -> list[float]:
    """Return the seconds of blocks without any work."""
    seconds = []
    for _ in range(number):
        start = time.perf_counter()
        with dgpu.Profiler():
            pass
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__, RESULTS / "profiler-cpu.jsonl")
    parser.add_argument("--repetitions", type=int, default=31, help="after one to warm up")
    add_cluster(parser)
    given = parser.parse_args()
    if given.quick:
        given.repetitions = 1
    with cluster_of(given) as client, dgpu.enable(client, when="always", on_error="raise"):
        dgpu.cost.ClusterConfig.detect(client)
        work = Work(client, given.device, given.quick)
        report = Report(given.out, len(client.scheduler_info(n_workers=-1)["workers"]))
        run(given, work, report)
        report.print()


if __name__ == "__main__":
    main()
