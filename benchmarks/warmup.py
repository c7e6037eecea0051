"""First uses after a warm-up: each program of the suite once, and again with new inputs.

Caches of compiled kernels are empty at the start, and live as long as the run. ``--examples``
warms up with the programs themselves, of small inputs; by default the usual computations are the
warm-up. ``--cold`` leaves it out, to show what it saves.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from distributed import Client
from gpu_harness import add_cluster, cluster_of
from harness import Report, options
from suite import QUICK, Suite
from suite_harness import PROGRAMS, Sizes

import dask_dgpu as dgpu

RESULTS = Path(__file__).parent / "results"
LENGTHS = {"cpu": (2**12, 512), "cuda": (2**20, 16384)}
CACHES = "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR"
SEED = 1000
"""Of the first inputs; examples have smaller ones."""


def warm_up(client: Client, suite: Suite, names: Iterable[str]) -> float:
    """Return the seconds of a warm-up with programs, or with the usual computations."""
    suite.enable(ours=True)
    examples = [graph for name in names for graph in suite.graphs(PROGRAMS[name], 0)]
    start = time.perf_counter()
    dgpu.warmup(client, *examples)
    return time.perf_counter() - start


def warmed(given: argparse.Namespace) -> str:
    """Return what the warm-up is, in a word."""
    return "none" if given.cold else "examples" if given.examples else "usual"


def uses(suite: Suite, name: str, later: int) -> list[float]:
    """Return the seconds of the first use of a program, and of later ones."""
    seeds = range(SEED, SEED + 1 + later)
    return [suite.run(PROGRAMS[name], seed, ours=True)[0] for seed in seeds]


def run(client: Client, given: argparse.Namespace, report: Report) -> None:
    """Take all figures."""
    workers = int(report.facts["machine"]["ranks"])
    dgpu.cost.ClusterConfig.detect(client)
    small = Suite(client, given, Sizes(workers, *QUICK))
    names = given.only or list(PROGRAMS)
    if not given.cold:
        report.add("warm-up", [warm_up(client, small, names if given.examples else ())])
    lengths = QUICK if given.quick else LENGTHS[given.device]
    suite = Suite(client, given, Sizes(workers, *lengths))
    more: dict[str, float] = {}
    for name in names:
        with report.guard(name):
            first, *later = uses(suite, name, given.repetitions)
            more[name] = first - median(later)
            report.add(name, later, first=first, more=more[name])
    slowest = max(more, key=lambda name: more[name])
    report.add("all programs", most_more=more[slowest], slowest=slowest)


def main() -> None:
    """Run all and print a table."""
    parser = options(__doc__, RESULTS / "warmup.jsonl")
    parser.add_argument("--repetitions", type=int, default=2, help="after the first use")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="PROGRAM")
    parser.add_argument("--examples", action="store_true", help="the programs are the warm-up")
    parser.add_argument("--cold", action="store_true", help="without a warm-up")
    add_cluster(parser)
    given = parser.parse_args()
    given.when = "cheaper"
    with tempfile.TemporaryDirectory() as caches:
        os.environ.update(dict.fromkeys(CACHES, caches))
        with cluster_of(given) as client, dgpu.enable(client):
            report = Report(given.out, len(client.scheduler_info(n_workers=-1)["workers"]))
            report.facts["warm_up"] = warmed(given)
            run(client, given, report)
            report.print()


if __name__ == "__main__":
    main()
