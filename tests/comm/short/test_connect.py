"""Connecting: only ranks do, and the missing ones are named."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.short import connect as connecting
from dask_dgpu.comm.short.connect import connect
from dask_dgpu.comm.short.link import Link
from dask_dgpu.errors import CommAbortedError, CommError
from tests.comm.test_store import joined


def connected(size: int, host: str = "127.0.0.1") -> list[Mapping[int, Link]]:
    """Return the links of each rank."""
    given: dict[str, Any] = {"host": host, "timeout": 5.0, "lifetime": Lifetime(), "size": size}
    stores = joined(size)
    with ThreadPoolExecutor(size) as pool:
        found = [pool.submit(connect, stores[rank], rank=rank, **given) for rank in range(size)]
    return [each.result() for each in found]


def close(links: list[Mapping[int, Link]]) -> None:
    for each in links:
        for link in each.values():
            link.close()


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_all_pairs(size: int, host: str) -> None:
    links = connected(size, host)
    for rank, each in enumerate(links):
        assert each.keys() == {*range(size)} - {rank}
        for peer, link in each.items():
            link.send(1, np.array([10 * rank + peer], np.uint8), "send")
    for rank, each in enumerate(links):
        for peer, link in each.items():
            into = np.zeros(1, np.uint8)
            link.receive(1, into, "receive").wait(5)
            assert into[0] == 10 * peer + rank
    close(links)


def test_strangers_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """One says nothing, one too little, one has another token."""
    monkeypatch.setattr(connecting, "_HELLO_SECONDS", 0.1)
    original, strangers = connecting._connect, []

    def connect_after_strangers(to: Any, rank: int, deadline: float) -> socket.socket:
        for hello in (b"", b"hello", bytes(16) + b"\x02\0\0\0"):
            strangers.append(socket.create_connection((to.host, to.port)))
            strangers[-1].sendall(hello)
        return original(to, rank, deadline)

    monkeypatch.setattr(connecting, "_connect", connect_after_strangers)
    links = connected(3)
    assert all(len(each) == 2 for each in links)
    close(links)
    for stranger in strangers:
        stranger.close()


def test_a_missing_rank_is_named() -> None:
    """It has published its address, and then does not connect."""
    stores, lifetime = joined(2), Lifetime()
    stores[1].set("short/1", b"127.0.0.1 1 00")
    with pytest.raises(CommError, match=r"ranks \[1\] of 2 did not connect in time"):
        connect(stores[0], rank=0, size=2, host="127.0.0.1", timeout=0.3, lifetime=lifetime)


def test_a_rank_that_does_not_listen_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stores = joined(2)
    stores[0].set("short/0", f"127.0.0.1 {port} 00".encode())
    with pytest.raises(CommError, match=r"rank 1 could not connect to 127\.0\.0\.1"):
        connect(stores[1], rank=1, size=2, host="127.0.0.1", timeout=1.0, lifetime=Lifetime())


def test_an_abort_ends_connecting() -> None:
    stores, lifetime = joined(2), Lifetime()
    stores[1].set("short/1", b"127.0.0.1 1 00")
    threading.Timer(0.1, lifetime.abort, ["enough"]).start()
    began = time.monotonic()
    with pytest.raises(CommAbortedError, match="enough"):
        connect(stores[0], rank=0, size=2, host="127.0.0.1", timeout=60.0, lifetime=lifetime)
    assert time.monotonic() - began < 10


def test_an_address_of_another_host() -> None:
    with pytest.raises(CommError, match=r"expected an address of this host, got '192\.0\.2\.1'"):
        connect(joined(2)[0], rank=0, size=2, host="192.0.2.1", timeout=1.0, lifetime=Lifetime())
