"""The hosts of a cluster's workers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from graph_opt.model.hosts import Hosts, hosts_of


def worker_hosts(workers: Iterable[str]) -> Hosts:
    """Return the number of workers on each host, by their addresses; empty for one host."""
    from dask_dgpu.runtime.scheduler.members import host_in

    with suppress(ValueError):  # an address without a host
        return hosts_of(sorted(map(host_in, workers)))
    return ()
