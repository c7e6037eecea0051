"""The hosts of a gang's members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distributed.comm.addressing import parse_address, parse_host_port

from graph_opt.model.cost import Hosts, hosts_of


def by_host(members: Iterable[str]) -> tuple[str, ...]:
    """Order addresses host by host: hosts and the members of each in their present order."""
    hosts: dict[str, list[str]] = {}
    for member in members:
        hosts.setdefault(host_in(member), []).append(member)
    return tuple(member for found in hosts.values() for member in found)


def member_hosts(members: Sequence[str]) -> Hosts:
    """Return the number of members on each host, empty for one host; see :func:`hosts_of`."""
    return hosts_of([host_in(member) for member in members])


def host_in(address: str) -> str:
    """Return the host in an address, of a protocol that this process may lack."""
    _, location = parse_address(address)
    host: str = parse_host_port(location.partition("/")[0], 0)[0]  # inproc has a path
    return host
