"""Listening sockets that somebody else opens, closed to strangers once peers are connected."""

from __future__ import annotations

import socket

import pytest

from dask_dgpu.comm.doors import opened

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


def listener(family: socket.AddressFamily) -> socket.socket:
    return socket.create_server(
        ("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family
    )


def connect(server: socket.socket) -> socket.socket:
    return socket.create_connection(server.getsockname()[:2], 0.3)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_nobody_connects_once_a_door_is_closed(family: socket.AddressFamily) -> None:
    with listener(family) as other:
        server, door = opened(lambda: listener(family))
        with server, connect(server) as peer, server.accept()[0] as accepted:
            door.close()
            with pytest.raises(TimeoutError):
                connect(server)
            peer.sendall(b"connected")
            assert accepted.recv(9) == b"connected"
            connect(other).close()
        door.close()


def test_a_function_that_fails() -> None:
    with pytest.raises(ZeroDivisionError):
        opened(lambda: 1 / 0)


def test_a_door_to_nothing() -> None:
    result, door = opened(lambda: 3)
    door.close()
    assert result == 3
