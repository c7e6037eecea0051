"""Overlap of transfers and compute: rank programs in one part and in more, over TCP.

Over the loopback a transfer needs the cores that it would leave to the compute. So the programs
run once more with each message delayed as on a network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import scipy.fft
from harness import Report, options
from process_harness import run_ranks

from dask_dgpu.algorithms.redistribute.plan import plan_redistribute
from dask_dgpu.algorithms.redistribute.rank import redistribute_rank
from dask_dgpu.algorithms.summa.choose import plan_summa
from dask_dgpu.algorithms.summa.plan import Operand
from dask_dgpu.algorithms.summa.rank import summa_rank
from dask_dgpu.comm.protocol import Comm, Messages, Work
from dask_dgpu.comm.timed import TimedComm
from dask_dgpu.cost import overlap_benefit
from dask_dgpu.kernels.device import HostDevice
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Layout, cuts_of, even_spans

OUT = Path(__file__).parent / "results" / "overlap-cpu.jsonl"
PARTS = (1, 2, 4, 8, 16)
"""Panels of a product; bounds of the rounds of a redistribution."""
NETWORKS = {"loopback": None, "1 Gbit/s": 125e6}
"""Bytes per second that a rank receives at most."""


class Run(NamedTuple):
    """One run of a rank: seconds in all, and of its transfers."""

    seconds: float
    hidden: float
    exposed: float


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    n : int
        Side of the matrices.
    chunk : int
        Side of their chunks in the product.
    repetitions : int
        Of everything timed, after one that is not counted.
    """

    n: int
    chunk: int
    repetitions: int


FULL = Sizes(n=2048, chunk=64, repetitions=11)
QUICK = Sizes(n=256, chunk=8, repetitions=1)


class Slowed(TimedComm):
    """A communicator whose messages arrive as over a network of a rate in bytes per second."""

    def __init__(self, comm: Comm, rate: float) -> None:
        super().__init__(comm)
        self.rate = rate
        self.free = 0.0  # when the link has carried all earlier messages

    def exchange(self, sends: Messages, recvs: Messages) -> Work:
        """Exchange messages."""
        work = super().exchange(sends, recvs)
        return self._delayed(work, sum(buffer.nbytes for _, buffer in recvs))

    def _delayed(self, work: Work, nbytes: int) -> Work:
        self.free = max(self.free, self.clock()) + nbytes / self.rate
        return Delayed(work, self.free)


@dataclass(frozen=True)
class Delayed:
    """A transfer that ends at a given time or later."""

    work: Work
    due: float

    @property
    def ended(self) -> float | None:
        """The end, once :meth:`wait` has returned."""
        ended = self.work.ended
        return None if ended is None else max(ended, self.due)

    def wait(self) -> None:
        """Wait for the data, and for its time on the network."""
        self.work.wait()
        time.sleep(max(0.0, self.due - time.perf_counter()))


Programs = dict[int, Callable[..., Any]]
"""What a rank runs, by the number of parts."""


