"""Three hosts of two workers, joined at 1 Gbit/s: gangs in two levels, in one, and plain Dask.

The hosts are network namespaces of this machine, as in ``tests/hosts``, so it takes root, ``ip``
and ``tc``; run it with the folder of the project in ``PYTHONPATH``. Beside seconds it writes the
bytes that the busiest host received over its link, with all headers and all of Dask's messages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import dask
import dask.array as da
from distributed import Client
from harness import PLAIN, Report, fresh, no_wait, options, timed
from hosts_harness import RANKS, arguments, hosts

import dask_dgpu as dgpu
from dask_dgpu.cost import ClusterConfig
from tests.hosts.cluster import WORKING
from tests.hosts.network import RATE, Network

OUT = Path(__file__).parent / "results" / "hosts-linked.jsonl"
WAYS = ("two levels", "one level", "dask")


@dataclass(frozen=True)
class Case:
    """A program of one array, whose shape and chunks are given."""

    name: str
    shape: tuple[int, int]
    chunks: tuple[int, int]
    function: Callable[[da.Array], da.Array]


def cases(n: int) -> list[Case]:
    """Return the programs for square arrays of side ``n``, and sums of as many elements.

    Parameters
    ----------
    n : int
        A multiple of 8.

    Returns
    -------
    list of Case
        A product, a transform, a rechunk, a stencil and a sum.
    """
    rows, tiles = (n // 8, n), (n // 4, n // 4)
    return [
        Case("product", (n, n), tiles, lambda x: x @ x),
        Case("fft2", (n, n), rows, lambda x: da.fft.fft2(x)),
        Case("rechunk", (n, n), rows, lambda x: x.rechunk((n, n // 8))),
        Case("20 sweeps", (n, n), tiles, lambda x: dgpu.stencil(x, iterations=20)),
        Case("sum over axis 0", (24, n * n // 24), (4, n * n // 24), lambda x: dgpu.sum(x, axis=0)),
    ]


def received(network: Network) -> dict[str, int]:
    """Return the bytes that each host has received over its link."""
    path = "/sys/class/net/eth0/statistics/rx_bytes"
    return {host: int(network.at(host, "cat", path)) for host in WORKING}


def measure(report: Report, network: Network, client: Client, case: Case, repetitions: int) -> None:
    """Run a program each way in turn, and write what it took.

    Parameters
    ----------
    report : Report
        Where the figures go.
    network : Network
        The hosts.
    client : Client
        With the plugin enabled.
    case : Case
        The program.
    repetitions : int
        Their number; one more comes before.
    """
    optimizer = dask.config.get("array_optimize")
    levels = ClusterConfig.detect(client)
    one_level = _without_hosts(levels)
    found: dict[str, list[tuple[float, int]]] = {way: [] for way in WAYS}
    for _ in range(repetitions + 1):
        for way in WAYS:
            (one_level if way == "one level" else levels).use(client)
            x = fresh(case.shape, case.chunks, "float64")
            before = received(network)
            seconds, result = timed(
                client, PLAIN if way == "dask" else optimizer, case.function, (x,), no_wait
            )
            after = received(network)
            found[way].append((seconds, max(after[host] - before[host] for host in WORKING)))
            del x, result
    levels.use(client)
    plain = median(seconds for seconds, _ in found["dask"][1:])
    for way, figures in found.items():
        taken = [seconds for seconds, _ in figures[1:]]
        report.add(
            f"{case.name}, {way}",
            taken,
            n=case.shape[0],
            dtype="float64",
            ratio=median(taken) / plain,
            link_bytes=int(median(nbytes for _, nbytes in figures[1:])),
        )


def _without_hosts(config: ClusterConfig) -> ClusterConfig:
    """Return the figures without those of links between hosts."""
    figures = tuple((k, v) for k, v in config.facts.figures if k != "host_bandwidth")
    return ClusterConfig(replace(config.facts, figures=figures))


def main() -> None:
    """Measure all programs."""
    parser: argparse.ArgumentParser = options(__doc__, OUT)
    parser.add_argument("--rate", default=RATE, help="of links between hosts, as tc reads it")
    given = arguments(parser)
    report = Report(given.out, RANKS)
    settings = {"when": "always", "on_error": "raise", "cost_measure": False}
    with hosts(**settings) as (network, _, client):
        for host in WORKING:
            network.shape(host, given.rate)
        figures = ClusterConfig.detect(client).facts.figures
        report.add("rates", rate=given.rate, figures=dict(figures))
        for case in cases(256 if given.quick else 2048):
            measure(report, network, client, case, 1 if given.quick else 5)
    report.print()


if __name__ == "__main__":
    main()
