"""Jacobi's iteration and loops of ``da.map_overlap`` on the GPUs of one host.

Grids come in slabs of rows, one per GPU. ``dgpu.jacobi`` takes all its iterations, on all
GPUs and on fewer, each of which has the same share of rows: the efficiency is the time of
an iteration on one over that on several. Steps of ``map_overlap`` are an expression of
slices, and one fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import dask
import dask.array as da
from dask.base import annotate
from fft_harness import outer
from gpu_harness import Arrays, GpuBench, options, run
from halo_harness import eigenvector, fused_step, jacobis_case
from harness import PLAIN, fresh
from map_overlap import loop, mean_of_neighbours
from worker_harness import program_seconds

import dask_dgpu as dgpu

DTYPE = "float32"
TOL = 1e-300
"""Never reached: all iterations are done."""
STEPS: dict[str, Callable[[Any], Any]] = {
    "expression": mean_of_neighbours,
    "fused kernel": fused_step,
}


class Bench(GpuBench):
    """The figures of Jacobi's iteration and of overlapping blocks on one cluster."""

    def run(self) -> None:
        """Take all figures, those of plain Dask last."""
        given, report = self.given, self.report
        self.alone: dict[str, float] = {}
        with report.guard("no-op on every worker"):
            self.no_op()
        for ranks in self.counts():
            prefix, facts = self.name(ranks), self.iterations(ranks)
            with report.guard(f"{prefix}end to end, dask_dgpu", **facts):
                self.take(prefix, partial(self.grids, ranks, 2), self.solver(ranks), facts)
        with report.guard("jacobi, correctness"):
            self.jacobi_correctness()
        for kind in STEPS:
            prefix, facts = f"map_overlap, {kind}, ", self.steps(given.steps)
            with report.guard(f"{prefix}end to end, dask_dgpu", **facts):
                self.take(prefix, self.grid, partial(steps, given.steps, kind), facts)
            with report.guard(f"{prefix}correctness", **facts):
                self.correctness(prefix, kind, facts)
        if given.device == "cuda":
            self.traces()
        for kind in STEPS if given.plain_repetitions else ():
            prefix, facts = f"map_overlap, {kind}, ", self.steps(given.plain_steps)
            with report.guard(f"{prefix}end to end, dask", **facts):
                self.plain(prefix, self.grid, partial(steps, given.plain_steps, kind), **facts)

    def counts(self) -> list[int]:
        """Return 1, 2, 4 and so on, and the number of all workers."""
        every = len(self.workers())
        return [2**k for k in range(every.bit_length()) if 2**k < every] + [every]

    def name(self, ranks: int) -> str:
        """Return what the names of figures of Jacobi's iteration on so many begin with."""
        every = len(self.workers())
        return "jacobi, " if ranks == every else f"jacobi on {ranks} of {every}, "

    def shape(self, ranks: int) -> tuple[int, int]:
        """Return the shape of a grid on so many workers."""
        n, every = self.given.n, len(self.workers())
        return n * ranks // every, n

    def iterations(self, ranks: int) -> dict[str, Any]:
        """What every figure of Jacobi's iteration says."""
        rows, n = self.shape(ranks)
        facts = {"n": n, "rows": rows, "chunk": -(-rows // ranks), "dtype": DTYPE}
        return {**facts, "workers": ranks, "iterations": self.given.iterations}

    def steps(self, number: int) -> dict[str, Any]:
        """What every figure of so many steps of ``map_overlap`` says."""
        n, ranks = self.given.n, len(self.workers())
        facts = {"n": n, "chunk": -(-n // ranks), "dtype": DTYPE}
        return {**facts, "workers": ranks, "steps": number}

    def grids(self, ranks: int, number: int) -> Arrays:
        """Return new grids, a block on each of the first workers."""
        chosen, shape = self.workers()[:ranks], self.shape(ranks)
        with annotate(workers=lambda key: [chosen[key[1]]]):
            chunks = (-(-shape[0] // ranks), shape[1])
            return tuple(fresh(shape, chunks, DTYPE) for _ in range(number))

    def grid(self) -> Arrays:
        """Return a new grid on all workers."""
        return self.grids(len(self.workers()), 1)

    def solver(self, ranks: int) -> Callable[..., da.Array]:
        """Return Jacobi's iteration on the first workers; on all of them as a user calls it."""
        workers = self.workers()
        where = {} if ranks == len(workers) else {"workers": workers[:ranks]}

        def solve(u0: da.Array, rhs: da.Array) -> da.Array:
            most = self.given.iterations
            with annotate(**where):
                u, info = dgpu.jacobi(u0, rhs, max_iterations=most, tol=TOL)
            if info.iterations != most:
                raise RuntimeError(f"{info.iterations} iterations were done instead of {most}")
            return u

        return solve

    def take(
        self,
        prefix: str,
        make: Callable[[], Arrays],
        function: Callable[..., da.Array],
        facts: dict[str, Any],
    ) -> None:
        """Compute end to end; the program must have run on as many workers as meant."""

        def check(arrays: Arrays, result: da.Array) -> None:
            ran = sum(map(bool, self.client.run(program_seconds).values()))
            if ran != facts["workers"]:
                raise RuntimeError(f"the program ran on {ran} workers, not {facts['workers']}")

        found = self.uses(prefix, make, function, check, **facts)
        self.rank_program(prefix, found, **facts)

    def figure(self, what: str, seconds: list[float], **facts: Any) -> None:
        """Write a figure with the time of an iteration or of a step."""
        if "steps" in facts:
            facts["step_ms"] = median(seconds) / facts["steps"] * 1e3
        else:
            iteration, kind = median(seconds) / facts["iterations"], what.partition(", ")[2]
            if facts["workers"] == 1:
                self.alone[kind] = iteration
            facts["iteration_us"] = iteration * 1e6
            facts["efficiency"] = self.alone[kind] / iteration if kind in self.alone else None
        super().figure(what, seconds, **facts)

    def traces(self) -> None:
        """Record what is copied to the host."""
        given, every = self.given, len(self.workers())
        facts = self.iterations(every)
        with self.report.guard("jacobi, host copies", **facts):
            make, solve = partial(self.grids, every, 2), self.solver(every)
            self.host_copies("jacobi, ", make, solve, **facts)
        for kind in STEPS:
            prefix, facts = f"map_overlap, {kind}, ", self.steps(given.steps)
            with self.report.guard(f"{prefix}host copies", **facts):
                self.host_copies(prefix, self.grid, partial(steps, given.steps, kind), **facts)

    def jacobi_correctness(self) -> None:
        """Iterate on an eigenvector, of which is known what becomes of it."""
        every, device = len(self.workers()), self.given.device
        facts, shape = self.iterations(every), self.shape(every)
        chunks = da.core.normalize_chunks((facts["chunk"], shape[1]), shape)
        (along, across), rhs, last = jacobis_case(shape, facts["iterations"])
        u0, known, wanted = (
            outer([factor * along, across], chunks, DTYPE, device) for factor in (1.0, rhs, last)
        )
        with dask.config.set(array_optimize=self.gang):
            u = self.solver(every)(u0, known)
        self.report.add("jacobi, correctness", **facts, error_relative=largest(u, wanted))

    def correctness(self, prefix: str, kind: str, facts: dict[str, Any]) -> None:
        """Step on an eigenvector, of which is known how fast it decays."""
        n, device = facts["n"], self.given.device
        chunks = da.core.normalize_chunks((facts["chunk"], n), (n, n))
        (along, across), rate = eigenvector((n, n), facts["steps"])
        x, wanted = (
            outer([factor * along, across], chunks, DTYPE, device)
            for factor in (1.0, rate ** facts["steps"])
        )
        y = self.computed(partial(steps, facts["steps"], kind), x)
        self.report.add(f"{prefix}correctness", **facts, error_relative=largest(y, wanted))


def steps(number: int, kind: str, grid: da.Array) -> da.Array:
    """Return a grid after so many steps of a kind."""
    return loop(grid, number, 0.0, STEPS[kind], trim=kind == "fused kernel")


def largest(x: da.Array, y: da.Array) -> float:
    """Return the largest difference of two arrays over the largest element of the second."""
    found = [abs(z).max().to_backend("numpy") for z in (x - y, y)]
    with dask.config.set(array_optimize=PLAIN):
        error, whole = (float(value.compute()) for value in found)
    return error / whole


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__)
    parser.set_defaults(repetitions=3)
    parser.add_argument("--n", type=int, default=32768, help="side of the grid on all workers")
    parser.add_argument("--iterations", type=int, default=1000, help="of Jacobi")
    parser.add_argument("--steps", type=int, default=100, help="of map_overlap")
    parser.add_argument("--plain-steps", type=int, default=10, help="of map_overlap in plain Dask")
    run(Bench, "halo", parser.parse_args())


if __name__ == "__main__":
    main()
