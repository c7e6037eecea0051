"""What ``ClusterConfig.detect`` measures: rates of clusters of 1, 2, 4 ... workers.

On GPUs each protocol has clusters of its own, one worker a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster
from harness import Report

import dask_dgpu as dgpu

RESULTS = Path(__file__).parent / "results"
MOST_WORKERS = 8


@contextmanager
def cluster_of(device: str, protocol: str, workers: int) -> Iterator[Client]:
    """Start a cluster of some workers.

    Parameters
    ----------
    device : str
        ``"cpu"`` or ``"cuda"``.
    protocol : str
        ``"tcp"`` or ``"ucx"``.
    workers : int
        Their number.

    Yields
    ------
    Client
        Connected to it.
    """
    options = {"protocol": protocol, "dashboard_address": ":0"}
    if device == "cpu":
        with (
            LocalCluster(n_workers=workers, threads_per_worker=1, **options) as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    from dask_cuda import LocalCUDACluster

    with (
        LocalCUDACluster(
            n_workers=workers,
            rmm_pool_size="8GB",
            rmm_allocator_external_lib_list="cupy",
            **options,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def rates(report: Report, device: str, protocol: str, workers: int) -> None:
    """Measure one cluster.

    Parameters
    ----------
    report : Report
        Where the figures go.
    device, protocol, workers : str, str, int
        See :func:`cluster_of`.
    """
    facts: dict[str, Any] = {"device": device, "protocol": protocol, "workers": workers}
    with (
        report.guard("detect", **facts),
        cluster_of(device, protocol, workers) as client,
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
    for protocol in given.protocols:
        workers = 1
        while workers <= most:
            rates(report, given.device, protocol, workers)
            workers *= 2


if __name__ == "__main__":
    main()
