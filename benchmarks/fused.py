"""Fused kernels without GPUs: NumPy and ``dgpu.fuse`` on one block, in one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import programs
from harness import Report, options

import dask_dgpu as dgpu

OUT = Path(__file__).parent / "results" / "fused-cpu.jsonl"
COLUMNS = 512

Function = Callable[..., Any]


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    elements : int
        Of the block, single precision.
    small : int
        Of a block that needs no tiles.
    repetitions : int
        Of everything timed, after one that is not counted.
    calls : int
        Of a small block in one repetition.
    """

    elements: int
    small: int
    repetitions: int
    calls: int


FULL = Sizes(elements=1 << 24, small=1 << 14, repetitions=15, calls=200)
QUICK = Sizes(elements=1 << 18, small=1 << 10, repetitions=1, calls=2)

WHAT: tuple[tuple[Function, tuple[str, ...]], ...] = (
    (programs.gelu, ("rows",)),
    (programs.black_scholes, ("prices", "prices", "prices")),
    (programs.softmax, ("rows",)),
    (programs.layer_norm, ("rows", "columns", "columns")),
    (programs.standardise, ("rows",)),
    (programs.weighted_sum, ("rows", "columns")),
)
"""Programs of the suite with the kinds of their inputs."""


def _blocks(kinds: tuple[str, ...], elements: int) -> list[Any]:
    rng = np.random.default_rng(0)
    found: list[Any] = []
    for kind in kinds:
        if kind == "rows":
            shape: tuple[int, ...] = (elements // COLUMNS, COLUMNS)
            found.append(rng.standard_normal(shape, dtype="float32"))
        else:
            size = elements if kind == "prices" else COLUMNS
            found.append(rng.random(size, dtype="float32") + np.float32(0.5))
    return found


def _difference(found: Any, chain: Any, exact: Any) -> dict[str, float]:
    """Return the largest difference to NumPy's result, and the errors of both."""
    scale = float(np.max(np.abs(exact)))
    pairs = {"difference": (found, chain), "error": (found, exact), "error_numpy": (chain, exact)}
    return {
        name: float(np.max(np.abs(one.astype("float64") - two))) / scale
        for name, (one, two) in pairs.items()
    }


def _seconds(function: Function, blocks: list[Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(*blocks)
    return (time.perf_counter() - start) / calls


def _in_turns(
    report: Report, program: Function, kinds: tuple[str, ...], n: int, calls: int, repetitions: int
) -> None:
    """Time both ways in turn on blocks with so many elements."""
    blocks = _blocks(kinds, n)
    chain = partial(program, np)
    ways: dict[str, Function] = {"numpy": chain, "tiles": dgpu.fuse(chain)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    exact = chain(*(block.astype("float64") for block in blocks))
    errors = _difference(ways["tiles"](*blocks), chain(*blocks), exact)
    del exact
    for _ in range(1 + repetitions):
        for way, function in ways.items():
            seconds[way].append(_seconds(function, blocks, calls))
    plain = median(seconds["numpy"][1:])
    for way, times in seconds.items():
        report.add(
            f"{program.__name__}, {way}",
            times[1:],
            n=n,
            dtype="float32",
            ratio=median(times[1:]) / plain,
            first=times[0],
            difference=errors["difference"],
            error=errors["error"],
            error_numpy=errors["error_numpy"],
        )


def main() -> None:
    """Run all and print a table."""
    given = options(__doc__, OUT).parse_args()
    sizes = QUICK if given.quick else FULL
    report = Report(given.out, 1)
    for elements, calls in ((sizes.elements, 1), (sizes.small, sizes.calls)):
        for program, kinds in WHAT:
            _in_turns(report, program, kinds, elements, calls, sizes.repetitions)
    report.print()


if __name__ == "__main__":
    main()
