"""How far each function is from reading its operands and writing its results once.

On one GPU, on arrays that it has. A device copy of as many bytes is the measure: a function that
takes over ten times as long is worth a look. ``--device cpu`` runs the same code on NumPy blocks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client
from gpu_harness import add_cluster, cluster_of
from harness import Report, finished, no_wait, options
from worker_harness import synchronize

import dask_dgpu as dgpu

OUT = Path(__file__).parent / "results" / "traffic-cuda.jsonl"
ROWS, COLUMNS, CHUNKS = 2**14, 2**15, 4
QUICK = 2**7
PRIME = 16381
REPETITIONS = 3

Function = Callable[..., Any]

ONE_AXIS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "dct", "idct", "dst", "idst")
TWO_AXES = ("fft2", "ifft2", "rfft2", "irfft2", "dctn", "dstn")
COMPLEX = ("ifft", "irfft", "hfft", "ifft2", "irfft2")
REDUCTIONS = ("sum", "prod", "mean", "std", "min", "any", "argmin", "nansum", "nanmax", "nanvar")
METHODS = ("dask", "compensated", "reproducible")


def functions() -> Iterator[tuple[str, str, Function]]:
    """Yield the name of each function, its operands, and the function.

    ``x`` is a real matrix in blocks of rows, ``z`` a complex one, and ``v`` a long vector.
    """
    for name in ONE_AXIS:
        given, function = "z" if name in COMPLEX else "x", getattr(dgpu.fft, name)
        yield f"{name} of rows", given, lambda x, f=function: f(x, axis=-1)
        yield f"{name} of columns", given, lambda x, f=function: f(x, axis=0)
        if name not in ("hfft", "ihfft"):
            vector = "w" if name in COMPLEX else "v"
            yield f"{name} of a vector", vector, function
    yield "fft of rows of a prime length", "x", lambda x: dgpu.fft.fft(x[:, :PRIME], axis=-1)
    for name in TWO_AXES:
        yield name, "z" if name in COMPLEX else "x", getattr(dgpu.fft, name)
    for name in REDUCTIONS:
        for axis in (None, 0, 1):
            yield f"{name}, axis {axis}", "x", lambda x, f=name, a=axis: getattr(da, f)(x, axis=a)
    for method in METHODS:
        for axis in (None, 0, 1):
            yield (
                f"dgpu.sum {method}, axis {axis}",
                "x",
                lambda x, m=method, a=axis: dgpu.sum(x, axis=a, method=m),
            )
    for name in ("cumsum", "cumprod"):
        for axis in (0, 1):
            yield f"{name}, axis {axis}", "x", lambda x, f=name, a=axis: getattr(da, f)(x, axis=a)
    yield "norm", "x", dgpu.norm
    yield "dot", "vv", dgpu.dot
    yield "weighted_sum", "xx", dgpu.weighted_sum
    yield "gelu", "x", dgpu.gelu
    yield "softmax", "x", dgpu.softmax
    yield "layer_norm", "x", dgpu.layer_norm
    yield "x + y", "xx", lambda x, y: x + y
    yield "x + x.T", "s", lambda x: x + x.T
    yield "x.T", "x", lambda x: x.T
    yield "where", "x", lambda x: da.where(x > 0.5, x, -x)
    yield "x[::2]", "x", lambda x: x[::2]
    yield "x[:, ::-1]", "x", lambda x: x[:, ::-1]
    yield "roll", "x", lambda x: da.roll(x, 3, axis=0)
    yield "rechunk", "x", lambda x: x.rechunk((x.shape[0], x.shape[1] // CHUNKS))
    yield "pad", "x", lambda x: da.pad(x, 1)
    yield "diff", "x", lambda x: da.diff(x, axis=0)
    yield "histogram", "v", lambda v: da.histogram(v, 64, (0, 1))[0]
    yield "map_overlap", "x", lambda x: x.map_overlap(_neighbours, 1, boundary="periodic")
    yield "stencil", "x", dgpu.stencil
    yield "stencil, 9 taps", "x", lambda x: dgpu.stencil(x, dgpu.LAPLACIAN_9PT)
    yield "poisson", "x", lambda x: dgpu.poisson(x, 1.0, "zero")


def _neighbours(block: Any) -> Any:
    return block[:-2, 1:-1] + block[2:, 1:-1] - 2 * block[1:-1, 1:-1]


class Traffic:
    """Functions of arrays on one device.

    Parameters
    ----------
    client : Client
        The cluster, of one worker.
    given : argparse.Namespace
        The options.
    """

    def __init__(self, client: Client, given: argparse.Namespace) -> None:
        self.client = client
        self.synchronize = synchronize if given.device == "cuda" else no_wait
        rows, columns = (QUICK, QUICK) if given.quick else (ROWS, COLUMNS)
        x = da.random.random((rows, columns), chunks=(rows // CHUNKS, columns)).astype("f4")
        v = da.random.random(rows * columns, chunks=rows * columns // CHUNKS).astype("f4")
        arrays = {
            "x": x,
            "s": x[:, :rows],
            "z": x[:, : columns // 2].astype("c8"),
            "v": v,
            "w": v[: len(v) // 2].rechunk(len(v) // 2 // CHUNKS).astype("c8"),
        }
        self.operands = {each: finished(a.persist()) for each, a in arrays.items()}

    def seconds(self, make: Callable[[], Any]) -> float:
        """Return the seconds until the device has computed a new array."""
        start = time.perf_counter()
        finished(make().persist())
        self.client.run(self.synchronize)
        return time.perf_counter() - start

    def run(self, report: Report, copied: float, name: str, given: str, call: Function) -> None:
        """Time one function; a copy takes ``copied`` seconds a byte."""
        operands = [self.operands[each] for each in given]
        result = call(*operands)
        nbytes = result.nbytes + sum({id(each): each.nbytes for each in operands}.values())
        self.seconds(lambda: call(*operands))
        idle = median(self.seconds(lambda: da.ones(1, chunks=1)) for _ in range(REPETITIONS))
        found = [self.seconds(lambda: call(*operands)) for _ in range(REPETITIONS)]
        net = min(found) - idle
        ratio = net / (nbytes * copied) if copied else None
        report.add(name, found, ratio=ratio, idle=idle, nbytes=nbytes, dtype=str(result.dtype))


def measure(report: Report, given: argparse.Namespace) -> None:
    """Time all functions, after a copy."""
    with cluster_of(given, 1) as client, dgpu.enable(client):
        traffic = Traffic(client, given)
        x = traffic.operands["x"]
        with report.guard("copy"):
            traffic.run(report, 0.0, "copy", "x", lambda x: x + np.float32(0))
        row = report.rows[-1]
        copied = (min(row["seconds"]) - row["idle"]) / (2 * x.nbytes)
        for name, operands, call in functions():
            if given.only in name:
                with report.guard(name):
                    traffic.run(report, copied, name, operands, call)


def main() -> None:
    """Measure, and append to the results."""
    parser = options(__doc__, OUT)
    add_cluster(parser)
    parser.set_defaults(device="cuda")
    parser.add_argument("--only", default="", help="a part of the name of a function")
    given = parser.parse_args()
    report = Report(given.out, 1)
    measure(report, given)
    report.print()


if __name__ == "__main__":
    main()
