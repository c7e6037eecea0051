"""Thirty programs, with dask_dgpu and without: seconds measured, and seconds predicted.

Both ways take turns on one cluster, plain Dask twice: the second series shows the noise.
Predictions begin with the graph, so they are compared with the seconds after it was built.
``--device cuda`` runs them on the GPUs of one host; ``--check`` compares small results with
NumPy's instead.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import dask.array as da
import dask.base
import numpy as np
from distributed import Client, futures_of, wait
from gpu_harness import cluster_of
from harness import Report, no_wait
from rich.console import Console
from rich.table import Table
from scipy.stats import bootstrap
from suite_harness import PROGRAMS, Input, Program, Sizes
from worker_harness import synchronize

import dask_dgpu as dgpu

RESULTS = Path(__file__).parent / "results"
LENGTHS = {"cpu": (2**15, 2048), "cuda": (2**20, 16384)}
QUICK = (256, 128)
WAYS = ("ours", "plain", "plain again")
SLOWER, SLACK = 1.05, 5e-3
"""A program is slower from this factor and these seconds on, beyond the noise."""


@dataclass(frozen=True)
class Found:
    """The seconds of one program: measured in each repetition, and predicted.

    ``built`` are those of ``seconds`` in which Dask built the graph.
    """

    name: str
    seconds: dict[str, list[float]]
    built: dict[str, list[float]]
    predicted: dict[str, float]

    def median(self, way: str) -> float:
        """Return the median of a way."""
        return median(self.seconds[way])

    @property
    def plain(self) -> float:
        """The median of both series of plain Dask."""
        return median(self.seconds["plain"] + self.seconds["plain again"])

    @property
    def ratio(self) -> float:
        """Our seconds over those of plain Dask."""
        return self.median("ours") / self.plain

    @property
    def noise(self) -> float:
        """Most seconds between medians of two series of plain Dask, by a bootstrap, at 95 %."""
        series = self.seconds["plain"], self.seconds["plain again"]
        if min(map(len, series)) < 2:
            return abs(self.median("plain") - self.median("plain again"))
        found = bootstrap(series, _difference, method="percentile", n_resamples=2000, rng=0)
        return float(max(map(abs, found.confidence_interval)))

    @property
    def slower(self) -> bool:
        """Whether we take longer than plain Dask, beyond the noise."""
        return self.median("ours") > SLOWER * self.plain + SLACK + self.noise

    def misses(self) -> dict[str, float]:
        """Return predicted over measured seconds of both ways, without building the graph."""
        ways = {"ours": ("ours",), "plain": ("plain", "plain again")}
        return {way: self.predicted[way] / self.computed(*series) for way, series in ways.items()}

    def computed(self, *series: str) -> float:
        """Return the median seconds of some ways after the graph was built."""
        pairs = ((self.seconds[way], self.built[way]) for way in series)
        return median(a - b for pair in pairs for a, b in zip(*pair, strict=True))


def _difference(first: Any, second: Any, axis: int) -> Any:
    return np.median(first, axis=axis) - np.median(second, axis=axis)


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
    """

    def __init__(self, client: Client, given: argparse.Namespace, sizes: Sizes) -> None:
        self.client, self.given, self.sizes = client, given, sizes
        self.synchronize = synchronize if given.device == "cuda" else no_wait

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
        return Found(name, seconds, built, self.predict(PROGRAMS[name]))

    def run(
        self, program: Program, seed: int, *, ours: bool
    ) -> tuple[float, float, tuple[Any, ...]]:
        """Compute a program of new inputs; return the seconds and the results.

        The second number are the seconds in which Dask built the graph.
        """
        if ours:
            dgpu.enable(self.client, when=self.given.when, on_error="raise")
        else:
            dgpu.disable()
        inputs = self.inputs(program, seed)
        self.client.run(self.synchronize)
        start = time.perf_counter()
        graphs = _tuple(program.function(da, *inputs))
        built = time.perf_counter() - start
        results = dask.base.persist(*graphs)
        wait(results)
        self.client.run(self.synchronize)
        seconds = time.perf_counter() - start
        for future in futures_of(results):
            if future.status != "finished":
                future.result()
        return seconds, built, results

    def inputs(self, program: Program, seed: int) -> tuple[da.Array, ...]:
        """Return new inputs, on the workers already."""
        rng = da.random.default_rng(_generator(self.given.device, seed))
        arrays = [drawn(rng, each, self.sizes) for each in program.inputs]
        persisted = dask.base.persist(*arrays)
        wait(persisted)
        return tuple(persisted)

    def predict(self, program: Program) -> dict[str, float]:
        """Return the predicted seconds of both ways; those of several results are added."""
        dgpu.enable(self.client, when=self.given.when, on_error="raise")
        results = _tuple(program.function(da, *self.inputs(program, 0)))
        found = [dgpu.explain(result) for result in results]
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


