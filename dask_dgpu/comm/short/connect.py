"""Connecting ranks for short messages."""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.short.link import Link
from dask_dgpu.comm.store import Store, meet
from dask_dgpu.errors import CommError

_HELLO = struct.Struct("<16sI")  # token of the rank that listens, rank that connects
# Seconds between two checks for an abort, while ranks connect.
_CHECK_INTERVAL = 0.1
# Seconds that a peer may take to say who it is.
_HELLO_SECONDS = 1.0


class _Address(NamedTuple):
    host: str
    port: int
    token: bytes


def connect(
    store: Store, *, rank: int, size: int, host: str, timeout: float, lifetime: Lifetime
) -> Mapping[int, Link]:
    """Connect with all other ranks, each of which calls this; return the links by rank.

    Only who knows the token of a rank, from the store, can connect with it.

    Raises
    ------
    CommError
        If not all have connected after ``timeout`` seconds.
    CommAbortedError
        If ``lifetime`` ends first.
    """
    deadline = time.monotonic() + timeout
    token = secrets.token_bytes(16)
    connected: dict[int, socket.socket] = {}
    try:
        with _listener(host, size) as listener:
            name, port = listener.getsockname()[:2]
            texts = meet(
                store,
                "short",
                f"{name} {port} {token.hex()}",
                rank=rank,
                size=size,
                limit=timeout,
                lifetime=lifetime,
            )
            for peer in range(rank):
                connected[peer] = _connect(_address(texts[peer]), rank, deadline)
            while missing := {*range(rank + 1, size)} - connected.keys():
                lifetime.check()
                if time.monotonic() > deadline:
                    raise CommError(f"ranks {sorted(missing)} of {size} did not connect in time")
                connected |= _accept(listener, token, missing)
    except BaseException:
        for each in connected.values():
            each.close()
        raise
    return {peer: Link(each) for peer, each in connected.items()}


def _listener(host: str, size: int) -> socket.socket:
    """Listen on the first address of a host that this machine has."""
    last: OSError | None = None
    for family, *_, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            listener.listen(size)
        except OSError as error:
            listener.close()
            last = error
        else:
            listener.settimeout(_CHECK_INTERVAL)
            return listener
    raise CommError(f"expected an address of this host, got {host!r}: {last}")


def _address(text: str) -> _Address:
    host, port, token = text.split()
    return _Address(host, int(port), bytes.fromhex(token))


def _connect(to: _Address, rank: int, deadline: float) -> socket.socket:
    left = max(_CHECK_INTERVAL, deadline - time.monotonic())
    try:
        connected = socket.create_connection((to.host, to.port), left)
        connected.sendall(_HELLO.pack(to.token, rank))
    except OSError as error:
        raise CommError(f"rank {rank} could not connect to {to.host}: {error}") from error
    return connected


def _accept(listener: socket.socket, token: bytes, missing: set[int]) -> dict[int, socket.socket]:
    """Return the socket of the missing rank that connects next, if one does soon."""
    try:
        connected, _ = listener.accept()
    except TimeoutError:
        return {}
    connected.settimeout(_HELLO_SECONDS)
    with suppress(OSError, struct.error):
        given, rank = _HELLO.unpack(connected.recv(_HELLO.size, socket.MSG_WAITALL))
        if hmac.compare_digest(given, token) and rank in missing:
            return {rank: connected}
    connected.close()
    return {}
