"""Building the graphs of the suite's programs on the client, with dask_dgpu and without.

Nothing is computed. ``--device cuda`` builds graphs of blocks of CuPy, on one GPU.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

import dask
import dask.array as da
from harness import Report, options
from suite import drawn
from suite_harness import PROGRAMS, Program, Sizes

import dask_dgpu as dgpu

RESULTS = Path(__file__).parent / "results"
SIZES = Sizes(workers=4, n=2**18, m=2**13)


def building(program: Program, seed: int) -> float:
    """Return the processor time of building a program of new inputs, without collecting garbage."""
    rng = da.random.default_rng(seed)
    inputs = [drawn(rng, each, SIZES) for each in program.inputs]
    gc.collect()
    gc.disable()
    start = time.process_time()
    program.function(da, *inputs)
    seconds = time.process_time() - start
    gc.enable()
    return seconds


def measure(report: Report, repetitions: int) -> None:
    """Build each program in both ways in turn; the first round is not counted."""
    for name, program in PROGRAMS.items():
        plain, ours = [], []
        for seed in range(repetitions + 1):
            try:
                plain.append(building(program, seed))
            except ValueError:
                break  # a transform that plain Dask refuses
            with dgpu.enable():
                ours.append(building(program, seed))
        else:
            ratio = min(ours[1:]) / min(plain[1:])
            report.add(name, ours[1:], ratio=ratio, least=min(ours[1:]), plain=min(plain[1:]))


def main() -> None:
    """Take all figures."""
    parser = options(__doc__, RESULTS / "building-cpu.jsonl")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given: argparse.Namespace = parser.parse_args()
    report = Report(given.out, 1)
    with dask.config.set({"array.backend": "cupy" if given.device == "cuda" else "numpy"}):
        measure(report, 2 if given.quick else 11)
    report.print()


if __name__ == "__main__":
    main()
