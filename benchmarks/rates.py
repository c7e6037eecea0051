"""What ``ClusterConfig.detect`` measures: rates of clusters of 1, 2, 4 ... workers.

On GPUs each protocol has clusters of its own, one worker a GPU.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from gpu_harness import cluster_of
from harness import Report

import dask_dgpu as dgpu

RESULTS = Path(__file__).parent / "results"
MOST_WORKERS = 8
RMM_POOL = "8GB"


def rates(report: Report, given: argparse.Namespace, workers: int) -> None:
    """Measure one cluster.

    Parameters
    ----------
    report : Report
        Where the figures go.
    given : argparse.Namespace
        The options: device, and protocol of the cluster.
    workers : int
        Their number.
    """
    facts: dict[str, Any] = {"device": given.device, "protocol": given.protocol}
    facts["workers"] = workers
    with (
        report.guard("detect", **facts),
        cluster_of(given, workers) as client,
        dgpu.enable(client),
    ):
        start = time.perf_counter()
        config = dgpu.cost.ClusterConfig.detect(client)
        first = time.perf_counter() - start
        found = dict(config.facts.figures)
        report.add("detect", [first], transport=config.facts.transport, figures=found, **facts)
        start = time.perf_counter()
        config = dgpu.cost.ClusterConfig.detect(client, again=True)
        found = dict(config.facts.figures)
        seconds = [time.perf_counter() - start]
        report.add("detect again", seconds, figures=found, **facts)


def available(device: str) -> int:
    """Return the most workers: the number of GPUs, or four.

    Parameters
    ----------
    device : str
        ``"cpu"`` or ``"cuda"``.

    Returns
    -------
    int
        The number.
    """
    if device == "cpu":
        return 4
    import cupy

    return min(MOST_WORKERS, int(cupy.cuda.runtime.getDeviceCount()))


def main() -> None:
    """Measure all clusters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--protocols", nargs="+", choices=("tcp", "ucx"), default=["tcp"])
    parser.add_argument("--most", type=int, help="workers; by default all GPUs, or four")
    parser.add_argument("--out", type=Path, help="where JSON lines are appended")
    given = parser.parse_args()
    most = given.most or available(given.device)
    report = Report(given.out or RESULTS / f"rates-{given.device}.jsonl", most)
    given.rmm_pool = RMM_POOL
    for protocol in given.protocols:
        given.protocol, workers = protocol, 1
        while workers <= most:
            rates(report, given, workers)
            workers *= 2


if __name__ == "__main__":
    main()
