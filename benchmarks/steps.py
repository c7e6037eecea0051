"""The host's work between the small steps of a program: microseconds a step, by kind.

Blocks are so small that computing them takes a few microseconds; the rest is what ranks do around
it. The same work by NumPy alone shows how much, or by CuPy with ``--cuda``, for one rank. Ranks are
threads of this process: processor time is that of the busiest one, and the wall also sees them wait
for each other.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import programs
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from dask.local import get_sync
from harness import Report, no_wait, options

import dask_dgpu as dgpu
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device, HostDevice
from dask_dgpu.operations.operation import Blocks
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.plans import plans
from dask_dgpu.runtime.prepared import Prepared, prepared
from dask_dgpu.runtime.program import Launch
from graph_opt.model.layout import dealt
from graph_opt.model.names import is_gang

OUT = Path(__file__).parent / "results" / "steps-cpu.jsonl"
SIDE = 64
RANKS = (1, 2)


class Kind(NamedTuple):
    """A program of ``loops`` repetitions, in any namespace, on a matrix and a vector."""

    function: Callable[[Any, Any, Any, int], list[Any]]
    loops: int


def products(xp: Any, a: Any, v: Any, loops: int) -> list[Any]:
    """Return the vector after products with the matrix."""
    for _ in range(loops):
        v = a @ v
    return [v]


def reductions(xp: Any, a: Any, v: Any, loops: int) -> list[Any]:
    """Return sums that each depend on the one before; only results are not joined in one kernel."""
    v = a @ v / SIDE
    totals = [v.sum()]
    for _ in range(loops):
        totals.append((v * totals[-1]).sum())
    return totals


def elementwise(xp: Any, a: Any, v: Any, loops: int) -> list[Any]:
    """Return vectors that each depend on the one before; only results are no joint kernel."""
    results = [a @ v]
    for _ in range(loops):
        results.append(0.5 * results[-1] + v)
    return results


def gradients(xp: Any, a: Any, v: Any, loops: int) -> list[Any]:
    """Return the solution after steps of conjugate gradients, ten at a time."""
    for _ in range(loops):
        v = programs.conjugate_gradient(xp, a, v)
    return [v]


KINDS = {
    "products with a vector": Kind(products, 333),
    "reductions": Kind(reductions, 500),
    "elementwise": Kind(elementwise, 1000),
    "conjugate gradients": Kind(gradients, 10),
}
TENTH = 10
"""How many times fewer repetitions ``--quick`` runs."""


def inputs() -> tuple[Any, Any]:
    """Return a matrix of small norm and a vector."""
    rng = np.random.default_rng(5)
    return rng.random((SIDE, SIDE)) / SIDE, rng.random(SIDE)


def launch_of(kind: Kind, ranks: int, loops: int, xp: Any) -> tuple[Launch, list[list[Any]]]:
    """Return the launch of a kind on rows of the matrix, and the blocks of its inputs."""
    rows = SIDE // ranks
    a, v = (da.from_array(each, chunks=(rows, SIDE)[: each.ndim]) for each in inputs())
    if xp is not np:
        a, v = a.map_blocks(xp.asarray), v.map_blocks(xp.asarray)
    found = kind.function(da, a, v, loops)
    graph = HighLevelGraph.merge(*(each.__dask_graph__() for each in found))
    keys = [key for each in found for key in flatten(each.__dask_keys__())]
    tasks = dask.config.get("array_optimize")(graph, keys)
    (gang,) = [key for key in tasks if is_gang(key)]
    launch, *lists = tasks[gang].args
    staged = [get_sync(tasks, [ref.key for ref in each.args]) for each in lists]
    return launch, [list(blocks) for blocks in staged]


class Ranks:
    """The ranks of a program, which run it again and again."""

    def __init__(
        self,
        launch: Launch,
        staged: list[list[Any]],
        size: int,
        device: Callable[[], Device] = HostDevice,
    ) -> None:
        self.launch, self.size = launch, size
        program, self.todo = launch.program, dict[int, Prepared]()
        owners = [dealt(len(given), size) for given in staged]
        self.plans = plans(program, owners, size)
        self.blocks: list[list[Blocks]] = [
            [
                {
                    index: block
                    for index, block, owner in zip(value.indices(), given, places, strict=True)
                    if owner == rank
                }
                for value, given, places in zip(program.inputs, staged, owners, strict=True)
            ]
            for rank in range(size)
        ]
        self.devices = [device() for _ in range(size)]

    def run(self, profile: cProfile.Profile | None = None) -> tuple[float, float]:
        """Return the seconds of one execution: of the slowest rank, and of the busiest thread."""

        def rank_program(comm: Comm) -> tuple[float, float]:
            mine = [dict(blocks) for blocks in self.blocks[comm.rank]]
            device = self.devices[comm.rank]
            if profile is not None and comm.rank == 0:
                profile.enable()
            start, busy = time.perf_counter(), time.thread_time()
            if comm.rank not in self.todo:
                given = self.launch.program, self.plans, comm.rank, device.kind
                self.todo[comm.rank] = prepared(*given)
            execute(self.todo[comm.rank], self.launch.names, comm, device, mine)
            seconds = time.perf_counter() - start, time.thread_time() - busy
            if profile is not None and comm.rank == 0:
                profile.disable()
            return seconds

        walls, threads = zip(*run_local(self.size, rank_program), strict=True)
        return max(walls), max(threads)


def measure(
    report: Report, name: str, ranks: int, quick: bool, profiled: bool, cuda: bool = False
) -> None:
    """Time one kind of steps on some ranks."""
    xp, device, synchronize = _backend(cuda)
    kind, repetitions = KINDS[name], 1 if quick else 7
    loops = max(1, kind.loops // TENTH) if quick else kind.loops
    a, v = (xp.asarray(each) for each in inputs())
    alone = []
    for _ in range(repetitions):
        start = time.perf_counter()
        kind.function(xp, a, v, loops)
        synchronize()
        alone.append(time.perf_counter() - start)
    with dgpu.enable(local_ranks=ranks, when="always", on_error="raise"):
        launch, staged = launch_of(kind, ranks, loops, xp)
    group, steps = Ranks(launch, staged, ranks, device), len(launch.program.nodes)
    _, first = group.run()
    seconds, busy = map(list, zip(*(group.run() for _ in range(repetitions)), strict=True))
    report.add(
        f"{name}, {ranks} ranks" + ", cuda" * cuda,
        seconds,
        n=SIDE,
        ratio=median(busy) / median(alone),
        steps=steps,
        us_a_step=median(busy) / steps * 1e6,
        wall_us_a_step=median(seconds) / steps * 1e6,
        first_us_a_step=first / steps * 1e6,
        alone_us_a_step=median(alone) / steps * 1e6,
        program_kb=len(launch.program.text[0]) / 1e3,
    )
    if profiled:
        profile = cProfile.Profile()
        group.run(profile)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)


def _backend(cuda: bool) -> tuple[Any, Callable[[], Device], Callable[[], None]]:
    """Return a namespace of arrays, the device of ranks, and what waits for its work."""
    if not cuda:
        return np, HostDevice, no_wait
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    return cupy, CudaDevice, cupy.cuda.Device().synchronize


def main() -> None:
    """Take all figures."""
    parser = options(__doc__, OUT)
    parser.add_argument("--only", choices=KINDS, help="one kind of steps")
    parser.add_argument("--ranks", type=int, choices=RANKS, help="on so many ranks only")
    parser.add_argument("--profile", action="store_true", help="show where rank 0 spends its time")
    parser.add_argument("--cuda", action="store_true", help="on a GPU, as one rank")
    given: argparse.Namespace = parser.parse_args()
    report = Report(given.out, max(RANKS))
    sizes = [given.ranks] if given.ranks else RANKS
    for name in [given.only] if given.only else KINDS:
        for ranks in [1] if given.cuda else sizes:
            measure(report, name, ranks, given.quick, given.profile, given.cuda)
    report.print()


if __name__ == "__main__":
    main()
