"""``da.matmul`` on the GPUs of one host: the rank program, end to end, and what it leaves alone.

One process a GPU, blocks born on the GPUs. Each figure is taken by itself: one
that fails becomes a line with its error. ``--device cpu`` runs the same code on
NumPy blocks, to try it on a machine without GPUs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait
from harness import PLAIN, Report, finished, fresh, no_wait, timed_product

import dask_dgpu as dgpu

RESULTS = Path(__file__).parent / "results"
PLUGIN = "dask-dgpu"
ROUND_TRIPS = 20
RATE_SIDE = {"cuda": 16384, "cpu": 512}
FEW_BYTES = 4096
"""A copy of fewer bytes to the host is a number, not a block."""


# what runs on a worker; its module is imported there without CUDA


def synchronize() -> None:
    """Let the GPU of a worker finish."""
    import cupy

    cupy.cuda.Device().synchronize()


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


def program_seconds(dask_worker: Any) -> float:
    """Return the seconds of the last program on a worker, its communicator not counted."""
    return float(dask_worker.plugins[PLUGIN].last_seconds)


def communicators(dask_worker: Any) -> int:
    """Return how many communicators a worker has made."""
    return int(dask_worker.plugins[PLUGIN].member.connected)


def start_trace(dask_worker: Any) -> None:
    """Record what the GPU of a worker does, whoever asks it to."""
    from torch.profiler import ProfilerActivity, profile

    dask_worker.benchmark_trace = profile(activities=[ProfilerActivity.CUDA])
    dask_worker.benchmark_trace.start()


def stop_trace(dask_worker: Any) -> dict[str, int]:
    """Return what was recorded: numbers of kernels, and bytes copied each way."""
    trace = dask_worker.benchmark_trace
    trace.stop()
    del dask_worker.benchmark_trace
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        return summary_of(json.loads(path.read_text())["traceEvents"])


def summary_of(events: list[dict[str, Any]]) -> dict[str, int]:
    """Sum up a trace.

    Parameters
    ----------
    events : list of dict
        As Chrome's trace format has them.

    Returns
    -------
    dict
        Numbers of kernels and of copies to the host, and bytes by direction.
    """
    found = {"kernels": 0, "to_host_copies": 0, "to_host_bytes": 0, "to_host_largest": 0}
    found |= {"to_device_bytes": 0, "within_bytes": 0}
    for event in events:
        kind, name = event.get("cat"), event.get("name", "")
        nbytes = int(event.get("args", {}).get("bytes", 0))
        if kind == "kernel":
            found["kernels"] += 1
        elif kind == "gpu_memcpy" and "DtoH" in name:
            found["to_host_copies"] += 1
            found["to_host_bytes"] += nbytes
            found["to_host_largest"] = max(found["to_host_largest"], nbytes)
        elif kind == "gpu_memcpy" and "HtoD" in name:
            found["to_device_bytes"] += nbytes
        elif kind == "gpu_memcpy":
            found["within_bytes"] += nbytes
    return found


# the figures


class Bench:
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
        self.rates: dict[str, float] = {}
        self.round_trip = 0.0

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
                    self.host_copies(given.chunks[-1], dtype)
        for dtype in given.dtypes:
            for chunk in given.chunks[::-1]:
                facts = {"n": given.n, "chunk": chunk, "dtype": dtype}
                with report.guard("end to end, dask", **facts):
                    self.plain(chunk, dtype)

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

    def workers(self) -> list[str]:
        """Return the addresses of all workers."""
        return list(self.client.scheduler_info(n_workers=-1)["workers"])

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
        """Multiply end to end; the first use is a figure of its own."""
        n = self.given.n
        facts = {"n": n, "chunk": chunk, "dtype": dtype}
        made: list[list[int]] = []
        seconds: list[float] = []
        programs: list[list[float]] = []
        for _ in range(1 + self.given.repetitions):
            x, y = (fresh(n, chunk, dtype) for _ in range(2))
            taken, product = timed_product(self.client, self.gang, x, y, self.synchronize)
            del x, y, product
            seconds.append(taken)
            made.append(list(self.client.run(communicators).values()))
            if len(programs) == len(seconds) - 1:  # not again where it failed
                with self.report.guard("rank program", **facts):
                    programs.append(list(self.client.run(program_seconds).values()))
        self.report.add("first use, dask_dgpu", seconds[:1], **facts)
        self.report.add("end to end, dask_dgpu", seconds[1:], **facts)
        self.report.add("communicators made, first and later uses", made=made, **facts)
        if len(programs) < len(seconds):
            return
        slowest = [max(times) for times in programs[1:]]
        around = [(e - p) * 1e3 for e, p in zip(seconds[1:], slowest, strict=True)]
        self.report.add(
            "rank program",
            slowest,
            fraction=2 * n**3 / median(slowest) / (len(self.workers()) * self.rates[dtype]),
            end_to_end_more_ms=median(around),
            no_op_ms=self.round_trip * 1e3,
            **facts,
        )

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

    def host_copies(self, chunk: int, dtype: str) -> None:
        """Record what every GPU does during one product."""
        x, y = (fresh(self.given.n, chunk, dtype) for _ in range(2))
        self.client.run(start_trace)
        try:
            timed_product(self.client, self.gang, x, y, self.synchronize)
        finally:
            traces = list(self.client.run(stop_trace).values())
        if not all(trace["kernels"] for trace in traces):
            raise RuntimeError("a trace holds no kernel: nothing was recorded")
        totals = {name: sum(trace[name] for trace in traces) for name in traces[0]}
        totals["to_host_largest"] = max(trace["to_host_largest"] for trace in traces)
        self.report.add(
            "host copies",
            n=self.given.n,
            chunk=chunk,
            dtype=dtype,
            blocks_stay=totals["to_host_largest"] < FEW_BYTES,
            **totals,
        )

    def plain(self, chunk: int, dtype: str) -> None:
        """Multiply by plain Dask."""
        seconds = []
        for _ in range(self.given.plain_repetitions):
            x, y = (fresh(self.given.n, chunk, dtype) for _ in range(2))
            taken, product = timed_product(self.client, PLAIN, x, y, self.synchronize)
            seconds.append(taken)
            del x, y, product
        self.report.add("end to end, dask", seconds, n=self.given.n, chunk=chunk, dtype=dtype)


def _same(value: Any) -> Any:
    return value


@contextmanager
def cluster_of(given: argparse.Namespace) -> Iterator[Client]:
    """Start the cluster that the options ask for.

    Yields
    ------
    Client
        Connected to it.
    """
    if given.device == "cpu":
        with (
            LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    from dask_cuda import LocalCUDACluster

    with (
        dask.config.set({"array.backend": "cupy"}),
        LocalCUDACluster(
            protocol=given.protocol,
            rmm_pool_size=given.rmm_pool,
            rmm_allocator_external_lib_list="cupy",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--protocol", choices=("tcp", "ucx"), default="tcp", help="on GPUs")
    parser.add_argument("--n", type=int, default=32768, help="side of the matrices")
    parser.add_argument("--chunks", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--repetitions", type=int, default=5, help="after one to warm up")
    parser.add_argument("--plain-repetitions", type=int, default=1, help="of plain Dask")
    parser.add_argument("--rmm-pool", default="40GB", help="what a GPU's pool begins with")
    parser.add_argument("--out", type=Path, help="where JSON lines are appended")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", category=da.PerformanceWarning)
    out = given.out or RESULTS / f"summa-{given.device}-{given.protocol}.jsonl"
    with (
        cluster_of(given) as client,
        dgpu.enable(client, when="always", on_error="raise") as enabled,
    ):
        ranks = len(client.scheduler_info(n_workers=-1)["workers"])
        report = Report(out, ranks)
        with report.guard("the run"):
            Bench(client, enabled.optimizer, report, given).run()
        report.print()


if __name__ == "__main__":
    main()
