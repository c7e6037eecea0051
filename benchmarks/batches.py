"""``dgpu.run`` on a machine without GPUs: a product of host arrays in one batch, and in many.

The many batches come from ``dgpu.memory.limit``: a tenth of what one batch needs on each worker.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from harness import Report, options
from memory_harness import watch, watched

import dask_dgpu as dgpu

RANKS = 4
OUT = Path(__file__).parent / "results" / "batches-cpu.jsonl"


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    n : int
        Side of the matrices.
    share : float
        The limit, as a share of what one batch needs.
    repetitions : int
        Of each way in turn, after one of small matrices.
    """

    n: int
    share: float
    repetitions: int


FULL = Sizes(n=8192, share=0.1, repetitions=1)
QUICK = Sizes(n=256, share=0.5, repetitions=1)
WARM = 64


def product(client: Client, limit: int | None, x: Any, y: Any) -> dict[str, Any]:
    """Multiply within a limit; return seconds, the plan, and the most memory of a worker."""
    settings: dict[str, Any] = {}
    if limit is not None:
        settings = {"memory_limit": limit, "memory_safety_margin": 0}
    with dgpu.enable(client, when="always", on_error="raise", **settings):
        plan = dgpu.plan("matmul", x, y)
        client.run(_watch)
        start = time.perf_counter()
        result = dgpu.run("matmul", x, y, progress=False)
        seconds = time.perf_counter() - start
        grown = max(client.run(watched).values())
    rows = slice(0, len(x), max(1, len(x) // 8))
    error = float(np.abs(result[rows] - x[rows] @ y).max())
    return {"seconds": seconds, "plan": plan, "grown": grown, "error": error}


def _watch(dask_worker: Any) -> None:
    watch("cpu", dask_worker)


def add(
    report: Report,
    sizes: Sizes,
    way: str,
    limit: int | None,
    found: list[dict[str, Any]],
    whole: float,
) -> None:
    """Write the figures of one way; the ratio is to the median without a limit."""
    times, plan = [each["seconds"] for each in found], found[0]["plan"]
    report.add(
        f"product, {way}",
        times,
        n=sizes.n,
        dtype="float64",
        ratio=median(times) / whole,
        limit_bytes=limit,
        batches=plan.batches,
        planned_bytes=plan.peak_bytes,
        host_bytes=plan.host_bytes,
        predicted_s=plan.seconds,
        worker_rss_grown=max(each["grown"] for each in found),
        largest_error=max(each["error"] for each in found),
    )


def main() -> None:
    """Run all and print a table."""
    given = options(__doc__, OUT).parse_args()
    sizes = QUICK if given.quick else FULL
    report = Report(given.out, RANKS)
    rng = np.random.default_rng(0)
    x, y = rng.random((sizes.n, sizes.n)), rng.random((sizes.n, sizes.n))
    with (
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        with dgpu.enable(client, when="always", on_error="raise"):
            needed = dgpu.plan("matmul", x, y).peak_bytes
        limits = {"no limit": None, "limited": int(sizes.share * needed)}
        product(client, None, x[:WARM, :WARM], y[:WARM, :WARM])
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in limits}
        for _ in range(sizes.repetitions):
            for way, limit in limits.items():
                found[way].append(product(client, limit, x, y))
        whole = median(each["seconds"] for each in found["no limit"])
        for way, limit in limits.items():
            add(report, sizes, way, limit, found[way], whole)
    report.print()


if __name__ == "__main__":
    main()
