"""The address at which ranks of other hosts reach this one."""

from __future__ import annotations

import ipaddress
import socket

from distributed.comm.addressing import get_address_host
from distributed.utils import get_ip

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def own_host(worker: str, scheduler: str) -> str:
    """Return a numeric address of this host at which other hosts can reach it.

    This is where Dask's address of the ``worker`` points, if it is an address of this host that
    others can use. A hosts' file may say 127.0.1.1 for the own name, and an address behind a
    translation is none of this host. Then it is the address from which this host reaches the
    ``scheduler``, also the address of a Dask process.
    """
    towards = get_address_host(scheduler)
    local = get_ip(next(map(str, _addresses(towards)), towards))
    for host in _addresses(get_address_host(worker)):
        # with a scheduler on a loopback address, all of the cluster is on this host
        reachable = not host.is_loopback or ipaddress.ip_address(local).is_loopback
        if reachable and _is_own(host):
            return str(host)
    return local


def _addresses(host: str) -> list[Address]:
    """Return the addresses of a host; none if this host cannot resolve its name."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [ipaddress.ip_address(info[4][0]) for info in infos]


def _is_own(address: Address) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
