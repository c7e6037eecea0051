"""Programs with independent steps on several GPUs: on two tracks, and the same on one.

The seconds are those of the slowest rank's program, with all inputs ready. Both ways take turns.
``--device cpu`` runs the same code on NumPy blocks, which have one track.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import dask.array as da
from gpu_harness import GpuBench, options, run
from harness import fresh_complex

CASES: dict[str, Callable[[da.Array, da.Array], da.Array]] = {
    "two spectra": lambda x, y: da.fft.fft2(x) * da.fft.fft2(y),
    "two layouts": lambda x, y: x.rechunk({0: -1, 1: "auto"}) * y.rechunk({0: -1, 1: "auto"}),
    "two products": lambda x, y: x @ x + y @ y,
    "product and spectrum": lambda x, y: (x @ x) * da.fft.fft2(y),
}


def overlap(on: bool, dask_worker: Any) -> None:
    """Let the device of a worker have one track or more."""
    device = dask_worker.plugins["dask-dgpu"].member.device
    device.overlaps = on and device.kind == "cuda"


class Bench(GpuBench):
    """The figures of independent steps."""

    def run(self) -> None:
        """Take the figures of all cases."""
        for name, case in CASES.items():
            with self.report.guard(name):
                self.case(name, case)

    def case(self, name: str, case: Callable[[da.Array, da.Array], da.Array]) -> None:
        """Run a program on new inputs, in both ways in turn."""
        n = self.given.n
        rows = -(-n // (2 * len(self.workers())))
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(1 + self.given.repetitions):
            for on, found in seconds.items():
                inputs = [fresh_complex((n, n), rows, "complex64") for _ in range(2)]
                self.client.run(overlap, on)
                self.client.run(self.synchronize)
                result = self.computed(case, *inputs)
                found.append(max(self.programs()))
                del inputs, result
        self.client.run(overlap, True)
        two, one = (found[1:] for found in seconds.values())
        self.report.add(f"{name}, one track", one, n=n, dtype="complex64")
        ratio = median(two) / median(one)
        self.report.add(f"{name}, two tracks", two, n=n, dtype="complex64", ratio=ratio)


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__)
    parser.add_argument("--n", type=int, default=16384)
    run(Bench, "tracks", parser.parse_args())


if __name__ == "__main__":
    main()
