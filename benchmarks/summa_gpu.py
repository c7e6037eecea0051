"""``da.matmul`` on the GPUs of one host: the rank program, end to end, and what it leaves alone.

One process a GPU, blocks born on the GPUs. Each figure is taken by itself: one
that fails becomes a line with its error. ``--device cpu`` runs the same code on
NumPy blocks, to try it on a machine without GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import dask
import dask.array as da
import numpy as np
from gpu_harness import GpuBench, options, run
from harness import PLAIN, finished, fresh


class Bench(GpuBench):
    """The figures of products on one cluster."""

    def run(self) -> None:
        """Take all figures, those of plain Dask last: they take longest."""
        given, report = self.given, self.report
        with report.guard("no-op on every worker"):
            self.no_op()
        for dtype in given.dtypes:
            with report.guard("one device's product", dtype=dtype):
                self.rate(dtype)
            for chunk in given.chunks:
                facts = {"n": given.n, "chunk": chunk, "dtype": dtype}
                with report.guard("end to end, dask_dgpu", **facts):
                    self.products(chunk, dtype)
                with report.guard("correctness", **facts):
                    self.correctness(chunk, dtype)
        if given.device == "cuda":
            for dtype in given.dtypes:
                with report.guard("host copies", n=given.n, dtype=dtype):
                    factors = self.factors(given.chunks[-1], dtype)
                    facts = {"n": given.n, "chunk": given.chunks[-1], "dtype": dtype}
                    self.host_copies("", factors, da.matmul, **facts)
        for dtype in given.dtypes:
            for chunk in given.chunks[::-1]:
                facts = {"n": given.n, "chunk": chunk, "dtype": dtype}
                with report.guard("end to end, dask", **facts):
                    self.plain("", self.factors(chunk, dtype), da.matmul, **facts)

    def products(self, chunk: int, dtype: str) -> None:
        """Multiply end to end; how near the program comes to what one device does alone."""
        n = self.given.n
        facts = {"n": n, "chunk": chunk, "dtype": dtype}
        found = self.uses("", self.factors(chunk, dtype), da.matmul, **facts)
        if found.slowest:
            bound = len(self.workers()) * self.rates[dtype]
            fraction = 2 * n**3 / median(found.slowest) / bound
            self.rank_program("", found, fraction=fraction, **facts)

    def factors(self, chunk: int, dtype: str) -> Callable[[], tuple[da.Array, da.Array]]:
        """Return what makes two new matrices."""
        n = self.given.n
        return lambda: (fresh(n, chunk, dtype), fresh(n, chunk, dtype))

    def correctness(self, chunk: int, dtype: str) -> None:
        """Compare ``C @ v`` with ``A @ (B @ v)``, both by Dask's own products."""
        n = self.given.n
        x, y = (fresh(n, chunk, dtype) for _ in range(2))
        with dask.config.set(array_optimize=self.gang):
            product = finished(da.matmul(x, y).persist())
        with dask.config.set(array_optimize=PLAIN):
            v = finished(da.random.default_rng(0).random((n, 4), chunks=(chunk, 4)).persist())
            once, twice = (
                z.astype("float64").to_backend("numpy").compute()
                for z in (product @ v, x @ (y @ v))
            )
        error = float(np.linalg.norm(once - twice) / np.linalg.norm(twice))
        self.report.add("correctness", n=n, chunk=chunk, dtype=dtype, error_relative=error)


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__)
    parser.add_argument("--n", type=int, default=32768, help="side of the matrices")
    parser.add_argument("--chunks", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    run(Bench, "summa", parser.parse_args())


if __name__ == "__main__":
    main()
