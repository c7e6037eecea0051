"""The hosts of a cluster's workers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from graph_opt.model.hosts import Hosts, hosts_of


def worker_hosts(workers: Iterable[str]) -> Hosts:
    """Return the number of workers on each host, by their addresses; empty for one host."""
    with suppress(ValueError):  # an address without a host
        return hosts_of(sorted(map(_host, workers)))
    return ()


def _host(worker: str) -> str:
    """Return the host in an address, of a protocol that this process may lack."""
    from distributed.comm.addressing import parse_address, parse_host_port

    _, location = parse_address(worker)
    host: str = parse_host_port(location.partition("/")[0], 0)[0]  # inproc has a path
    return host
