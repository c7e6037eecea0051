"""A filter in the spectrum and a chain of products on the GPUs of one host: each one program.

One process a GPU, blocks born on the GPUs. Each figure is taken by itself: one
that fails becomes a line with its error. ``--device cpu`` runs the same code on
NumPy blocks, to try it on a machine without GPUs.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import dask
import dask.array as da
import numpy as np
from fft_harness import DASKS_FFTN, difference, outer, slab_rows, turned
from gpu_harness import GpuBench, options, run
from harness import finished, fresh, fresh_complex

SLABS_A_RANK = 2
PRODUCTS = 10
WIDTH = 8.0
"""Of the filter, in points."""


def smoothing(n: int, chunks: tuple[int, int]) -> da.Array:
    """Return what the spectrum is multiplied with, not computed yet."""
    rows, columns = (
        da.exp(-0.5 * (2 * np.pi * WIDTH * da.fft.fftfreq(n, chunks=size).astype("float32")) ** 2)
        for size in chunks
    )
    return rows[:, None] * columns[None, :]


def filtered(x: da.Array, k: da.Array) -> da.Array:
    """Return ``x`` smoothed."""
    return da.fft.ifft2(da.fft.fft2(x) * k).real


def plainly_filtered(x: da.Array, k: da.Array) -> da.Array:
    """Return the same in plain Dask: its rechunk between transforms of whole axes."""
    n, rows = x.shape[0], x.chunks[0][0]
    spectrum = DASKS_FFTN(turned(DASKS_FFTN(x, axes=(1,)), "tasks"), axes=(0,))
    back = dask.array.fft.ifft(spectrum * k, axis=0).rechunk((rows, n), method="tasks")
    return dask.array.fft.ifft(back, axis=1).real


def chain(a: da.Array) -> da.Array:
    """Return ten products, each of the one before, scaled lest they grow."""
    x = a
    for _ in range(PRODUCTS):
        x = (x @ a) * np.float32(2.0 / a.shape[0])
    return x


class Bench(GpuBench):
    """The figures of regions on one cluster."""

    def run(self) -> None:
        """Take all figures, those of plain Dask last: they take longest."""
        given, report = self.given, self.report
        with report.guard("no-op on every worker"):
            self.no_op()
        with report.guard("one device's product", dtype="float32"):
            self.rate("float32")
        with report.guard("filter, end to end, dask_dgpu"):
            self.filter()
        with report.guard("filter, correctness"):
            self.correctness()
        with report.guard("ten products, end to end, dask_dgpu"):
            self.products()
        if given.device == "cuda":
            with report.guard("filter, host copies"):
                self.host_copies("filter, ", self.image, filtered, **self.filters)
            with report.guard("ten products, host copies"):
                self.host_copies("ten products, ", self.factor, chain, **self.factors)
        if given.plain_repetitions:
            with report.guard("filter, end to end, dask"):
                self.plain("filter, ", self.image, plainly_filtered, **self.filters)
            with report.guard("ten products, end to end, dask"):
                self.plain("ten products, ", self.factor, chain, **self.factors)

    @property
    def filters(self) -> dict[str, Any]:
        """What every figure of the filter says."""
        n = self.given.n
        return {"n": n, "chunk": slab_rows((n, n), self.slabs), "dtype": "complex64"}

    @property
    def factors(self) -> dict[str, Any]:
        """What every figure of the chain says."""
        return {"n": self.given.side, "chunk": self.given.chunk, "dtype": "float32"}

    @property
    def slabs(self) -> int:
        """How many slabs an image is in."""
        return SLABS_A_RANK * len(self.workers())

    def image(self) -> tuple[da.Array, da.Array]:
        """Return a new image, in slabs of rows, and a filter in slabs of columns."""
        n = self.given.n
        rows = slab_rows((n, n), self.slabs)
        return fresh_complex((n, n), rows, "complex64"), smoothing(n, (n, rows))

    def factor(self) -> tuple[da.Array]:
        """Return a new factor."""
        return (fresh(self.given.side, self.given.chunk, "float32"),)

    def filter(self) -> None:
        """Filter end to end."""
        found = self.uses("filter, ", self.image, filtered, **self.filters)
        self.rank_program("filter, ", found, **self.filters)

    def products(self) -> None:
        """Multiply ten times end to end; how near that comes to what one device does alone."""
        found = self.uses("ten products, ", self.factor, chain, **self.factors)
        if not found.slowest:
            return
        operations = PRODUCTS * 2 * self.given.side**3
        bound = len(self.workers()) * self.rates["float32"]
        self.rank_program(
            "ten products, ",
            found,
            **self.factors,
            fraction=operations / median(found.slowest) / bound,
            fraction_end_to_end=operations / median(found.seconds[1:]) / bound,
        )

    def correctness(self) -> None:
        """Filter an outer product, whose result is one too."""
        n, device = self.given.n, self.given.device
        slabs = da.core.normalize_chunks((self.filters["chunk"], n), (n, n))
        rng = np.random.default_rng(0)
        factors = [rng.random(n) - 0.5 for _ in range(2)]
        x = outer(factors, slabs, "complex64", device)
        with dask.config.set(array_optimize=self.gang):
            y = finished(filtered(x, smoothing(n, (n, self.filters["chunk"]))).persist())
        k = np.exp(-0.5 * (2 * np.pi * WIDTH * np.fft.fftfreq(n)) ** 2)
        smoothed = [np.fft.ifft(np.fft.fft(factor) * k).real for factor in factors]
        error = difference(y, outer(smoothed, y.chunks, "float32", device))
        self.report.add("filter, correctness", **self.filters, error_relative=error)


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__)
    parser.add_argument("--n", type=int, default=32768, help="side of the image")
    parser.add_argument("--side", type=int, default=16384, help="side of the factors")
    parser.add_argument("--chunk", type=int, default=4096, help="side of the factors' chunks")
    run(Bench, "region", parser.parse_args())


if __name__ == "__main__":
    main()