def matmul(sizes: Sizes, rank: int, ranks: int) -> Programs:
    """Return a product in each number of panels.

    Blocks are dealt out in both directions, so that all ranks send equally much in each panel.
    """
    grid = sizes.n // sizes.chunk
    cuts = cuts_of([sizes.chunk] * grid)
    owners = tuple(i % 2 * (ranks // 2) + j % (ranks // 2) for i, j in np.ndindex(grid, grid))
    operand = Operand((cuts, cuts), owners, "float64")
    rng, shape = np.random.default_rng(rank), (sizes.chunk, sizes.chunk)
    mine = [(i, j) for i, j in np.ndindex(grid, grid) if operand.owner((i, j)) == rank]
    a, b = ({at: rng.random(shape) for at in mine} for _ in range(2))
    mesh, device = (2, ranks // 2, 1), HostDevice()
    plans = [
        plan_summa(operand, operand, "float64", ranks, HOST, mesh=mesh, steps=steps)
        for steps in PARTS
    ]
    return {plan.steps: partial(summa_rank, plan, device=device, a=a, b=b) for plan in plans}


def redistribution(sizes: Sizes, rank: int, ranks: int, *, transform: bool) -> Programs:
    """Return a move from slabs of rows to slabs of columns, in one round and in more.

    With ``transform`` the rows are transformed as they are packed.
    """
    edges = (0, *(hi for _, hi in even_spans(0, sizes.n, ranks)))
    whole, owners = (0, sizes.n), tuple(range(ranks))
    ends = Layout((edges, whole), owners), Layout((whole, edges), owners), "complex128", ranks
    rng, device = np.random.default_rng(rank), HostDevice()
    blocks = {at: rng.random(ends[0].block_shape(at)) + 0j for at in ends[0].owned(rank)}

    def transformed(index: Any, slices: Any) -> Any:
        return scipy.fft.fft(blocks[index][slices])

    axes, read = ((1,), transformed) if transform else ((), None)
    share = 16 * sizes.n * sizes.n // ranks
    plans = [
        plan_redistribute(*ends, limit=4 * share // parts, whole_axes=axes, transformed=transform)
        for parts in PARTS
    ]
    run = partial(redistribute_rank, device=device, blocks=blocks, read=read)
    return {plan.rounds: partial(run, plan) for plan in plans}


CASES: dict[str, Callable[[Sizes, int, int], Programs]] = {
    "product": matmul,
    "redistribution": partial(redistribution, transform=False),
    "transform and redistribution": partial(redistribution, transform=True),
}


def figures(report: Report, sizes: Sizes, ranks: int) -> None:
    """Measure all cases; predict those in parts from the one in a single part."""
    found = zip(*run_ranks(ranks, _run_cases, sizes), strict=True)
    for (network, name), each in zip(product(NETWORKS, CASES), found, strict=True):
        runs = {
            parts: [max(taken) for taken in zip(*(mine[parts] for mine in each), strict=True)]
            for parts in each[0]
        }
        dtype = "float64" if name == "product" else "complex128"
        _report(report, name, runs, {"n": sizes.n, "dtype": dtype, "network": network})


def _report(report: Report, name: str, runs: dict[int, list[Run]], facts: dict[str, Any]) -> None:
    """Write the times of the slowest ranks, and what the run in one part predicts."""
    seconds, _, exposed = map(median, zip(*runs[1], strict=True))
    for parts, each in runs.items():
        taken, hidden, waited = (list(values) for values in zip(*each, strict=True))
        benefit = overlap_benefit(seconds - exposed, exposed, parts)
        report.add(
            name,
            taken,
            ratio=median(taken) / seconds,
            parts=parts,
            hidden=median(hidden),
            exposed=median(waited),
            predicted=benefit.overlapped_s,
            saved=seconds - median(taken),
            predicted_saved=benefit.saved_s,
            **facts,
        )


def _run_cases(inner: Comm, sizes: Sizes) -> list[dict[int, list[Run]]]:
    found = []
    for rate, case in product(NETWORKS.values(), CASES.values()):
        comm = TimedComm(inner if rate is None else Slowed(inner, rate))
        programs = case(sizes, inner.rank, inner.size)
        runs: dict[int, list[Run]] = {parts: [] for parts in programs}
        for _ in range(1 + sizes.repetitions):
            for parts, program in programs.items():
                inner.barrier()
                comm.take()
                start = time.perf_counter()
                program(comm=comm)
                runs[parts].append(Run(time.perf_counter() - start, *comm.take()))
        found.append({parts: each[1:] for parts, each in runs.items()})
    return found


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__, OUT)
    parser.add_argument("--ranks", type=int, default=4, help="an even number of processes")
    given = parser.parse_args()
    report = Report(given.out, given.ranks)
    figures(report, QUICK if given.quick else FULL, given.ranks)
    report.print()


if __name__ == "__main__":
    main()
