"""``da.fft.fft2`` and ``rechunk`` on a machine without GPUs: end to end, and the program alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
import scipy.fft
from distributed import Client, LocalCluster
from fft_harness import dasks_fftn, slab_rows, turned
from harness import PLAIN, Report, fresh_complex, no_wait, options, timed
from process_harness import blas_threads, processes, run_ranks, slowest

import dask_dgpu as dgpu
from dask_dgpu.algorithms.pencil_fft.plan import plan_pencil_fft
from dask_dgpu.algorithms.pencil_fft.rank import pencil_fft_rank, plan_on_ranks
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.kernels.fft import Transform
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Layout, cuts_of, dealt

RANKS = 4
THREADS = 2
"""Of SciPy, which computes in one process."""
DTYPE = "complex128"
OUT = Path(__file__).parent / "results" / "pencil_fft-cpu.jsonl"
PEER = Path(__file__).parent / "peers" / "pencil_fft_mpi.py"
TIMEOUT = 120.0

Way = tuple[Client, Callable[..., Any], Callable[[da.Array], da.Array]]
"""A cluster, an optimizer, and what is computed."""


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    n : int
        Side of the array.
    slabs : int
        Chunks along its first axis.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    n: int
    slabs: int
    repetitions: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the array."""
        return self.n, self.n

    @property
    def facts(self) -> dict[str, Any]:
        """What every figure says."""
        return {"n": self.n, "chunk": slab_rows(self.shape, self.slabs), "dtype": DTYPE}


FULL = Sizes(n=4096, slabs=8, repetitions=5)
QUICK = Sizes(n=64, slabs=8, repetitions=1)


def scipy_alone(report: Report, sizes: Sizes) -> None:
    """Transform by SciPy in one process."""
    with processes(1, _transform, (sizes,)) as pipes:
        seconds = pipes[0].recv()
    report.add("fft2, scipy, one process", seconds, n=sizes.n, dtype=DTYPE, threads=THREADS)


def _transform(rank: int, pipe: Connection, sizes: Sizes) -> None:
    seconds = []
    rng = np.random.default_rng(rank)
    for _ in range(1 + sizes.repetitions):
        x = _numbers(rng, sizes.shape)
        start = time.perf_counter()
        scipy.fft.fft2(x, workers=THREADS)
        seconds.append(time.perf_counter() - start)
    pipe.send(seconds[1:])


def _numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.random(shape) + 1j * rng.random(shape)


def rank_program(report: Report, sizes: Sizes) -> None:
    """Run the gang's program in bare processes over TCP: no Dask at all."""
    found = run_ranks(RANKS, _transform_on_ranks, sizes)
    seconds = slowest([times for times, _ in found])
    report.add("fft2, rank program", seconds, steps=found[0][1], **sizes.facts)


def _transform_on_ranks(comm: Comm, sizes: Sizes) -> tuple[list[float], int]:
    rank = comm.rank
    rows = slab_rows(sizes.shape, sizes.slabs)
    chunks = da.core.normalize_chunks((rows, sizes.n), sizes.shape)
    source = _in_order(None, chunks)
    transforms = [Transform("fft", axis, sizes.n) for axis in (0, 1)]
    device = HostDevice()  # kept from one program to the next, as a worker's is
    rng = np.random.default_rng(rank)
    seconds = []
    for _ in range(1 + sizes.repetitions):
        mine = {index: _numbers(rng, source.block_shape(index)) for index in source.owned(rank)}
        comm.barrier()
        start = time.perf_counter()
        plan = plan_pencil_fft(chunks, DTYPE, transforms)
        ranked = plan_on_ranks(plan, source, RANKS, HOST, _in_order)
        pencil_fft_rank(ranked, comm, device, mine)
        seconds.append(time.perf_counter() - start)
    return seconds[1:], ranked.steps


def _in_order(_: Layout | None, chunks: tuple[tuple[int, ...], ...]) -> Layout:
    """Deal the blocks of an array to the ranks in their order."""
    cuts = tuple(map(cuts_of, chunks))
    blocks = int(np.prod([len(sizes) for sizes in chunks]))
    return Layout(cuts, dealt(blocks, RANKS))


