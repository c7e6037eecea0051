"""Elementwise work and reductions on one GPU: generated kernels beside CuPy, torch and JAX.

Shares are of the rate at which the device copies memory, by the bytes that a case must read and
write. ``host`` lines are the host's time for one call on blocks of 64 KiB. ``32 blocks`` lines are
the time of 32 such blocks, with the host's time for each. A way whose package a machine lacks is a
line with an error.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

from fused_harness import SHAPE, Case, cases, issue_seconds, many_ways, seconds_each, ways
from harness import Report

OUT = Path(__file__).parent / "results" / "fused-gpu.jsonl"
HOST = "gelu", "mean 0", "softmax"
"""Cases whose calls on small blocks are timed."""

MANY = 32
"""Small blocks of one rank."""


def blocks_of(case: Case, rows: int | None = None) -> list[Any]:
    """Return random blocks; fewer rows if told so."""
    import cupy

    shapes = [
        (rows or shape[0], 128 if rows else shape[1]) if len(shape) == 2 else shape
        for shape in case.operands
    ]
    return [1 + cupy.random.random(shape, dtype="float32") for shape in shapes]


def run(report: Report, names: list[str], repetitions: int, *, peers: bool) -> None:
    """Write all figures."""
    import cupy

    source = cupy.zeros(SHAPE, "float32")
    target = cupy.empty_like(source)
    _, copied = seconds_each(
        lambda: target.data.copy_from_device_async(source.data, source.nbytes), repetitions
    )
    report.add("device copy", copied, dtype="float32", way="copy")
    rate = 2 * source.nbytes / median(copied)
    known = cases()
    for name in names:
        blocks = blocks_of(known[name])
        for way, issue in ways(known[name], blocks, peers=peers):
            with report.guard(name, way=way):
                first, found = seconds_each(issue, repetitions)
                share = known[name].moved * source.nbytes / median(found) / rate
                report.add(name, found, dtype="float32", way=way, first=first, share=share)
    for name in set(HOST) & set(names):
        for way, issue in ways(known[name], blocks_of(known[name], 128), peers=peers):
            with report.guard(f"host, {name}", way=way):
                issue()
                found = issue_seconds(issue, repetitions)
                report.add(f"host, {name}", found, dtype="float32", way=way)
        several = [blocks_of(known[name], 128) for _ in range(MANY)]
        for way, issue in many_ways(known[name], several):
            what = f"{MANY} blocks, {name}"
            with report.guard(what, way=way):
                first, found = seconds_each(issue, repetitions)
                host = median(issue_seconds(issue, repetitions, calls=20)) / MANY
                report.add(what, found, dtype="float32", way=way, first=first, host_each=host)


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=list(cases()), help="names of cases")
    parser.add_argument("--repetitions", type=int, default=5, help="after one to warm up")
    parser.add_argument("--alone", action="store_true", help="without torch and JAX")
    parser.add_argument("--out", type=Path, default=OUT, help="where JSON lines are appended")
    given = parser.parse_args()
    report = Report(given.out, ranks=1)
    run(report, given.cases, given.repetitions, peers=not given.alone)
    report.print()


if __name__ == "__main__":
    main()
