"""``da.matmul`` on the GPUs of one host: the rank program, end to end, and what it leaves alone.

One process a GPU, blocks born on the GPUs. Each figure is taken by itself: one
that fails becomes a line with its error. ``--device cpu`` runs the same code on
NumPy blocks, to try it on a machine without GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import mean, median
from typing import Any

import dask
import dask.array as da
import numpy as np
from gpu_harness import GpuBench, options, run
from harness import PLAIN, finished, fresh, no_wait
from worker_harness import synchronize

RATE_SIDE = {"cuda": 16384, "cpu": 512}


# what runs on a worker; its module is imported there without CUDA


def cupy_rate(n: int, dtype: str) -> float:
    """Return the operations a second of a large product on one GPU, by CuPy."""
    import cupy

    # drawn in the dtype itself: a GPU runs faster on digits that are mostly zero
    a, b = (cupy.random.random((n, n), dtype=dtype) for _ in range(2))
    out = cupy.empty((n, n), dtype)
    return _rate(lambda: cupy.matmul(a, b, out=out), synchronize, n)


def torch_rate(n: int, dtype: str) -> float:
    """Return the operations a second of a large product on one GPU, by torch."""
    import torch

    def multiply() -> float:
        a, b = (torch.rand(n, n, device="cuda", dtype=getattr(torch, dtype)) for _ in range(2))
        out = torch.empty_like(a)
        return _rate(lambda: torch.mm(a, b, out=out), torch.cuda.synchronize, n)

    rate = multiply()
    torch.cuda.empty_cache()
    return rate


def numpy_rate(n: int, dtype: str) -> float:
    """Return the operations a second of a product by NumPy."""
    a, b = (np.random.default_rng(0).random((n, n)).astype(dtype) for _ in range(2))
    out = np.empty((n, n), dtype)
    return _rate(lambda: np.matmul(a, b, out=out), no_wait, n)


def _rate(multiply: Callable[[], Any], synchronize: Callable[[], None], n: int) -> float:
    seconds = []
    for _ in range(5):
        synchronize()
        start = time.perf_counter()
        multiply()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / median(seconds[2:])


RATES: dict[str, dict[str, Callable[[int, str], float]]] = {
    "cuda": {"cupy": cupy_rate, "torch": torch_rate},
    "cpu": {"numpy": numpy_rate},
}


# the figures


class Bench(GpuBench):
    """The figures of products on one cluster."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rates: dict[str, float] = {}

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

    def rate(self, dtype: str) -> None:
        """Measure what one device does alone, on all of them at a time; keep the best library's."""
        n = RATE_SIDE[self.given.device]
        for library, function in RATES[self.given.device].items():
            with self.report.guard("one device's product", dtype=dtype, library=library):
                rates = list(self.client.run(function, n, dtype).values())
                self.rates[dtype] = max(mean(rates), self.rates.get(dtype, 0.0))
                tflops = [rate / 1e12 for rate in rates]
                self.report.add(
                    "one device's product", n=n, dtype=dtype, library=library, tflops=tflops
                )

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
