"""Sending and optimizing the programs of the suite: for the first time, and again on other data.

As Dask does it: the client pickles the expression of a program, and a thread of the scheduler
opens it and calls the optimizer.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import dask.base
from dask.base import collections_to_expr
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, LocalCluster, get_client, wait
from distributed.protocol.serialize import deserialize, serialize, to_serialize
from distributed.utils import offload
from harness import Report, options
from suite import drawn
from suite_harness import PROGRAMS, Program, Sizes

import dask_dgpu as dgpu

OUT = Path(__file__).parent / "results" / "structures-cpu.jsonl"
WORKERS, N, M = 4, 2**10, 64


def optimizing(program: Program, seed: int) -> tuple[float, float, int]:
    """Return the seconds of client and scheduler for a program of new inputs, and its layers."""
    rng, sizes = da.random.default_rng(seed), Sizes(WORKERS, N, M)
    inputs = dask.base.persist(*(drawn(rng, each, sizes) for each in program.inputs))
    wait(inputs)
    found = program.function(da, *inputs)
    results = found if isinstance(found, tuple) else (found,)
    expression = collections_to_expr(results).optimize()
    layers = len(HighLevelGraph.merge(*(z.__dask_graph__() for z in results)).layers)
    start = time.perf_counter()
    message = serialize(to_serialize(expression))
    sent = time.perf_counter() - start
    client: Any = get_client()
    return sent, client.sync(offload, _seconds, *message), layers


def _seconds(header: Any, frames: list[Any]) -> float:
    start = time.perf_counter()
    deserialize(header, frames).__dask_graph__()
    return time.perf_counter() - start


def measure(report: Report, repetitions: int) -> None:
    """Optimize each program once, then again on other data."""
    for name, program in PROGRAMS.items():
        _, first, layers = optimizing(program, 0)
        again = [optimizing(program, seed) for seed in range(1, 1 + repetitions)]
        seconds = [each for _, each, _ in again]
        sent = median(sent for sent, _, _ in again)
        report.add(name, seconds, first=first, sent=sent, layers=layers, ratio=min(seconds) / first)


def main() -> None:
    """Take all figures."""
    given: argparse.Namespace = options(__doc__, OUT).parse_args()
    report = Report(given.out, WORKERS)
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
        dgpu.enable(client, on_error="raise", cost_measure=False),
    ):
        measure(report, 1 if given.quick else 5)
    report.print()


if __name__ == "__main__":
    main()
