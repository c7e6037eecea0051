"""Listening sockets of a library, closed to strangers once peers are connected."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from dask_dgpu.comm.doors import close_doors
from dask_dgpu.comm.gloo import GlooComm
from dask_dgpu.comm.store import Store

pytestmark = [
    pytest.mark.filterwarnings("error::ResourceWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="a socket filter of Linux"),
]

HOSTS = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
families = pytest.mark.parametrize("family", HOSTS)


def listener(family: socket.AddressFamily) -> socket.socket:
    return socket.create_server((HOSTS[family], 0), family=family)


def name_of(server: socket.socket) -> bytes:
    """Return a socket's name in C, with noise in its last bytes."""
    host, port = server.getsockname()[:2]
    flow = b"" if server.family == socket.AF_INET else bytes(4)
    start = struct.pack("H", server.family) + struct.pack("!H", port) + flow
    return start + socket.inet_pton(server.family, host) + b"noise"


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, 0.3)


def reach(server: socket.socket) -> socket.socket:
    return connect(server.getsockname()[:2])


@families
def test_nobody_connects_once_a_door_is_closed(family: socket.AddressFamily) -> None:
    with (
        listener(family) as other,
        listener(family) as server,
        reach(server) as peer,
        server.accept()[0] as accepted,
    ):
        close_doors(b"some" + name_of(server))
        with pytest.raises(TimeoutError):
            reach(server)
        peer.sendall(b"connected")
        assert accepted.recv(9) == b"connected"
        reach(other).close()


def test_sockets_of_others_keep_how_they_block() -> None:
    with listener(socket.AF_INET) as other:
        socket.setdefaulttimeout(1.0)
        try:
            close_doors(b"")
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(other.fileno())
        reach(other).close()


class Servers:
    """Servers of a user, which a thread opens one after the other."""

    def __init__(self) -> None:
        self.opened: list[socket.socket] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._open)

    def __enter__(self) -> Servers:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        for each in self.opened:
            each.close()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _open(self) -> None:
        while not self._over.wait(0.001):
            self.opened.append(listener(socket.AF_INET))


def ports() -> set[int]:
    """Return the ports on which this process listens."""
    found = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}


def two_ranks(host: str) -> list[GlooComm]:
    stores: list[Store] = []
    stores += [Store(lambda key, value: stores[1].receive(key, value))]
    stores += [Store(lambda key, value: stores[0].receive(key, value))]

    def join(rank: int) -> GlooComm:
        return GlooComm(stores[rank], rank=rank, size=2, host=host, timeout=20.0)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(join, range(2)))


@families
def test_only_doors_of_gloo_are_closed(family: socket.AddressFamily) -> None:
    before = ports()
    with Servers() as servers:
        comms = two_ranks(HOSTS[family])
        servers.stop()
        own = [each.getsockname()[1] for each in servers.opened]
        doors = ports() - before - set(own)
        try:
            assert own
            assert len(doors) == 2
            for port in own:
                connect((HOSTS[socket.AF_INET], port)).close()
            for port in doors:
                with pytest.raises(TimeoutError):
                    connect((HOSTS[family], port))
        finally:
            for comm in comms:
                comm.close()
