"""Sending and optimizing the programs of the suite: for the first time, and again on other data.

As Dask does it: the client pickles the expression of a program, and a thread of the scheduler
opens it and calls the optimizer. Last come known steps of two loops through both packages of
arrays, from building to the optimized graph: processor time.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import dask.base
import numpy as np
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
SIDE, CHUNK = 64, 16
PACKAGES = ("dask.array", "dask_array")
PARTS = ("building", "reading", "sending", "optimizing")


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


def _seconds(
    header: Any, frames: list[Any], clock: Callable[[], float] = time.perf_counter
) -> float:
    start = clock()
    deserialize(header, frames).__dask_graph__()
    return clock() - start


def measure(report: Report, repetitions: int) -> None:
    """Optimize each program once, then again on other data."""
    for name, program in PROGRAMS.items():
        _, first, layers = optimizing(program, 0)
        again = [optimizing(program, seed) for seed in range(1, 1 + repetitions)]
        seconds = [each for _, each, _ in again]
        sent = median(sent for sent, _, _ in again)
        report.add(name, seconds, first=first, sent=sent, layers=layers, ratio=min(seconds) / first)


def gradients(xp: Any, x: Any, r: Any, p: Any, rs: Any, a: Any) -> tuple[Any, ...]:
    """Return the next state of conjugate gradients."""
    q = a @ p
    alpha = rs / (p @ q)
    x, r = x + alpha * p, r - alpha * q
    new = r @ r
    return x, r, r + new / rs * p, new, a


def products(xp: Any, x: Any, y: Any) -> tuple[Any, ...]:
    """Return the state after two products and what is around them."""
    return xp.exp(-x @ y / SIDE) @ x.T / SIDE, y


LOOPS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "conjugate gradients": (gradients, (1, 1, 1, 0, 2)),
    "two products": (products, (2, 2)),
}
"""Steps, and the dimensions of their states."""


def step_of(package: str, loop: str, state: Any) -> tuple[list[float], Any]:
    """Return the processor time of each part of a step, and the persisted state after it.

    Without collecting garbage.
    """
    client: Any = get_client()
    wait(state)
    gc.disable()
    times = [time.thread_time()]
    found = LOOPS[loop][0](import_module(package), *state)
    times.append(time.thread_time())
    expression = dask.base.collections_to_expr(found).optimize()  # as it is replaced
    times.append(time.thread_time())
    message = serialize(to_serialize(expression))
    times.append(time.thread_time())
    optimized: float = client.sync(offload, _seconds, *message, time.thread_time)
    gc.enable()
    return [b - a for a, b in pairwise(times)] + [optimized], dask.base.persist(*found)


def measure_loops(report: Report, repetitions: int) -> None:
    """Take steps through both packages in turn; the first ones are not counted."""
    rng, states = np.random.default_rng(0), {}
    for loop, (_, dimensions) in LOOPS.items():
        for package in PACKAGES:
            xp = import_module(package)
            numbers = [rng.random((SIDE,) * each) + 1 for each in dimensions]
            arrays = [xp.from_array(np.asarray(each), chunks=CHUNK) for each in numbers]
            states[loop, package] = dask.base.persist(*arrays)
    found: dict[Any, list[list[float]]] = {each: [] for each in states}
    for turn in range(repetitions + 5):
        for each, state in states.items():
            parts, states[each] = step_of(each[1], each[0], state)
            if turn >= 5:
                found[each].append(parts)
    for (loop, package), steps in found.items():
        seconds = list(map(sum, steps))
        before = median(map(sum, found[loop, PACKAGES[0]]))
        medians = dict(zip(PARTS, map(median, zip(*steps, strict=True)), strict=True))
        name = f"step of {loop}, {package}"
        report.add(name, seconds, n=SIDE, chunk=CHUNK, ratio=median(seconds) / before, **medians)


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
        measure_loops(report, 1 if given.quick else 30)
    report.print()


if __name__ == "__main__":
    main()
