"""``dgpu.run`` on one GPU: host arrays through a worker, beside what PCIe and the GPU allow.

Products and transforms are larger than a limit of the GPU's memory, so they go in batches. Pinned
copies in both directions, copies on the host and a product of arrays on the GPU are measured in the
same run; the shares are of the time that they alone would take. ``--workers`` more than one takes
one larger product, within all of the memory. ``--quick`` has small sizes, and without CuPy the same
code runs on workers with NumPy, beside copies in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from distributed import Client
from gpu_harness import cluster_of
from harness import Report, options
from rate_harness import RATES

import dask_dgpu as dgpu
from dask_dgpu.batches.sinks import copy

OUT = Path(__file__).parent / "results" / "batches-gpu.jsonl"


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    product, transform, beside, several : int
        Sides of the matrices of the product, the transform, the product beside torch, and that of
        several workers.
    values : int
        Numbers of the sum.
    limit : int
        Bytes of the GPU's memory for product and transform.
    rate, copy : int
        Side of the product on the GPU, and bytes of a pinned copy.
    repetitions : int
        Of small work, after one that is not counted; large work runs once.
    """

    product: int
    transform: int
    beside: int
    several: int
    values: int
    limit: int
    rate: int
    copy: int
    repetitions: int


FULL = Sizes(65536, 65536, 16384, 131072, 16 << 30, 8 << 30, 16384, 1 << 30, 5)
QUICK = Sizes(384, 256, 128, 256, 1 << 20, 1 << 19, 128, 1 << 20, 1)


def pinned_rates(nbytes: int, repetitions: int) -> tuple[float, float]:
    """Return bytes per second to the GPU and from it, with pinned memory; run it on the worker."""
    if find_spec("cupy") is None:
        host, device = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
        ways: list[Callable[[], None]] = [
            lambda: np.copyto(device, host),
            lambda: np.copyto(host, device),
        ]
        synchronize: Callable[[], Any] = lambda: None  # noqa: E731
    else:
        import cupy

        memory = cupy.cuda.alloc_pinned_memory(nbytes)
        host = np.frombuffer(memory, np.uint8, nbytes)
        device = cupy.empty(nbytes, np.uint8)
        ways = [lambda: device.set(host), lambda: device.get(out=host)]
        synchronize = cupy.cuda.Device().synchronize
    forth, back = (nbytes / median(_timed(way, synchronize, repetitions)) for way in ways)
    return forth, back


