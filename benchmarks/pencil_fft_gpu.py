"""``da.fft.fft2``, ``fftn`` and ``rechunk`` on the GPUs of one host: the program, and end to end.

Arrays come in slabs, two a GPU. One process a GPU, blocks born on the GPUs. Each
figure is taken by itself: one that fails becomes a line with its error. ``--device
cpu`` runs the same code on NumPy blocks, to try it on a machine without GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client
from fft_harness import dasks_fftn, difference, outer, slab_rows, turned
from gpu_harness import GpuBench, options, run
from harness import fresh_complex

from dask_dgpu.algorithms.redistribute.plan import plan_redistribute, traffic
from graph_opt.model.layout import Layout, cuts_of

SLABS_A_RANK = 2


@dataclass(frozen=True)
class Case:
    """An array, and what is done to it.

    Parameters
    ----------
    what : {"fft", "fft2", "fftn", "rechunk"}
        A transform along all axes, or slabs of rows made slabs of columns. Plain Dask has none
        along one axis in chunks.
    shape : tuple of int
        Length of each axis, all the same.
    rows : int
        Of a slab.
    dtype : str
        A complex one.
    """

    what: str
    shape: tuple[int, ...]
    rows: int
    dtype: str

    @property
    def prefix(self) -> str:
        """What the names of the figures begin with."""
        return f"{self.what}, "

    @property
    def facts(self) -> dict[str, Any]:
        """What every figure says."""
        return {"n": self.shape[0], "chunk": self.rows, "dtype": self.dtype}

    def make(self) -> tuple[da.Array]:
        """Return an array of new numbers, on the workers."""
        return (fresh_complex(self.shape, self.rows, self.dtype),)

    @property
    def gang(self) -> Callable[[da.Array], da.Array]:
        """What a user calls; it is looked up only now that dask_dgpu is enabled."""
        return turned if self.what == "rechunk" else getattr(da.fft, self.what)

    @property
    def plain(self) -> Callable[[da.Array], da.Array]:
        """The same in plain Dask; its P2P rechunk knows no CuPy blocks."""
        return partial(turned if self.what == "rechunk" else dasks_fftn, method="tasks")


class Bench(GpuBench):
    """The figures of transforms and rechunks on one cluster."""

    def run(self) -> None:
        """Take all figures, those of plain Dask last: they take longest."""
        given, report = self.given, self.report
        with report.guard("no-op on every worker"):
            self.no_op()
        cases = self.cases()
        for case in cases:
            with report.guard(f"{case.prefix}end to end, dask_dgpu", **case.facts):
                self.end_to_end(case)
            with report.guard(f"{case.prefix}correctness", **case.facts):
                self.correctness(case)
        if given.device == "cuda":
            for case in cases:
                with report.guard(f"{case.prefix}host copies", **case.facts):
                    self.host_copies(case.prefix, case.make, case.gang, **case.facts)
        for case in cases if given.plain_repetitions else []:
            if case.what == "fft":
                continue
            with report.guard(f"{case.prefix}end to end, dask", **case.facts):
                self.plain(case.prefix, case.make, case.plain, **case.facts)

    def cases(self) -> list[Case]:
        """Return what the options ask for."""
        given, slabs = self.given, SLABS_A_RANK * len(self.workers())
        shapes = [(what, (n, n)) for n in given.n for what in ("fft2", "rechunk")]
        cubes = [("fftn", (n, n, n)) for n in given.cubes]
        lines = [("fft", (n,)) for n in given.lines]
        return [
            Case(what, shape, slab_rows(shape, slabs), given.dtype)
            for what, shape in [*shapes, *cubes, *lines]
        ]

    def end_to_end(self, case: Case) -> None:
        """Compute fresh arrays; of a rechunk, say how fast each GPU sends."""

        def note(arrays: tuple[da.Array, ...], result: da.Array) -> int:
            return most_sent(self.client, arrays[0], result) if case.what == "rechunk" else 0

        found = self.uses(case.prefix, case.make, case.gang, note, **case.facts)
        more = {}
        if case.what == "rechunk" and found.slowest:
            rates = zip(found.noted[1:], found.slowest, strict=True)
            more["sent_bytes"] = max(found.noted[1:])
            more["gbytes_a_second"] = median(sent / seconds / 1e9 for sent, seconds in rates)
        self.rank_program(case.prefix, found, **case.facts, **more)

    def correctness(self, case: Case) -> None:
        """Compare with what is known: the transform of an outer product is one too."""
        if case.what == "fft":
            self.report.add(
                f"{case.prefix}correctness", **case.facts, error_inverse=self.inverse(case)
            )
            return
        rng = np.random.default_rng(0)
        factors = [
            (rng.random(n) + 1j * rng.random(n) - (0.5 + 0.5j)).astype(case.dtype)
            for n in case.shape
        ]
        slabs = da.core.normalize_chunks((case.rows, *case.shape[1:]), case.shape)
        device = self.given.device
        x = outer(factors, slabs, case.dtype, device)
        y = self.computed(case.gang, x)
        if case.what == "rechunk":
            error = difference(y, outer(factors, y.chunks, case.dtype, device))
            self.report.add(f"{case.prefix}correctness", **case.facts, error_relative=error)
            return
        spectra = [np.fft.fft(factor.astype("complex128")) for factor in factors]
        error = difference(y, outer(spectra, y.chunks, case.dtype, device))
        del x, y
        inverse = self.inverse(case)
        self.report.add(
            f"{case.prefix}correctness", **case.facts, error_relative=error, error_inverse=inverse
        )

    def inverse(self, case: Case) -> float:
        """Return the error of the inverse of a transform of fresh numbers."""
        (x,) = case.make()
        back = self.computed(getattr(da.fft, f"i{case.what}"), self.computed(case.gang, x))
        return difference(back, x)


def most_sent(client: Client, x: da.Array, y: da.Array) -> int:
    """Return the bytes that leave the busiest worker when ``x`` becomes ``y``, by where both are.

    Parameters
    ----------
    client : Client
        The cluster.
    x, y : dask.array.Array
        Persisted; of one shape.
    """
    holders = {str(key): on for z in (x, y) for key, on in client.who_has(z).items()}
    workers = sorted({on[0] for on in holders.values()})

    def layout(z: da.Array) -> Layout:
        keys = map(str, dask.core.flatten(z.__dask_keys__()))
        owners = tuple(workers.index(holders[key][0]) for key in keys)
        return Layout(tuple(map(cuts_of, z.chunks)), owners)

    plan = plan_redistribute(layout(x), layout(y), x.dtype.name, len(workers))
    return int(traffic(plan).sum(axis=1).max())


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__)
    parser.add_argument("--n", type=int, nargs="*", default=[32768, 65536], help="sides of squares")
    parser.add_argument("--cubes", type=int, nargs="*", default=[1024], help="sides of cubes")
    parser.add_argument("--lines", type=int, nargs="*", default=[2**29], help="lengths of lines")
    parser.add_argument("--dtype", choices=("complex64", "complex128"), default="complex64")
    run(Bench, "pencil_fft", parser.parse_args())


if __name__ == "__main__":
    main()
