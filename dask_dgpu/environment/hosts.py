"""The hosts of a cluster's workers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from graph_opt.model.hosts import Hosts, hosts_of


def worker_hosts(workers: Iterable[str]) -> Hosts:
    """Return the number of workers on each host, by their addresses; empty for one host."""
    from distributed.comm.addressing import get_address_host

    with suppress(ValueError):  # an address without a host
        return hosts_of(sorted(map(get_address_host, workers)))
    return ()
