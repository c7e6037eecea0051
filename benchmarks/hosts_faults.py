"""Random faults of a network hit gangs on three hosts of two workers: a line for each.

The hosts are network namespaces of this machine, as in ``tests/hosts``, so it takes root, ``ip``
and ``tc``; run it with the folder of the project in ``PYTHONPATH``. It ends with status 1 if a gang
had another end than the right result or a ``GangError`` in time.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from harness import Report, options

import dask_dgpu as dgpu
from tests.hosts.cluster import six_workers
from tests.hosts.conftest import HOSTS, SETTINGS
from tests.hosts.network import impossible, made
from tests.hosts.random_faults import outcomes

OUT = Path(__file__).parent / "results" / "hosts-faults.jsonl"


def main() -> int:
    """Cause the faults, and write what became of each gang.

    Returns
    -------
    int
        The status with which the process ends.
    """
    parser = options(__doc__, OUT)
    parser.add_argument("--count", type=int, default=100, help="of faults")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")
    given = parser.parse_args()
    why = impossible()
    if why is not None:
        parser.error(f"expected a machine on which hosts can be made: {why}")
    report = Report(given.out, 6)
    ends: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        made(HOSTS) as network,
        six_workers(network, Path(folder)) as cluster,
        network.on("client"),
        cluster.client() as client,
        dgpu.enable(client, **SETTINGS),
    ):
        count = 2 if given.quick else given.count
        for outcome in outcomes(network, cluster, client, count, given.seed):
            facts = asdict(outcome)
            what = f"{facts.pop('algorithm')}, {facts['fault']}"
            report.add(what, [facts.pop("seconds")], **facts)
            ends[outcome.end.partition(":")[0] if outcome.good else "wrong"] += 1
    report.add("all faults", ends=dict(ends), seed=given.seed)
    report.print()
    return int(ends["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
