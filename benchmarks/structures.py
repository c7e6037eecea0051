"""Optimizing the programs of the suite: for the first time, and again on other data.

The optimizer is called as Dask's scheduler calls it: in its thread, on a copy of a client's graph.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.base
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, LocalCluster, get_client, wait
from distributed.utils import offload
from harness import Report, options
from suite import drawn
from suite_harness import PROGRAMS, Program, Sizes

import dask_dgpu as dgpu

OUT = Path(__file__).parent / "results" / "structures-cpu.jsonl"
WORKERS, N, M = 4, 2**10, 64


def optimizing(program: Program, seed: int) -> tuple[float, int]:
    """Return the seconds of optimizing a program of new inputs, and the layers of its graph."""
    rng, sizes = da.random.default_rng(seed), Sizes(WORKERS, N, M)
    inputs = dask.base.persist(*(drawn(rng, each, sizes) for each in program.inputs))
    wait(inputs)
    found = program.function(da, *inputs)
    results = found if isinstance(found, tuple) else (found,)
    graph = HighLevelGraph.merge(*(z.__dask_graph__() for z in results))
    keys = [key for z in results for key in flatten(z.__dask_keys__())]
    client: Any = get_client()
    return client.sync(offload, _seconds, graph, keys), len(graph.layers)


def _seconds(graph: HighLevelGraph, keys: list[Any]) -> float:
    optimize = dask.config.get("array_optimize")
    start = time.perf_counter()
    optimize(graph, keys)
    return time.perf_counter() - start


def measure(report: Report, repetitions: int) -> None:
    """Optimize each program once, then again on other data."""
    for name, program in PROGRAMS.items():
        first, layers = optimizing(program, 0)
        again = [optimizing(program, seed)[0] for seed in range(1, 1 + repetitions)]
        report.add(name, again, first=first, layers=layers, ratio=min(again) / first)


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
