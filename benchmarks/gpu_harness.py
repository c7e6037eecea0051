"""What the benchmarks on GPUs share: the cluster, clocks and traces on its workers, options.

One process a GPU, blocks born on the GPUs. Each figure is taken by itself: one
that fails becomes a line with its error. ``--device cpu`` runs the same code on
NumPy blocks, to try it on a machine without GPUs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import dask
import dask.array as da
from distributed import Client, LocalCluster, wait
from harness import PLAIN, Report, finished, no_wait, timed
from rate_harness import RATE_SIDE, RATES
from worker_harness import (
    communicators,
    forget_program,
    program_seconds,
    start_trace,
    stop_trace,
    synchronize,
)

import dask_dgpu as dgpu
from dask_dgpu.session.keeping import KeepingNanny

RESULTS = Path(__file__).parent / "results"
ROUND_TRIPS = 20
FEW_BYTES = 4096
"""A copy of fewer bytes to the host is a number, not a block."""

Arrays = tuple[da.Array, ...]
Function = Callable[..., da.Array]


@dataclass
class Uses:
    """What was found in repeated calls of one function; the first call comes first.

    Parameters
    ----------
    seconds : list of float
        From the call to the last block.
    programs : list of list of float
        Seconds of the program on each rank; shorter than ``seconds`` where that failed.
    made : list of list of int
        How many communicators each worker has made so far.
    noted : list
        What the caller wanted to know of each result.
    """

    seconds: list[float] = field(default_factory=list)
    programs: list[list[float]] = field(default_factory=list)
    made: list[list[int]] = field(default_factory=list)
    noted: list[Any] = field(default_factory=list)

    @property
    def slowest(self) -> list[float]:
        """Seconds of the slowest rank in all calls but the first; empty where one failed."""
        known = len(self.programs) == len(self.seconds)
        return [max(times) for times in self.programs[1:]] if known else []


class GpuBench:
    """One cluster with dask_dgpu enabled, and the figures taken on it.

    Parameters
    ----------
    client : Client
        The cluster.
    gang : callable
        The optimizer of dask_dgpu.
    report : Report
        Where figures go.
    given : argparse.Namespace
        The options.
    """

    def __init__(
        self,
        client: Client,
        gang: Callable[..., Any],
        report: Report,
        given: argparse.Namespace,
    ) -> None:
        self.client, self.gang, self.report, self.given = client, gang, report, given
        self.synchronize = synchronize if given.device == "cuda" else no_wait
        self.round_trip = 0.0
        self.rates: dict[str, float] = {}

    def run(self) -> None:
        """Take all figures."""
        raise NotImplementedError

    def no_op(self) -> None:
        """Send every worker a task that does nothing."""
        workers = self.workers()
        seconds = []
        for turn in range(ROUND_TRIPS):
            start = time.perf_counter()
            futures = [
                self.client.submit(_same, (turn, worker), workers=[worker], pure=False)
                for worker in workers
            ]
            wait(futures)
            seconds.append(time.perf_counter() - start)
        self.round_trip = median(seconds)
        self.report.add("no-op on every worker", seconds)
        seconds = []
        for _ in range(ROUND_TRIPS):
            start = time.perf_counter()
            self.client.run(self.synchronize)
            seconds.append(time.perf_counter() - start)
        self.report.add("synchronize every worker", seconds)

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

    def workers(self) -> list[str]:
        """Return the addresses of all workers."""
        return list(self.client.scheduler_info(n_workers=-1)["workers"])

    def uses(
        self,
        prefix: str,
        make: Callable[[], Arrays],
        function: Function,
        note: Callable[[Arrays, da.Array], Any] = lambda arrays, result: None,
        **facts: Any,
    ) -> Uses:
        """Compute a function of fresh arrays end to end; the first use is a figure of its own.

        Parameters
        ----------
        prefix : str
            What the names of the figures begin with.
        make : callable
            Returns new arrays, on the workers.
        function : callable
            Makes a Dask array of them.
        note : callable
            Called with arrays and result, after the clock has stopped.
        **facts
            What every figure says.

        Returns
        -------
        Uses
            For figures that follow from it.
        """
        found = Uses()
        for _ in range(1 + self.given.repetitions):
            arrays = make()
            self.client.run(forget_program)
            taken, result = timed(self.client, self.gang, function, arrays, self.synchronize)
            found.noted.append(note(arrays, result))
            del arrays, result
            found.seconds.append(taken)
            found.made.append(list(self.client.run(communicators).values()))
            if len(found.programs) == len(found.seconds) - 1:  # not again where it failed
                with self.report.guard(f"{prefix}rank program", **facts):
                    found.programs.append(self.programs())
        add, made = self.report.add, found.made
        add(f"{prefix}first use, dask_dgpu", found.seconds[:1], **facts)
        self.figure(f"{prefix}end to end, dask_dgpu", found.seconds[1:], **facts)
        add(f"{prefix}communicators made, first and later uses", made=made, **facts)
        return found

    def figure(self, what: str, seconds: list[float], **facts: Any) -> None:
        """Write a figure of repetitions; benchmarks add to it what follows from the seconds."""
        self.report.add(what, seconds, **facts)

    def computed(self, function: Function, *arrays: da.Array) -> da.Array:
        """Return a function of arrays, on the workers, by dask_dgpu."""
        with dask.config.set(array_optimize=self.gang):
            return finished(function(*arrays).persist())

    def programs(self) -> list[float]:
        """Return the seconds of the program that has just run, on each worker."""
        seconds = list(self.client.run(program_seconds).values())
        if not any(seconds):
            raise RuntimeError("no gang ran: the work was left to plain Dask")
        return seconds

    def rank_program(self, prefix: str, found: Uses, **facts: Any) -> None:
        """Write the seconds of the program in all calls but the first, where it is known."""
        if not found.slowest:
            return
        pairs = zip(found.seconds[1:], found.slowest, strict=True)
        self.figure(
            f"{prefix}rank program",
            found.slowest,
            **facts,
            end_to_end_more_ms=median((end - program) * 1e3 for end, program in pairs),
            no_op_ms=self.round_trip * 1e3,
        )

    def host_copies(
        self,
        prefix: str,
        make: Callable[[], Arrays],
        function: Function,
        few: int = FEW_BYTES,
        **facts: Any,
    ) -> None:
        """Record what every GPU does during one call; copies of few bytes are no blocks."""
        arrays = make()
        with traced(self.client) as traces:
            timed(self.client, self.gang, function, arrays, self.synchronize)
        if not all(trace["kernels"] for trace in traces):
            raise RuntimeError("a trace holds no kernel: nothing was recorded")
        totals = {name: sum(trace[name] for trace in traces) for name in traces[0]}
        totals["to_host_largest"] = max(trace["to_host_largest"] for trace in traces)
        stay = totals["to_host_largest"] < few
        self.report.add(f"{prefix}host copies", blocks_stay=stay, **facts, **totals)

    def plain(
        self, prefix: str, make: Callable[[], Arrays], function: Function, **facts: Any
    ) -> None:
        """Compute by plain Dask."""
        seconds = []
        for _ in range(self.given.plain_repetitions):
            arrays = make()
            taken, result = timed(self.client, PLAIN, function, arrays, self.synchronize)
            seconds.append(taken)
            del arrays, result
        self.figure(f"{prefix}end to end, dask", seconds, **facts)


@contextmanager
def traced(client: Client) -> Iterator[list[dict[str, Any]]]:
    """Record what every GPU does in the block.

    Yields
    ------
    list of dict
        What :func:`stop_trace` returns, one for each worker, once the block has ended.
    """
    traces: list[dict[str, Any]] = []
    client.run(start_trace)
    try:
        yield traces
    finally:
        traces += client.run(stop_trace).values()


def _same(value: Any) -> Any:
    return value


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`cluster_of`, for work that also runs on CPUs and takes little."""
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--protocol", choices=("tcp", "ucx"), default="tcp", help="on GPUs")
    parser.add_argument("--rmm-pool", default="4GB", help="what a GPU's pool begins with")


