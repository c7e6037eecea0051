"""Random faults of a network hit gangs on three hosts of two workers: a line for each.

The hosts are network namespaces of this machine, as in ``tests/hosts``, so it takes root, ``ip``
and ``tc``; run it with the folder of the project in ``PYTHONPATH``. It ends with status 1 if a gang
had another end than the right result or a ``GangError`` in time.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from harness import Report, options
from hosts_harness import RANKS, arguments, hosts

from tests.hosts.conftest import SETTINGS
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
    given = arguments(parser)
    report = Report(given.out, RANKS)
    ends: Counter[str] = Counter()
    with hosts(**SETTINGS) as (network, cluster, client):
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