def host_rate(nbytes: int, repetitions: int) -> float:
    """Return bytes per second of copies in this process by as many threads as ``dgpu.run`` has."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    return nbytes / median(_timed(partial(copy, target, source), lambda: None, repetitions))


def torch_seconds(n: int, repetitions: int) -> list[float]:
    """Return the seconds of a product of pinned host matrices by torch, copies included."""
    import torch

    cuda = torch.cuda.is_available() and find_spec("cupy") is not None
    device = "cuda" if cuda else "cpu"
    x, y, out = (torch.ones((n, n), pin_memory=cuda) for _ in range(3))

    def work() -> None:
        out.copy_(x.to(device, non_blocking=True) @ y.to(device, non_blocking=True))

    return _timed(work, torch.cuda.synchronize if cuda else lambda: None, repetitions)


def _timed(
    work: Callable[[], Any], synchronize: Callable[[], Any], repetitions: int
) -> list[float]:
    seconds = []
    for _ in range(1 + repetitions):
        synchronize()
        start = time.perf_counter()
        work()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def numbers(shape: tuple[int, ...], seed: int) -> Any:
    """Return random float32 numbers: some rows, repeated, because 64 GiB would take a minute."""
    x = np.empty(shape, "float32")
    rows = -(-shape[0] // 64)
    x[:rows] = np.random.default_rng(seed).random((rows, *shape[1:]), "float32")
    for lo in range(rows, shape[0], rows):
        copy(x[lo : lo + rows], x[: min(rows, shape[0] - lo)])
    return x


@dataclass(frozen=True)
class Bench:
    """Workers, what one of them can do, and the figures taken on them."""

    client: Client
    report: Report
    sizes: Sizes
    workers: int
    to_device: float
    from_device: float
    on_host: float
    rate: float

    def call(
        self,
        what: str,
        least: float,
        op: str,
        *arrays: Any,
        limit: int | None = None,
        repetitions: int = 1,
        **options: Any,
    ) -> Any:
        """Time a call, and return its result.

        ``share`` is the ``least`` seconds that the limits allow over its own.
        """
        found = None
        settings: dict[str, Any] = {}
        if limit is not None:
            settings = {"memory_limit": limit, "memory_safety_margin": 0}
        with (
            self.report.guard(what),
            dgpu.enable(self.client, when="always", on_error="raise", **settings),
        ):
            plan = dgpu.plan(op, *arrays, **options)
            seconds = []
            for _ in range(repetitions):
                start = time.perf_counter()
                found = dgpu.run(op, *arrays, progress=False, **options)
                seconds.append(time.perf_counter() - start)
            self.report.add(
                what,
                seconds,
                dtype=str(arrays[0].dtype),
                shape=list(arrays[0].shape),
                workers=self.workers,
                limit_bytes=limit,
                batches=plan.batches,
                passes=plan.passes,
                host_bytes=plan.host_bytes,
                planned_bytes=plan.peak_bytes,
                least_s=least,
                share=least / median(seconds),
            )
        return found

    def copies(self, to_device: int, from_device: int) -> float:
        """Return the least seconds for copies, which may go in both directions at a time.

        The arrays are not pinned, so each byte is also copied on the host.
        """
        host = (to_device + from_device) / self.on_host
        forth, back = (self.workers * rate for rate in (self.to_device, self.from_device))
        return max(to_device / forth, from_device / back, host)

    def product(self) -> None:
        """Multiply matrices that do not fit, beside the GPU's own rate."""
        self._product(self.sizes.product, self.sizes.limit)

    def product_of_several(self) -> None:
        """Multiply matrices within the memory of all workers, beside their rate."""
        with dgpu.enable(self.client):
            dgpu.warmup(self.client)  # they connect
        self._product(self.sizes.several, None)

    def _product(self, n: int, limit: int | None) -> None:
        x, y = (numbers((n, n), seed) for seed in range(2))
        work = 2 * n**3 / (self.workers * self.rate)
        least = max(work, self.copies(2 * x.nbytes, x.nbytes))
        found = self.call("product", least, "matmul", x, y, limit=limit)
        for i, j in np.random.default_rng(2).integers(n, size=(8, 2)):
            np.testing.assert_allclose(found[i, j], x[i] @ y[:, j].copy(), rtol=1e-4)

    def transform(self) -> None:
        """Transform a matrix that does not fit: each pass moves all of it both ways."""
        n = self.sizes.transform
        x = numbers((n, 2 * n), 0).view("complex64")
        least = 2 * self.copies(x.nbytes, x.nbytes)
        self.call("fft2", least, "fft2", x, limit=self.sizes.limit)

    def sum(self) -> None:
        """Add numbers that are on the host."""
        x = numbers((self.sizes.values,), 0)
        self.call("sum", self.copies(x.nbytes, 0), "sum", x, limit=self.sizes.limit)

    def beside_torch(self) -> None:
        """Multiply matrices that fit; the ratio is to torch with pinned copies."""
        n, repetitions = self.sizes.beside, self.sizes.repetitions
        with self.report.guard("product, torch"):
            seconds = torch_seconds(n, repetitions)
            self.report.add("product, torch, pinned copies", seconds, n=n, dtype="float32")
            x = np.ones((n, n), "float32")
            what = "product beside torch"
            self.call(what, median(seconds), "matmul", x, x.copy(), repetitions=repetitions)


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__, OUT)
    parser.add_argument("--rmm-pool", default="12GB", help="what the GPU's pool begins with")
    parser.add_argument("--protocol", choices=("tcp", "ucx"), default="tcp", help="on GPUs")
    parser.add_argument("--workers", type=int, default=1, help="GPUs")
    given = parser.parse_args()
    sizes = QUICK if given.quick else FULL
    given.device = "cpu" if find_spec("cupy") is None else "cuda"
    report = Report(given.out, 1)
    with cluster_of(given, given.workers) as client:
        forth, back = _on_workers(client, pinned_rates, sizes.copy, sizes.repetitions)
        libraries = RATES[given.device].values()
        rate = max(_on_workers(client, each, sizes.rate, "float32")[0] for each in libraries)
        report.add("pinned copies", to_device=forth / 1e9, from_device=back / 1e9)
        on_host = host_rate(sizes.copy, sizes.repetitions)
        report.add("copies on the host", rate=on_host / 1e9)
        report.add("product on the GPU", n=sizes.rate, dtype="float32", tflops=rate / 1e12)
        bench = Bench(client, report, sizes, given.workers, forth, back, on_host, rate)
        one = (bench.product, bench.transform, bench.sum, bench.beside_torch)
        for figure in one if given.workers == 1 else (bench.product_of_several,):
            figure()
    report.print()


def _on_workers(client: Client, function: Callable[..., Any], *arguments: Any) -> list[float]:
    """Call a function of rates on all workers at once; return the mean of each rate."""
    found = client.run(function, *arguments).values()
    return [float(rate) for rate in np.mean([np.atleast_1d(each) for each in found], axis=0)]


if __name__ == "__main__":
    main()