def mpi4py_fft(report: Report, sizes: Sizes, python: str) -> None:
    """Transform by mpi4py-fft, where it is installed.

    Parameters
    ----------
    report : Report
        Where the figure goes.
    sizes : Sizes
        What is transformed.
    python : str
        The interpreter that has mpi4py-fft; ``mpiexec`` is beside it or on the path.
    """
    what = "fft2, mpi4py-fft"
    facts: dict[str, Any] = {"n": sizes.n, "dtype": DTYPE}
    beside = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])
    mpiexec = shutil.which("mpiexec", path=beside)
    probe = subprocess.run([python, "-c", "import mpi4py_fft"], capture_output=True, check=False)
    if mpiexec is None or probe.returncode:
        missing = "mpiexec" if mpiexec is None else "mpi4py-fft"
        report.add(what, not_installed=missing, **facts)
        return
    numbers = [str(sizes.n), str(sizes.repetitions)]
    command = [mpiexec, "-n", str(RANKS), python, str(PEER), *numbers]
    with report.guard(what, **facts), blas_threads(1):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
        if done.returncode:
            raise RuntimeError(done.stderr[-400:])
        report.add(what, **json.loads(done.stdout), **facts)


def end_to_end(report: Report, sizes: Sizes) -> None:
    """Transform and rechunk, by dask_dgpu and on workers that know nothing of it by Dask.

    Dask is timed beside it on the workers of dask_dgpu too, which change how the C
    library keeps memory.
    """
    with (
        _cluster() as client,
        _cluster() as plain,
        dgpu.enable(client, when="always", on_error="raise") as enabled,
    ):
        transforms: dict[str, Way] = {
            "dask_dgpu": (client, enabled.optimizer, da.fft.fft2),
            "dask, tasks": (plain, PLAIN, partial(dasks_fftn, method="tasks")),
            "dask, p2p": (plain, PLAIN, partial(dasks_fftn, method="p2p")),
            "dask, tasks, same workers": (client, PLAIN, partial(dasks_fftn, method="tasks")),
            "dask, p2p, same workers": (client, PLAIN, partial(dasks_fftn, method="p2p")),
        }
        rechunks: dict[str, Way] = {
            "dask_dgpu": (client, enabled.optimizer, turned),
            "dask, tasks": (plain, PLAIN, partial(turned, method="tasks")),
            "dask, p2p": (plain, PLAIN, partial(turned, method="p2p")),
        }
        _in_turns(report, sizes, "fft2", transforms)
        _in_turns(report, sizes, "rechunk", rechunks)


@contextmanager
def _cluster() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def _in_turns(report: Report, sizes: Sizes, what: str, ways: dict[str, Way]) -> None:
    """Compute in each way; ratios are to the faster one of plain Dask."""
    rows = slab_rows(sizes.shape, sizes.slabs)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(1 + sizes.repetitions):
        for way, (client, optimizer, function) in ways.items():
            with client.as_current():
                x = fresh_complex(sizes.shape, rows, DTYPE)
                taken, y = timed(client, optimizer, function, (x,), no_wait)
            seconds[way].append(taken)
            del x, y
    medians = {way: median(times[1:]) for way, times in seconds.items()}
    plain = min(medians["dask, tasks"], medians["dask, p2p"])
    for way, times in seconds.items():
        ratio = medians[way] / plain
        report.add(f"{what}, end to end, {way}", times[1:], ratio=ratio, **sizes.facts)


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__, OUT)
    parser.add_argument(
        "--mpi-python", default=sys.executable, help="an interpreter that has mpi4py-fft"
    )
    given = parser.parse_args()
    warnings.filterwarnings("ignore", category=da.PerformanceWarning)
    sizes = QUICK if given.quick else FULL
    report = Report(given.out, RANKS)
    scipy_alone(report, sizes)
    rank_program(report, sizes)
    mpi4py_fft(report, sizes, given.mpi_python)
    end_to_end(report, sizes)
    report.print()


if __name__ == "__main__":
    main()
