"""Thirty-three programs, with dask_dgpu and without: seconds measured, and seconds predicted.

Both ways take turns on one cluster, plain Dask twice: the second series shows the noise.
Predictions begin with the graph, so they are compared with the seconds after it was built.
Then NumPy or CuPy and JAX run the same programs without Dask, those that are installed.
``--device cuda`` runs them on the GPUs of one host; ``--check`` compares small results with
NumPy's instead.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import dask.base
import numpy as np
from distributed import Client, futures_of, wait
from gpu_harness import cluster_of
from harness import Report, no_wait
from memory_harness import watch, watched
from suite_figures import Found, markdown, show, summary
from suite_harness import PROGRAMS, Input, Program, Sizes
from suite_ways import WAYS as ALONE
from suite_ways import installed, run_alone
from worker_harness import synchronize

import dask_dgpu as dgpu

RESULTS = Path(__file__).parent / "results"
LENGTHS = {"cpu": (2**15, 2048), "cuda": (2**20, 16384)}
QUICK = (256, 128)
WAYS = ("ours", "plain", "plain again")
FLOORS = 21
"""Number of empty tasks on each worker."""


class Suite:
    """The programs on one cluster.

    Parameters
    ----------
    client : Client
        The cluster.
    given : argparse.Namespace
        The options.
    sizes : Sizes
        Of all inputs.
    arrays : str
        The package of arrays.
    """

    def __init__(
        self,
        client: Client,
        given: argparse.Namespace,
        sizes: Sizes,
        arrays: str = "dask.array",
    ) -> None:
        self.client, self.given, self.sizes = client, given, sizes
        self.synchronize = synchronize if given.device == "cuda" else no_wait
        self.arrays = import_module(arrays)

    def floor(self) -> list[float]:
        """Return the seconds of an empty task on each worker, again and again."""
        workers, seconds = list(self.client.scheduler_info(n_workers=-1)["workers"]), []
        for at in range(FLOORS):
            start = time.perf_counter()
            wait([self.client.submit(int, at, workers=[w], pure=False, key=None) for w in workers])
            seconds.append(time.perf_counter() - start)
        return seconds

    def measure(self, name: str) -> Found:
        """Run a program, all ways in turn; the first round is not counted."""
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        built: dict[str, list[float]] = {way: [] for way in WAYS}
        for repetition in range(1 + self.given.repetitions):
            for way in WAYS:
                seed = len(WAYS) * repetition + WAYS.index(way)  # Dask reuses results it knows
                whole, building, _ = self.run(PROGRAMS[name], seed, ours=way == "ours")
                if repetition > 0:
                    seconds[way].append(whole)
                    built[way].append(building)
        peaks = {way: self.peaks(PROGRAMS[name], ours=way == "ours") for way in ("ours", "plain")}
        return Found(name, seconds, built, self.predict(PROGRAMS[name]), peaks)

    def run(
        self, program: Program, seed: int, *, ours: bool
    ) -> tuple[float, float, tuple[Any, ...]]:
        """Compute a program of new inputs; return the seconds and the results.

        The second number are the seconds in which Dask built the graph.
        """
        self.enable(ours=ours)
        inputs = self.inputs(program, seed)
        self.client.run(self.synchronize)
        start = time.perf_counter()
        graphs = _tuple(program.function(self.arrays, *inputs))
        built = time.perf_counter() - start
        results = dask.base.persist(*graphs)
        wait(results)
        self.client.run(self.synchronize)
        seconds = time.perf_counter() - start
        for future in futures_of(results):
            if future.status != "finished":
                future.result()
        return seconds, built, results

    def enable(self, *, ours: bool) -> None:
        """Choose dask_dgpu or plain Dask."""
        if ours:
            dgpu.enable(self.client, when=self.given.when, on_error="raise")
        else:
            dgpu.disable()

    def peaks(self, program: Program, *, ours: bool) -> list[int]:
        """Return the bytes by which a program makes the memory of each worker grow, untimed."""
        self.enable(ours=ours)
        inputs = self.inputs(program, len(WAYS) * (1 + self.given.repetitions) + ours)
        self.client.run(watch, self.given.device)
        try:
            results = dask.base.persist(*_tuple(program.function(self.arrays, *inputs)))
            wait(results)
            self.client.run(self.synchronize)
        finally:
            grown = self.client.run(watched)
        return list(grown.values())

    def inputs(self, program: Program, seed: int) -> tuple[Any, ...]:
        """Return new inputs, on the workers already."""
        rng = self.arrays.random.default_rng(_generator(self.given.device, seed))
        arrays = [drawn(rng, each, self.sizes) for each in program.inputs]
        persisted = dask.base.persist(*arrays)
        wait(persisted)
        return tuple(persisted)

    def graphs(self, program: Program, seed: int) -> tuple[Any, ...]:
        """Return the results of a program of new inputs, not computed yet."""
        return _tuple(program.function(self.arrays, *self.inputs(program, seed)))

    def predict(self, program: Program) -> dict[str, float]:
        """Return the predicted seconds of both ways; those of several results are added."""
        self.enable(ours=True)
        found = [dgpu.explain(graph) for graph in self.graphs(program, 0)]
        return {
            "ours": sum(each.seconds or math.nan for each in found),
            "plain": sum(each.dask_seconds or math.nan for each in found),
        }

    def check(self, name: str) -> float:
        """Return the largest difference from NumPy's result, over its largest number."""
        program = PROGRAMS[name]
        *_, results = self.run(program, 0, ours=True)
        inputs = [_host(x.compute()).astype(float) for x in self.inputs(program, 0)]
        wanted = _tuple(program.function(np, *inputs))
        pairs = zip(results, wanted, strict=True)
        return max(difference(_host(result.compute()), np.asarray(w)) for result, w in pairs)


