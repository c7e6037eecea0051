"""``dgpu.jacobi`` on a machine without GPUs: end to end, the program alone, and on shared memory.

Steps of ``map_overlap`` have a benchmark of their own: ``map_overlap.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import numba
import numpy as np
from distributed import Client, LocalCluster, wait
from harness import Report, finished, fresh, options
from process_harness import run_ranks, slowest

import dask_dgpu as dgpu
from dask_dgpu.algorithms.stencil.jacobi import jacobi_rank
from dask_dgpu.algorithms.stencil.plan import JacobiTask, SweepPlan, even_tiles, plan_sweeps
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from graph_opt.model.cost import HOST

RANKS = 4
THREADS = 2
"""Of what computes on shared memory: one a core."""
DTYPE = "float64"
OUT = Path(__file__).parent / "results" / "halo-cpu.jsonl"

Array = Any
Solve = Callable[[Array, Array, int], Array]


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    n : int
        Side of the grid.
    steps : int
        Sweeps.
    numpy_steps : int
        Sweeps of NumPy, which is slow.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    n: int
    steps: int
    numpy_steps: int
    repetitions: int

    @property
    def chunk(self) -> int:
        """Side of a chunk: one for each rank."""
        return self.n // 2

    @property
    def facts(self) -> dict[str, Any]:
        """What every figure says."""
        return {"n": self.n, "chunk": self.chunk, "dtype": DTYPE}


FULL = Sizes(n=2048, steps=1000, numpy_steps=20, repetitions=5)
QUICK = Sizes(n=64, steps=40, numpy_steps=4, repetitions=1)


def task_of(steps: int) -> JacobiTask:
    """Return a task that takes all its sweeps."""
    return JacobiTask.of(DTYPE, 1.0, (0.0, 0.0), steps, 1e-300)


def shared_memory(report: Report, sizes: Sizes) -> dict[str, list[float]]:
    """Sweep in one process: by NumPy, by Numba, and by the gang's program on threads."""
    ways: dict[str, tuple[Solve, int]] = {
        "numpy": (by_numpy, sizes.numpy_steps),
        "numba": (by_numba, sizes.steps),
        "rank program, threads": (by_threads, sizes.steps),
    }
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(1 + sizes.repetitions):
        for way, (solve, steps) in ways.items():
            u0, rhs = rng.random((2, sizes.n, sizes.n))
            start = time.perf_counter()
            solve(u0, rhs, steps)
            seconds[way].append(time.perf_counter() - start)
    for way, (_, steps) in ways.items():
        _add(report, sizes, f"jacobi, {way}", seconds[way][1:], steps, None)
    return seconds


def by_numpy(u0: Array, rhs: Array, steps: int) -> Array:
    """Sweep by slices."""
    u = np.pad(u0, 1)
    for _ in range(steps):
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        u[1:-1, 1:-1] = 0.25 * (around - rhs)
    return u


def by_numba(u0: Array, rhs: Array, steps: int) -> Array:
    """Sweep by Numba, rows dealt to threads: what one would write oneself."""
    numba.set_num_threads(min(THREADS, numba.get_num_threads()))
    u, other, known = np.pad(u0, 1), np.pad(u0, 1), np.pad(rhs, 1)
    for _ in range(steps):
        _sweep(u, other, known)
        u, other = other, u
    return u


@numba.njit(parallel=True)
def _sweep(u: Array, out: Array, rhs: Array) -> None:
    for i in numba.prange(1, u.shape[0] - 1):
        for j in range(1, u.shape[1] - 1):
            around = u[i - 1, j] + u[i, j - 1] + u[i, j + 1] + u[i + 1, j]
            out[i, j] = 0.25 * (around - rhs[i, j])


def by_threads(u0: Array, rhs: Array, steps: int) -> Array:
    """Run the gang's program on threads: the same kernel on shared memory."""
    plan = _plan(u0.shape[0], THREADS, steps)
    cuts = plan.tiles.cuts[0]

    def rank_program(comm: Comm) -> Array:
        mine = slice(cuts[comm.rank], cuts[comm.rank + 1])
        index = (comm.rank, 0)
        return jacobi_rank(plan, comm, HostDevice(), {index: u0[mine]}, {index: rhs[mine]})

    return run_local(THREADS, rank_program)


def _plan(n: int, size: int, steps: int) -> SweepPlan:
    tiles = even_tiles((n, n), (size, 1))
    return plan_sweeps(tiles, task_of(steps), size, HOST, added=tiles)


def rank_program(report: Report, sizes: Sizes, shared: float) -> None:
    """Run the gang's program in bare processes over TCP: no Dask at all."""
    found = run_ranks(RANKS, _iterate, sizes)
    seconds = slowest([times for times, _ in found])
    _add(report, sizes, "jacobi, rank program", seconds, sizes.steps, shared, sweeps=found[0][1])


def _iterate(comm: Comm, sizes: Sizes) -> tuple[list[float], int]:
    rank = comm.rank
    device = HostDevice()  # kept from one program to the next, as a worker's is
    rng = np.random.default_rng(rank)
    tiles = even_tiles((sizes.n, sizes.n), (2, 2))
    seconds = []
    for _ in range(1 + sizes.repetitions):
        u0, rhs = rng.random((2, *tiles.block_shape(tiles.owned(rank)[0])))
        comm.barrier()
        start = time.perf_counter()
        plan = plan_sweeps(tiles, task_of(sizes.steps), RANKS, HOST, added=tiles)
        (index,) = plan.source.owned(rank)
        jacobi_rank(plan, comm, device, {index: u0}, {index: rhs})
        seconds.append(time.perf_counter() - start)
    return seconds[1:], plan.steps


def end_to_end(report: Report, sizes: Sizes, shared: float) -> None:
    """Call ``dgpu.jacobi`` on persisted arrays."""
    with (
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        dgpu.enable(client, on_error="raise"),
    ):
        seconds = []
        for _ in range(1 + sizes.repetitions):
            rhs = fresh(sizes.n, sizes.chunk, DTYPE)
            u0 = finished(da.zeros_like(rhs).persist())
            start = time.perf_counter()
            u, info = dgpu.jacobi(u0, rhs, max_iterations=sizes.steps, tol=1e-300)
            wait(u)
            seconds.append(time.perf_counter() - start)
            if info.iterations != sizes.steps:
                raise RuntimeError(f"{info.iterations} sweeps were done instead of {sizes.steps}")
            del u, u0, rhs
    _add(report, sizes, "jacobi, end to end, dask_dgpu", seconds[1:], sizes.steps, shared)


def _add(
    report: Report,
    sizes: Sizes,
    what: str,
    seconds: list[float],
    steps: int,
    shared: float | None,
    **more: Any,
) -> None:
    """Add a figure; ``shared`` are the seconds of a step of Numba on shared memory."""
    step = median(seconds) / steps
    ratio = None if shared is None else step / shared
    facts = {**sizes.facts, "steps": steps, "step_seconds": step, **more}
    report.add(what, seconds, ratio=ratio, **facts)


def main() -> None:
    """Run all and print a table."""
    given = options(__doc__, OUT).parse_args()
    sizes = QUICK if given.quick else FULL
    report = Report(given.out, RANKS)
    shared = median(shared_memory(report, sizes)["numba"][1:]) / sizes.steps
    rank_program(report, sizes, shared)
    end_to_end(report, sizes, shared)
    report.print()


if __name__ == "__main__":
    main()
