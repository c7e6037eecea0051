"""The figures of the suite: of one program, of all of them, and their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import bootstrap

SLOWER, SLACK = 1.05, 5e-3
"""A program is slower from this factor and these seconds on, beyond the noise."""
TITLES = {"numpy": "NumPy", "cupy": "CuPy", "jax": "JAX"}

Alone = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""For each way without Dask the lines of its programs."""


@dataclass(frozen=True)
class Found:
    """The seconds of one program: measured in each repetition, and predicted.

    ``built`` are those of ``seconds`` in which Dask built the graph. ``peaks`` are the bytes by
    which each worker's memory grew.
    """

    name: str
    seconds: dict[str, list[float]]
    built: dict[str, list[float]]
    predicted: dict[str, float]
    peaks: dict[str, list[int]] = field(default_factory=dict)

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


def markdown(every: list[Found], alone: Alone) -> str:
    """Return the table of the docs: milliseconds, ratios, and peaks of memory in MB."""
    columns = _columns(alone)
    lines = [["program", *columns], ["---"] * (1 + len(columns))]
    for each in every:
        cells = (column(each) for column in columns.values())
        lines.append([each.name.replace("_", " "), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _columns(alone: Alone) -> dict[str, Callable[[Found], str]]:
    """Return how to write each column of the table, by its title."""
    columns: dict[str, Callable[[Found], str]] = {
        "plain": lambda each: _milliseconds(each.plain),
        "ours": lambda each: _milliseconds(each.median("ours")),
        "ratio": lambda each: f"{each.ratio:.2f}",
        "noise": lambda each: _milliseconds(each.noise),
    }
    for way, lines in alone.items():
        columns |= _columns_alone(TITLES[way], lines)
    columns |= {
        "model, plain": lambda each: f"{each.misses()['plain']:.2f}",
        "model, ours": lambda each: f"{each.misses()['ours']:.2f}",
        "peak, plain": lambda each: _megabytes(max(each.peaks["plain"])),
        "peak, ours": lambda each: _megabytes(max(each.peaks["ours"])),
    }
    for way, lines in alone.items():
        columns[f"peak, {TITLES[way]}"] = _cell(lines, lambda each, line: _megabytes(line["peak"]))
    return columns


def _columns_alone(
    title: str, lines: Mapping[str, Mapping[str, Any]]
) -> dict[str, Callable[[Found], str]]:
    return {
        title: _cell(lines, lambda each, line: _milliseconds(line["median"])),
        f"ours / {title}": _cell(
            lines, lambda each, line: f"{each.median('ours') / line['median']:.2f}"
        ),
    }


def _cell(
    lines: Mapping[str, Mapping[str, Any]], write: Callable[[Found, Mapping[str, Any]], str]
) -> Callable[[Found], str]:
    """Return a column that is empty for programs that a way did not run."""

    def column(each: Found) -> str:
        line = lines.get(each.name)
        return write(each, line) if line else ""

    return column


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2g}" if seconds < 10e-3 else f"{1e3 * seconds:.0f}"


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.0f}"
