"""The programs of the suite without Dask: by NumPy or CuPy on one device, or by JAX on all GPUs.

CuPy and JAX take the memory of the GPUs, so run one at a time, with nothing else on them:
``python benchmarks/peers/suite_alone.py jax``. JAX compiles each program with one ``jit``; tall
inputs lie in equal parts on its GPUs. Peaks of memory are those of one more call: of the process,
of CuPy's pool, or as JAX's compiler plans it for one GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import Report
from memory_harness import CupyPeak, HostPeak
from suite import LENGTHS, QUICK
from suite_harness import PROGRAMS, Input, Program, Sizes

RESULTS = Path(__file__).parents[1] / "results"
NAMESPACES = {"numpy": "numpy", "cupy": "cupy", "jax": "jax.numpy"}
TALL = 1 << 20
"""Elements from which JAX splits an input."""


@dataclass(frozen=True)
class Prepared:
    """A program with its inputs: ``run`` computes it, ``peak`` returns the bytes that takes."""

    run: Callable[[], Any]
    peak: Callable[[], int]


Way = Callable[[Program, Sizes], Prepared]


def by_arrays(xp: Any) -> Way:
    """Return a way that runs a program with a namespace as it is."""

    def prepare(program: Program, sizes: Sizes) -> Prepared:
        inputs = [drawn(xp.random.default_rng(at), x, sizes) for at, x in enumerate(program.inputs)]

        def run() -> Any:
            return finished(xp, program.function(xp, *inputs))

        def peak() -> int:
            grown = CupyPeak() if xp.__name__ == "cupy" else HostPeak()
            results = run()
            found = grown.stop()
            del results
            return found

        return Prepared(run, peak)

    return prepare


def finished(xp: Any, results: Any) -> Any:
    """Return results after the device has finished."""
    if xp.__name__ == "cupy":
        xp.cuda.Device().synchronize()
    return results


def drawn(rng: Any, given: Input, sizes: Sizes) -> Any:
    """Return random numbers of an input's kind."""
    draw = rng.standard_normal if given.kind == "normal" else rng.random
    x = draw(given.shape(sizes))
    if given.kind == "labels":
        x = x > 0.5
    return (x + 0.5 if given.kind == "positive" else x).astype("float32")


def by_jax(program: Program, sizes: Sizes) -> Prepared:
    """Compile a program, and lay its inputs on all GPUs."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.config.update("jax_default_matmul_precision", "highest")
    xp, devices = import_module("jax.numpy"), jax.devices()
    mesh = Mesh(np.array(devices), ("gpus",))

    def place(at: int, given: Input) -> Any:
        shape = given.shape(sizes)
        split = shape[0] % len(devices) == 0 and prod(shape) > TALL
        sharding = NamedSharding(mesh, P("gpus") if split else P())
        draw = jax.random.normal if given.kind == "normal" else jax.random.uniform
        x = jax.jit(lambda key: draw(key, shape), out_shardings=sharding)(jax.random.key(at))
        if given.kind == "labels":
            return (x > 0.5).astype("float32")
        return x + 0.5 if given.kind == "positive" else x

    compiled = jax.jit(lambda *arrays: program.function(xp, *arrays))
    inputs = [place(at, given) for at, given in enumerate(program.inputs)]

    def peak() -> int:
        planned = compiled.lower(*inputs).compile().memory_analysis()
        return int(planned.temp_size_in_bytes + planned.output_size_in_bytes)

    return Prepared(lambda: jax.block_until_ready(compiled(*inputs)), peak)


def measure(run: Callable[[], Any], repetitions: int) -> list[float]:
    """Return the seconds of each call after a first one."""
    seconds = []
    for _ in range(1 + repetitions):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def main() -> None:
    """Take all figures; a program that a namespace lacks becomes a line with its error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=NAMESPACES)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="PROGRAM")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: that of the way")
    parser.add_argument("--workers", type=int, help="of the suite that this is compared with")
    parser.add_argument("--repetitions", type=int, default=3, help="after one to warm up")
    parser.add_argument("--quick", action="store_true", help="small sizes, once: a smoke test")
    parser.add_argument("--out", type=Path, help="where JSON lines are appended")
    given = parser.parse_args()
    kind = given.device or ("cpu" if given.way == "numpy" else "cuda")
    workers = given.workers or (4 if kind == "cpu" else 1)
    sizes = Sizes(workers, *(QUICK if given.quick else LENGTHS[kind]))
    way = by_jax if given.way == "jax" else by_arrays(import_module(NAMESPACES[given.way]))
    report = Report(given.out or RESULTS / f"suite-{kind}-peers.jsonl", workers)
    for name in given.only or PROGRAMS:
        with report.guard(f"{name}, {given.way}"):
            prepared = way(PROGRAMS[name], sizes)
            seconds = measure(prepared.run, 1 if given.quick else given.repetitions)
            report.add(f"{name}, {given.way}", seconds, dtype="float32", peak=prepared.peak())
    report.print()


if __name__ == "__main__":
    main()