def drawn(rng: Any, given: Input, sizes: Sizes) -> da.Array:
    """Return an input of random numbers, not computed yet."""
    draw: Callable[..., da.Array] = rng.standard_normal if given.kind == "normal" else rng.random
    x = draw(given.shape(sizes), chunks=given.chunks(sizes))
    if given.kind == "labels":
        x = x > 0.5
    return (x + 0.5 if given.kind == "positive" else x).astype("float32")


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _host(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else np.asarray(x)


def written(report: Report, found: Found, when: str) -> Found:
    """Write the figures of a program."""
    report.add(
        found.name,
        found.seconds["ours"],
        ratio=found.ratio,
        dtype="float32",
        when=when,
        plain=found.seconds["plain"],
        plain_again=found.seconds["plain again"],
        plain_median=found.plain,
        noise=found.noise,
        built=found.built,
        predicted=found.predicted["ours"],
        plain_predicted=found.predicted["plain"],
    )
    return found


def summary(every: list[Found]) -> dict[str, Any]:
    """Return what follows from all programs."""
    misses = {way: [each.misses()[way] for each in every] for way in ("ours", "plain")}
    within = {way: sum(0.5 <= miss <= 2 for miss in of) / len(of) for way, of in misses.items()}
    return {
        "ratio": geometric_mean(each.ratio for each in every),
        "slower": [each.name for each in every if each.slower],
        "within_twice": within["ours"],
        "plain_within_twice": within["plain"],
    }


def show(every: list[Found], totals: dict[str, Any]) -> None:
    """Print a table, and what follows from it."""
    names = ("plain", "ours", "built", "noise", "ratio", "predicted, plain", "predicted, ours")
    table = Table("program", caption="milliseconds; ratios; predicted over computed seconds")
    for name in names:
        table.add_column(name, justify="right")
    for each in every:
        seconds = each.plain, each.median("ours"), median(each.built["ours"]), each.noise
        ratios = each.ratio, each.misses()["plain"], each.misses()["ours"]
        texts = [*(f"{1e3 * value:.4g}" for value in seconds), *(f"{r:.2f}" for r in ratios)]
        table.add_row(each.name, *texts)
    console = Console()
    console.print(table)
    console.print(f"ours over plain, geometric mean: {totals['ratio']:.3g}")
    console.print(f"slower than plain Dask: {', '.join(totals['slower']) or 'none'}")
    console.print(
        f"predicted within a factor of 2: ours {totals['within_twice']:.0%}, "
        f"plain {totals['plain_within_twice']:.0%}"
    )


def figures(suite: Suite, report: Report, names: list[str]) -> Iterator[Found]:
    """Yield the figures of each program; one that fails becomes a line with its error."""
    for name in names:
        with report.guard(name):
            yield written(report, suite.measure(name), suite.given.when)


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
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--protocol", choices=("tcp", "ucx"), default="tcp", help="on GPUs")
    parser.add_argument("--rmm-pool", default="40GB", help="what a GPU's pool begins with")
    parser.add_argument("--out", type=Path, help="where JSON lines are appended")
    given = parser.parse_args()
    given.when = given.when or ("always" if given.check else "cheaper")
    if given.quick:
        given.repetitions = 1
    return given


def main() -> None:
    """Run all and print a table."""
    given = options()
    names = given.only or list(PROGRAMS)
    n, m = QUICK if given.quick or given.check else LENGTHS[given.device]
    with cluster_of(given) as client:
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        suite = Suite(client, given, Sizes(workers, n, m))
        dgpu.enable(client)
        rates = dgpu.cost.ClusterConfig.detect(client)
        if given.check:
            raise SystemExit(checked(suite, names))
        report = Report(given.out or RESULTS / f"suite-{given.device}.jsonl", workers)
        every = list(figures(suite, report, names))
        if every:
            totals = summary(every)
            report.add("all programs", **totals, rates=dict(rates.facts.figures))
            show(every, totals)


if __name__ == "__main__":
    main()
