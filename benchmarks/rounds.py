"""Small computations: what a call costs besides its work, with dask_dgpu and without.

Products of 64 x 64 in four blocks, loops that read a number from each step, and for
comparison ``(x + 1).persist()`` and an empty task on each worker. Ways take turns.
``--device cuda`` runs them on the GPUs of one host.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import dask.base
from distributed import Client, wait
from gpu_harness import add_cluster, cluster_of
from harness import Report, options
from worker_harness import synchronize

import dask_dgpu as dgpu

RESULTS = Path(__file__).parent / "results"
N, CHUNK, ITERATIONS = 64, 32, 10
IN_A_ROW = 1000
PAUSE = 0.02
"""Seconds before each call, in which Dask frees what the last one left, and ``enable`` ends."""

Call = Callable[[int], Any]


class Rounds:
    """Small computations on one cluster.

    Parameters
    ----------
    client : Client
        The cluster.
    device : str
        "cuda" or "cpu".
    """

    def __init__(self, client: Client, device: str) -> None:
        self.client = client
        self.workers = list(client.scheduler_info(n_workers=-1)["workers"])
        self.device = device
        rng = da.random.default_rng(_generator(device))
        draw = [rng.random((N, N), chunks=CHUNK) for _ in range(2)]
        vector = rng.random(N, chunks=CHUNK)
        self.x, self.y, self.b = dask.base.persist(*draw, vector)
        wait([self.x, self.y, self.b])

    def synchronize(self) -> None:
        """Wait for the devices."""
        if self.device == "cuda":
            self.client.run(synchronize)

    def empty(self, at: int) -> None:
        """Run an empty task on each worker."""
        facts = {"pure": False, "key": None}
        wait([self.client.submit(int, at, workers=[each], **facts) for each in self.workers])

    def add(self, at: int) -> None:
        """Add a number, which Dask does without any transfer."""
        wait((self.x + (1 + at)).persist())

    def product(self, at: int) -> None:
        """Multiply two matrices."""
        wait((self.x @ self.y).persist())

    def total(self, at: int) -> None:
        """Multiply, add all elements, and read the sum."""
        float((self.x @ self.y).sum().compute())

    def loop(self, at: int) -> None:
        """Multiply again and again, and wait for the last step only."""
        x = self.x * (1 + at)
        for _ in range(ITERATIONS):
            x = (x @ self.y / N).persist()
        wait(x)

    def gradients(self, at: int) -> da.Array:
        """Solve a symmetric system by conjugate gradients, with a call for each number."""
        a = (self.x + self.x.T).persist()
        x, r = da.zeros_like(self.b), self.b
        p, square = r, float((r * r).sum().compute())
        for _ in range(ITERATIONS):
            q = (N * p + a @ p).persist()
            step = square / float((p * q).sum().compute())
            x, r = dask.base.persist(x + step * p, r - step * q)
            before, square = square, float((r * r).sum().compute())
            p = (r + (square / before) * p).persist()
        wait(x)
        return x

    def gradients_together(self, at: int) -> da.Array:
        """Solve it with one call for both numbers of a step, after Chronopoulos and Gear."""
        a = (self.x + self.x.T).persist()
        x, r = da.zeros_like(self.b), (self.b * (1 + at)).persist()
        p = q = x
        before, step = math.inf, 1.0
        for _ in range(ITERATIONS):
            w = (N * r + a @ r).persist()
            square, inner = map(float, dask.base.compute((r * r).sum(), (r * w).sum()))
            share, before = square / before, square
            step = square / (inner - share * square / step)
            p, q = r + share * p, w + share * q
            x, r, p, q = dask.base.persist(x + step * p, r - step * q, p, q)
        wait(x)
        return x


def _generator(device: str) -> Any:
    if device == "cpu":
        return 0
    import cupy

    return cupy.random.default_rng(0)


def measure(
    rounds: Rounds, call: Call, ways: tuple[str, ...], count: int
) -> dict[str, list[float]]:
    """Return the seconds of each way, in turn; the first call is not counted."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for at in range(1 + count):
        for way, times in seconds.items():
            enable(rounds.client, way)
            time.sleep(PAUSE)
            start = time.perf_counter()
            call(at)
            rounds.synchronize()
            times.append(time.perf_counter() - start)
    return {way: times[1:] for way, times in seconds.items()}


def enable(client: Client, way: str) -> None:
    """Choose dask_dgpu, its gangs, or plain Dask."""
    if way == "plain":
        dgpu.disable()
    else:
        dgpu.enable(client, when="always" if way == "gangs" else "cheaper", on_error="raise")


def in_a_row(rounds: Rounds, report: Report, count: int) -> None:
    """Multiply many times without a pause; compare the first hundred with the last."""
    enable(rounds.client, "gangs")
    seconds = []
    for at in range(count):
        start = time.perf_counter()
        rounds.product(at)
        seconds.append(time.perf_counter() - start)
    some = max(1, count // 10)
    first, last = median(seconds[:some]), median(seconds[-some:])
    report.add(f"{count} products in a row", seconds, n=N, chunk=CHUNK, ratio=last / first)


def run(given: argparse.Namespace, rounds: Rounds, report: Report) -> None:
    """Take all figures."""
    report.add(
        "empty task on each worker",
        *measure(rounds, rounds.empty, ("plain",), given.repetitions).values(),
    )
    solvers = rounds.gradients, rounds.gradients_together
    for call in (rounds.add, rounds.product, rounds.total, rounds.loop, *solvers):
        found = measure(rounds, call, ("gangs", "ours", "plain"), given.repetitions)
        for way, seconds in found.items():
            ratio = median(seconds) / median(found["plain"])
            report.add(f"{call.__name__}, {way}", seconds, n=N, chunk=CHUNK, ratio=ratio)
    in_a_row(rounds, report, 20 if given.quick else IN_A_ROW)


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__, RESULTS / "rounds-cpu.jsonl")
    parser.add_argument("--repetitions", type=int, default=15, help="after one to warm up")
    add_cluster(parser)
    given = parser.parse_args()
    if given.quick:
        given.repetitions = 1
    with cluster_of(given) as client:
        with dgpu.enable(client):
            dgpu.cost.ClusterConfig.detect(client)
        rounds = Rounds(client, given.device)
        report = Report(given.out, len(rounds.workers))
        run(given, rounds, report)
        report.print()


if __name__ == "__main__":
    main()
