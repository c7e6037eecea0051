"""Calls of programs that stay on the ranks: by ``jit``, and as unmodified Dask code.

An empty program, also pipelined; a product of 64 x 64; and ten steps of conjugate gradients with
one number read in each, and by ``while_loop``. As unmodified code also with two numbers read.
Beside them NumPy, and JAX if it can be imported: one process each, without a cluster. And Ray, if
it can be imported: actors that each keep a block, called one by one or as a compiled graph.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.base import persist
from distributed import Client, LocalCluster, wait
from harness import Report, options

import dask_dgpu as dgpu

OUT = Path(__file__).parent / "results" / "calls-cpu.jsonl"
WORKERS, SIDE, CHUNK, STEPS, PIPELINED = 4, 64, 16, 10, 200


def seconds(
    function: Callable[[Any], Any], repetitions: int, fresh: Callable[[], Any]
) -> list[float]:
    """Return the time of each repetition on a fresh input, after some others."""
    found = []
    for at in range(-min(3, repetitions), repetitions):
        given = fresh()
        start = time.perf_counter()
        function(given)
        if at >= 0:
            found.append(time.perf_counter() - start)
    return found


def renewing(array: Any, wrap: Callable[..., Any]) -> Callable[[], Any]:
    """Return a function whose results are new arrays: Dask reuses a result by its name."""
    last, scale = [array], wrap(lambda x: x * 1.0001)

    def renew() -> Any:
        last[0] = scale(last[0])
        np.asarray(last[0])  # wait for it
        return last[0]

    return renew


def persisted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results are persisted, as users write loops without ``jit``."""

    def call(*arguments: Any) -> Any:
        found = function(*arguments)
        return persist(*found) if isinstance(found, tuple) else found.persist()

    return call


def chunked(array: np.ndarray) -> da.Array:
    """Return an array on the workers."""
    return da.from_array(array, chunks=1 if len(array) == WORKERS else CHUNK).persist()


def measure(
    report: Report,
    way: str,
    wrap: Callable[..., Any],
    repetitions: int,
    place: Callable[[np.ndarray], Any] = chunked,
) -> None:
    """Take the figures of one way to call."""
    rng = np.random.default_rng(0)
    matrix = rng.random((SIDE, SIDE)) + SIDE * np.eye(SIDE)
    numbers = matrix @ matrix.T, rng.random(SIDE), np.zeros(WORKERS), np.zeros(SIDE)
    a, b, one, zero = map(place, numbers)
    empty, product = wrap(lambda x: x + 1), wrap(lambda x: (x @ x).sum())
    square = wrap(lambda x: x @ x)

    def iterate(x: Any, r: Any, p: Any, rs: Any) -> Any:
        q = a @ p
        alpha = rs / (p @ q)
        x, r = x + alpha * p, r - alpha * q
        new = r @ r
        return x, r, r + new / rs * p, new

    step = wrap(iterate)
    goes_on, advance = dgpu.jit(lambda s: s[-1] >= 0), dgpu.jit(lambda s: iterate(*s))

    def pipelined(x: Any) -> None:
        for _ in range(PIPELINED):
            x = empty(x)
        np.asarray(x)

    def gradients(b: Any) -> None:
        state = zero, b, b, square(b)
        for _ in range(STEPS):
            state = step(*state)
            float(state[-1])

    def looped(b: Any) -> None:
        start = zero, b, b, square(b)
        float(dgpu.while_loop(goes_on, advance, start, max_iterations=STEPS)[-1])

    def with_numbers(b: Any) -> None:
        x, r, p, rs = zero, b, b, float(b @ b)
        for _ in range(STEPS):
            q = a @ p
            alpha = rs / float(p @ q)
            x, r = x + alpha * p, r - alpha * q
            before, rs = rs, float(r @ r)
            x, r, p = persist(x, r, r + rs / before * p)
        wait([x, r, p])  # what nobody waits for is cancelled

    few = max(1, repetitions // 10)
    ones, matrices, vectors = (renewing(each, wrap) for each in (one, a, b))
    report.add(f"empty, {way}", seconds(lambda x: np.asarray(empty(x)), repetitions, ones))
    if way in ("jit", "jax"):
        calls = [each / PIPELINED for each in seconds(pipelined, few, ones)]
        report.add(f"empty, pipelined, {way}", calls)
    found = seconds(lambda x: float(product(x)), repetitions, matrices)
    report.add(f"product, {way}", found, n=SIDE)
    report.add(f"{STEPS} steps, {way}", seconds(gradients, few, vectors), n=SIDE)
    if way == "jit":
        report.add(f"{STEPS} steps, while_loop", seconds(looped, few, vectors), n=SIDE)
    elif wrap is persisted:
        found = seconds(with_numbers, few, vectors)
        report.add(f"{STEPS} steps, two numbers, {way}", found, n=SIDE)


def measure_ray(report: Report, repetitions: int) -> None:
    """Take the figures of an empty program by actors of Ray."""
    import ray
    from ray.dag import InputNode, MultiOutputNode

    class Rank:
        """Keeps a block."""

        def __init__(self) -> None:
            self.block = np.zeros(1)

        def add(self, step: int) -> np.ndarray:
            """Return the next block."""
            self.block = self.block + step
            return self.block

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    ranks = [ray.remote(Rank).remote() for _ in range(WORKERS)]

    def call(count: int) -> None:
        results = [[each.add.remote(1) for each in ranks] for _ in range(count)]
        ray.get(results[-1])

    found = seconds(call, repetitions, lambda: 1)
    report.add("empty, ray", found, ray=ray.__version__)
    several = seconds(call, max(1, repetitions // 10), lambda: PIPELINED)
    calls = [each / PIPELINED for each in several]
    report.add("empty, pipelined, ray", calls, ray=ray.__version__)
    with InputNode() as step:
        graph = MultiOutputNode([each.add.bind(step) for each in ranks])
    compiled = graph.experimental_compile(_submit_timeout=60)
    found = seconds(
        lambda step: ray.get(compiled.execute(step), timeout=60), repetitions, lambda: 1
    )
    report.add("empty, compiled graph, ray", found, ray=ray.__version__)
    compiled.teardown()
    ray.shutdown()


def main() -> None:
    """Take all figures."""
    given: argparse.Namespace = options(__doc__, OUT).parse_args()
    repetitions = 1 if given.quick else 100
    report = Report(given.out, WORKERS)
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        with dgpu.enable(client, when="always", on_error="raise"):
            measure(report, "jit", dgpu.jit, repetitions)
            measure(report, "dask_dgpu", persisted, repetitions)
        measure(report, "dask", persisted, repetitions)
    measure(report, "numpy", lambda function: function, repetitions, np.asarray)
    if find_spec("jax") is not None:
        import jax

        jax.config.update("jax_enable_x64", True)
        measure(report, "jax", jax.jit, repetitions, jax.numpy.asarray)
    if find_spec("ray") is not None:
        measure_ray(report, repetitions)
    report.print()


if __name__ == "__main__":
    main()
