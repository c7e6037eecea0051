"""The hosts of a gang's ranks, and the seconds of transfers within and between them.

Ranks are numbered host by host. So the number of ranks on each host says where each rank is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from graph_opt.model.cost import Machine

Ints = np.ndarray[Any, np.dtype[np.int64]]
Hosts = tuple[int, ...]
"""Number of ranks on each host; empty if ranks are on one host, or it is not known where."""


def hosts_of(names: Sequence[str]) -> Hosts:
    """Return the number of ranks on each host, from the host of each rank.

    The result is empty for one host, and if ranks are not numbered host by host.
    """
    runs = [(name, len(list(ranks))) for name, ranks in groupby(names)]
    known = 1 < len(runs) == len({name for name, _ in runs})
    return tuple(ranks for _, ranks in runs) if known else ()


def host_by_rank(hosts: Hosts) -> Ints:
    """Return the host of each rank."""
    return np.repeat(np.arange(len(hosts)), hosts)


def between_hosts(counts: Ints, hosts: Hosts) -> Ints:
    """Return the part of ``counts[sender, receiver]`` that crosses between hosts."""
    host = host_by_rank(hosts)
    return np.where(host[:, None] != host[None, :], counts, 0)


def transfer_seconds(counts: Ints, machine: Machine) -> float:
    """Predict the seconds in which ranks send each other ``counts[sender, receiver]`` bytes.

    On one host the busiest rank counts. On several, the busiest rank within its host and then the
    host with the busiest link.
    """
    if not machine.spread_over(len(counts)):
        return _busiest(counts) / machine.bandwidth
    between, host = between_hosts(counts, machine.hosts), host_by_rank(machine.hosts)
    ways = (np.bincount(host, between.sum(axis=axis)) for axis in (0, 1))
    return _busiest(counts - between) / machine.bandwidth + link_seconds(machine, *ways)


def link_seconds(machine: Machine, *by_host: Any) -> float:
    """Return the seconds of the busiest link, from the bytes that each host gets, or sends."""
    most = max(float(np.max(nbytes, initial=0)) for nbytes in by_host)
    return most / (machine.host_bandwidth or machine.bandwidth)


def _busiest(counts: Ints) -> int:
    """Return the most bytes that a rank sends or receives."""
    return int(np.maximum(counts.sum(axis=1), counts.sum(axis=0)).max(initial=0))


def relays(hosts: Hosts) -> Ints:
    """Return the rank that relays what a rank sends to another; -1 within a host.

    ``relays(hosts)[sender, receiver]`` is as in :mod:`dask_dgpu.comm.two_level`.
    """
    host, counts = host_by_rank(hosts), np.array(hosts)
    first = np.cumsum(counts) - counts
    found = first[host][:, None] + np.arange(len(host))[None, :] % counts[host][:, None]
    return np.where(host[:, None] != host[None, :], found, -1)


def relayed_bytes(counts: Ints, hosts: Hosts) -> Ints:
    """Return the bytes that each rank relays of ``counts[sender, receiver]``."""
    relay = relays(hosts)
    there = relay >= 0
    return np.bincount(relay[there], counts[there], len(counts)).astype(np.int64)
