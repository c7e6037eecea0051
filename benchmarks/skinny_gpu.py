"""Products of a tall, narrow matrix, whose blocks are multiplied where they lie.

One process a GPU, blocks born on the GPUs. ``--device cpu`` runs the same code on
NumPy blocks. Beside them: one device alone with a share of the same matrix.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
from gpu_harness import GpuBench, options, run
from harness import fresh


def covariance(x: Any) -> Any:
    """Return the covariance of the columns of an array."""
    centred = x - x.mean(axis=0)
    return centred.T @ centred / (len(x) - 1)


PRODUCTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "x.T @ x": lambda x, w, v: x.T @ x,
    "x @ w": lambda x, w, v: x @ w,
    "x.T @ v": lambda x, w, v: x.T @ v,
    "covariance": lambda x, w, v: covariance(x),
}


class Bench(GpuBench):
    """The figures of tall, narrow products on one cluster."""

    def run(self) -> None:
        """Take all figures."""
        given = self.given
        with self.report.guard("no-op on every worker"):
            self.no_op()
        facts = {"n": given.rows, "chunk": given.chunk, "dtype": "float32"}
        ranks = len(self.workers())
        for name, product in PRODUCTS.items():
            facts["product"] = name
            with self.report.guard("one device's share", **facts):
                share = self.client.run(alone, given.rows // ranks, given.columns, name)
                self.report.add("one device's share", [median(share.values())], **facts)
            with self.report.guard("end to end, dask_dgpu", **facts):
                found = self.uses("", self.factors, product, **facts)
                if found.slowest:
                    read = given.rows // ranks * given.columns * 4 / median(found.slowest)
                    self.rank_program("", found, gigabytes_a_second=read / 1e9, **facts)
            with self.report.guard("end to end, dask", **facts):
                self.plain("", self.factors, product, **facts)

    def factors(self) -> tuple[da.Array, ...]:
        """Return a new matrix and two new columns that suit it."""
        rows, columns, chunk = self.given.rows, self.given.columns, self.given.chunk
        shapes = {(rows, columns): (chunk, columns), (columns, 1): (columns, 1)}
        shapes[rows, 1] = (chunk, 1)
        return tuple(fresh(shape, chunks, "float32") for shape, chunks in shapes.items())


def alone(rows: int, columns: int, name: str) -> float:
    """Return the seconds that this process takes for a share of the matrix, without Dask."""
    try:
        import cupy as xp

        synchronize = xp.cuda.get_current_stream().synchronize
    except ImportError:
        xp, synchronize = np, lambda: None
    x, w, v = (xp.ones(shape, "float32") for shape in ((rows, columns), (columns, 1), (rows, 1)))
    seconds = []
    for _ in range(6):
        synchronize()
        start = time.perf_counter()
        PRODUCTS[name](x, w, v)
        synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=1 << 22)
    parser.add_argument("--columns", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=1 << 19, help="rows of a chunk")
    run(Bench, "skinny", parser.parse_args())


if __name__ == "__main__":
    main()
