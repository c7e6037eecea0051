"""Connecting: only ranks do, and the missing ones are named."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.short import connect as connecting
from dask_dgpu.comm.short.connect import connect
from dask_dgpu.comm.short.link import Link
from dask_dgpu.comm.store import Store
from dask_dgpu.errors import CommAbortedError, CommError


def stores(size: int) -> list[Store]:
    """Return joined stores."""
    joined: list[Store] = []

    def publish(rank: int) -> Callable[[str, bytes], None]:
        def to_others(key: str, value: bytes) -> None:
            for peer, store in enumerate(joined):
                if peer != rank:
                    store.receive(key, value)

        return to_others

    joined += [Store(publish(rank)) for rank in range(size)]
    return joined


def connected(
    size: int, ranks: range | None = None, *, host: str = "127.0.0.1", **options: Any
) -> list[Mapping[int, Link]]:
    """Return the links of each rank."""
    given = {"host": host, "timeout": 5.0, "lifetime": Lifetime(), "size": size, **options}
    joined = stores(size)
    with ThreadPoolExecutor(size) as pool:
        found = [
            pool.submit(connect, joined[rank], rank=rank, **given) for rank in ranks or range(size)
        ]
    return [each.result() for each in found]


def close(links: list[Mapping[int, Link]]) -> None:
    for each in links:
        for link in each.values():
            link.close()


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_all_pairs(size: int, host: str) -> None:
    links = connected(size, host=host)
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
    joined, lifetime = stores(2), Lifetime()
    joined[1].set("short/1", b"127.0.0.1 1 00")
    with pytest.raises(CommError, match=r"ranks \[1\] of 2 did not connect in time"):
        connect(joined[0], rank=0, size=2, host="127.0.0.1", timeout=0.3, lifetime=lifetime)


def test_a_rank_that_does_not_listen_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    joined = stores(2)
    joined[0].set("short/0", f"127.0.0.1 {port} 00".encode())
    with pytest.raises(CommError, match=r"rank 1 could not connect to 127\.0\.0\.1"):
        connect(joined[1], rank=1, size=2, host="127.0.0.1", timeout=1.0, lifetime=Lifetime())


def test_an_abort_ends_connecting() -> None:
    joined, lifetime = stores(2), Lifetime()
    joined[1].set("short/1", b"127.0.0.1 1 00")
    threading.Timer(0.1, lifetime.abort, ["enough"]).start()
    began = time.monotonic()
    with pytest.raises(CommAbortedError, match="enough"):
        connect(joined[0], rank=0, size=2, host="127.0.0.1", timeout=60.0, lifetime=lifetime)
    assert time.monotonic() - began < 10


def test_an_address_of_another_host() -> None:
    with pytest.raises(CommError, match=r"expected an address of this host, got '192\.0\.2\.1'"):
        connect(stores(2)[0], rank=0, size=2, host="192.0.2.1", timeout=1.0, lifetime=Lifetime())