def difference(found: Any, wanted: Any) -> float:
    """Return the largest difference of two arrays, over the largest number wanted.

    Infinite for arrays of different shapes.
    """
    if found.shape != wanted.shape:
        return math.inf
    return float(np.max(np.abs(found - wanted)) / (np.max(np.abs(wanted)) or 1))


def _generator(device: str, seed: int) -> Any:
    if device == "cpu":
        return seed
    import cupy

    return cupy.random.default_rng(seed)


def drawn(rng: Any, given: Input, sizes: Sizes) -> Any:
    """Return an input of random numbers, not computed yet."""
    draw: Callable[..., Any] = rng.standard_normal if given.kind == "normal" else rng.random
    x = draw(given.shape(sizes), chunks=given.chunks(sizes))
    if given.kind == "labels":
        x = x > 0.5
    return (x + 0.5 if given.kind == "positive" else x).astype("float32")


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _host(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else np.asarray(x)


def written(report: Report, found: Found, when: str, arrays: str) -> Found:
    """Write the figures of a program."""
    report.add(
        found.name,
        found.seconds["ours"],
        ratio=found.ratio,
        dtype="float32",
        arrays=arrays,
        when=when,
        plain=found.seconds["plain"],
        plain_again=found.seconds["plain again"],
        plain_median=found.plain,
        noise=found.noise,
        built=found.built,
        predicted=found.predicted["ours"],
        plain_predicted=found.predicted["plain"],
        peaks=found.peaks,
    )
    return found


def figures(suite: Suite, report: Report, names: list[str]) -> Iterator[Found]:
    """Yield the figures of each program; one that fails becomes a line with its error."""
    for name in names:
        with report.guard(name):
            yield written(report, suite.measure(name), suite.given.when, suite.given.arrays)


def checked(suite: Suite, names: list[str]) -> int:
    """Compare results with NumPy's; return the number of wrong ones."""
    wrong = 0
    for name in names:
        error = suite.check(name)
        right = error <= PROGRAMS[name].tolerance
        wrong += not right
        print(f"{name}: {'right' if right else 'WRONG'}, off by {error:.2g}")
    return wrong


def options() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="PROGRAM")
    parser.add_argument("--repetitions", type=int, default=5, help="after one to warm up")
    parser.add_argument("--quick", action="store_true", help="small sizes, once: a smoke test")
    parser.add_argument("--check", action="store_true", help="compare small results with NumPy's")
    parser.add_argument("--when", choices=("cheaper", "always"), help="run gangs")
    parser.add_argument("--arrays", choices=("dask.array", "dask_array"), default="dask.array")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--protocol", choices=("tcp", "ucx"), default="tcp", help="on GPUs")
    parser.add_argument("--rmm-pool", default="40GB", help="what a GPU's pool begins with")
    parser.add_argument(
        "--alone", nargs="*", choices=("numpy", "cupy", "jax"), metavar="WAY",
        help="ways without Dask, none without a name; default: those installed for the device",
    )  # fmt: skip
    parser.add_argument("--table", type=Path, help="where the table of the docs is written")
    parser.add_argument("--out", type=Path, help="where JSON lines are appended")
    given = parser.parse_args()
    given.when = given.when or ("always" if given.check else "cheaper")
    if given.alone is None:
        given.alone = installed(ALONE[given.device])
    if given.quick:
        given.repetitions = 1
    return given


def arguments_alone(given: argparse.Namespace, names: list[str], workers: int) -> list[str]:
    """Return the options of the ways without Dask: the same programs, of the same sizes."""
    numbers = ["--workers", str(workers), "--repetitions", str(given.repetitions)]
    quick = ["--quick"] if given.quick else []
    return ["--device", given.device, *numbers, *quick, "--only", *names]


def main() -> None:
    """Run all and print a table."""
    given = options()
    names = given.only or list(PROGRAMS)
    n, m = QUICK if given.quick or given.check else LENGTHS[given.device]
    with cluster_of(given) as client:
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        suite = Suite(client, given, Sizes(workers, n, m), given.arrays)
        dgpu.enable(client)
        rates = dgpu.cost.ClusterConfig.detect(client)
        if given.check:
            raise SystemExit(checked(suite, names))
        report = Report(given.out or RESULTS / f"suite-{given.device}.jsonl", workers)
        report.add("empty task on each worker", suite.floor())
        every = list(figures(suite, report, names))
        if every:
            totals = summary(every)
            report.add("all programs", **totals, rates=dict(rates.facts.figures))
            show(every, totals)
    alone = run_alone(given.alone, arguments_alone(given, names, workers), report)
    if given.table:
        given.table.write_text(markdown(every, alone))


if __name__ == "__main__":
    main()
