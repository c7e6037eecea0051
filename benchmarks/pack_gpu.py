"""Unpacking a message of many pieces on one GPU, one improvement after the other, and packing it.

A message holds the pieces one after the other; in the blocks that they belong to they
are rows of wider arrays. The same kernel copies them on every rung of the ladder: what
differs is how it is driven. A plain device copy of as many bytes is the bound.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness import Report
from pack_harness import DTYPE, SIDE, Ladder, differing, pieces_of, shape_of

OUT = Path(__file__).parent / "results" / "pack-gpu.jsonl"
AHEAD = 0.02
"""Seconds of work that a GPU is given first, so that the host is ahead of it."""


class Bench:
    """The figures of pieces of one size.

    Parameters
    ----------
    report : Report
        Where figures go.
    kib : int
        Of a piece.
    count : int
        Blocks, of ``SIDE`` by ``SIDE`` pieces each.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    def __init__(self, report: Report, kib: int, count: int, repetitions: int) -> None:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        self.report, self.repetitions = report, repetitions
        self.shape = rows, columns = shape_of(kib)
        self.blocks = [cupy.empty((SIDE * rows, SIDE * columns), DTYPE) for _ in range(count)]
        self.message = cupy.empty(sum(block.size for block in self.blocks), DTYPE)
        self.spare = cupy.empty_like(self.message)
        self.facts: dict[str, Any] = {
            "dtype": DTYPE,
            "pieces": count * SIDE**2,
            "piece_bytes": kib * 1024,
        }
        self.copied = 2 * self.message.nbytes  # read and written

    def run(self, *, whole: bool) -> None:
        """Unpack and pack, by every way or by the last one only, beside the plain copy."""
        unpack, pack = pieces_of(self.message, self.blocks, self.shape)
        for what, pieces in (("unpack", unpack), ("pack", pack)):
            with self.report.guard(what, **self.facts):
                self.ways(what, Ladder(pieces, self.message, self.spare), whole=whole)

    def ways(self, what: str, ladder: Ladder, *, whole: bool) -> None:
        """Write the figures of one direction; shares are of the plain copy's rate."""
        bound = self.seconds(ladder.plain_copy)
        fill = 1 + int(AHEAD / median(bound))
        ahead_bound = self.seconds(partial(ladder.on_device, ladder.issue_plain_copy, fill))
        rungs = {
            "a stream, an allocation, a launch and a wait each": ladder.stream_each,
            "an allocation, a launch and a wait each": ladder.wait_each,
            "an allocation and a launch each": ladder.allocate_each,
            "a launch each, pooled memory": ladder.launch_each,
            "one launch, described anew": ladder.one_launch_anew,
            "one launch": ladder.one_launch,
        }
        for name, way in rungs.items():
            if whole or name == "one launch":
                self.rung(what, name, way, bound)
        one_launch = partial(ladder.on_device, ladder.issue_one_launch, fill)
        self.rung(what, "one launch, host ahead", one_launch, ahead_bound)
        self.add(f"{what}, plain copy", bound, bound)
        self.add(f"{what}, plain copy, host ahead", ahead_bound, ahead_bound)

    def rung(
        self, what: str, name: str, way: Callable[[], float | None], bound: list[float]
    ) -> None:
        """Write the figure of one way, and whether all elements arrived."""
        self.scramble(what)
        seconds = self.seconds(way)
        wrong = differing(self.message, self.blocks, self.shape)
        self.add(f"{what}, {name}", seconds, bound, elements_differing=wrong)

    def seconds(self, way: Callable[[], float | None]) -> list[float]:
        """Return the seconds of each repetition: what ``way`` returns, or by the clock."""
        import cupy

        found = []
        for _ in range(1 + self.repetitions):
            cupy.cuda.Device().synchronize()
            start = time.perf_counter()
            told = way()
            taken = time.perf_counter() - start
            found.append(taken if told is None else told)
        return found[1:]

    def scramble(self, what: str) -> None:
        """Fill what is read with random numbers and what is written with zeros."""
        import cupy

        size = self.blocks[0].size
        for at, block in enumerate(self.blocks):
            part = self.message[at * size : (at + 1) * size]
            read, written = (part, block) if what == "unpack" else (block, part)
            read[...] = cupy.random.random(read.shape, dtype=DTYPE)
            written.fill(0)

    def add(self, what: str, seconds: list[float], bound: list[float], **more: Any) -> None:
        """Write a figure: the rate, and its share of the bound."""
        taken = median(seconds)
        rate, share = self.copied / taken / 1e9, median(bound) / taken
        self.report.add(what, seconds, **self.facts, gbytes_a_second=rate, share=share, **more)


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kib", type=int, nargs="+", default=[512, 64, 4096], help="of a piece; first all ways"
    )
    parser.add_argument("--blocks", type=int, default=16, help=f"of {SIDE**2} pieces each")
    parser.add_argument("--repetitions", type=int, default=5, help="after one to warm up")
    parser.add_argument("--out", type=Path, default=OUT, help="where JSON lines are appended")
    given = parser.parse_args()
    report = Report(given.out, ranks=1)
    for kib in given.kib:
        with report.guard("pieces", piece_bytes=kib * 1024):
            Bench(report, kib, given.blocks, given.repetitions).run(whole=kib == given.kib[0])
    report.print()


if __name__ == "__main__":
    main()