@contextmanager
def cluster_of(given: argparse.Namespace, workers: int | None = None) -> Iterator[Client]:
    """Start the cluster that the options ask for; by default four workers, or one per GPU.

    Workers keep freed memory as those of ``dgpu.start`` do.

    Yields
    ------
    Client
        Connected to it.
    """
    if given.device == "cpu":
        with (
            LocalCluster(
                n_workers=workers or 4,
                threads_per_worker=1,
                dashboard_address=":0",
                worker_class=KeepingNanny,
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    from dask_cuda import LocalCUDACluster

    with (
        dask.config.set({"array.backend": "dgpu"}),
        LocalCUDACluster(
            n_workers=workers,
            protocol=given.protocol,
            rmm_pool_size=given.rmm_pool,
            rmm_allocator_external_lib_list="cupy",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks on GPUs have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--protocol", choices=("tcp", "ucx"), default="tcp", help="on GPUs")
    parser.add_argument("--repetitions", type=int, default=5, help="after one to warm up")
    parser.add_argument("--plain-repetitions", type=int, default=1, help="of plain Dask")
    parser.add_argument("--rmm-pool", default="40GB", help="what a GPU's pool begins with")
    parser.add_argument("--out", type=Path, help="where JSON lines are appended")
    return parser


def run(bench: type[GpuBench], stem: str, given: argparse.Namespace) -> None:
    """Start a cluster, take all figures on it and print a table."""
    warnings.filterwarnings("ignore", category=da.PerformanceWarning)
    out = given.out or RESULTS / f"{stem}-{given.device}-{given.protocol}.jsonl"
    with (
        cluster_of(given) as client,
        dgpu.enable(client, when="always", on_error="raise") as enabled,
    ):
        ranks = len(client.scheduler_info(n_workers=-1)["workers"])
        report = Report(out, ranks)
        with report.guard("the run"):
            bench(client, enabled.optimizer, report, given).run()
        report.print()
