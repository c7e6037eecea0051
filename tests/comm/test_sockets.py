"""Sockets of our own: each message reaches its receive, whoever reads, and only ranks connect."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.comm import sockets
from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.errors import CommAbortedError, CommError
from tests.comm.test_store import joined
from tests.support.profiles import examples

LARGE = 300_000
"""Bytes of a message that is sent once its receiver expects it."""


def connected(size: int, host: str = "127.0.0.1") -> list[Comm]:
    """Return the communicator of each rank."""
    given: dict[str, Any] = {"size": size, "host": host, "timeout": 5.0}
    with ThreadPoolExecutor(size) as pool:
        found = [
            pool.submit(sockets.connect, store, rank=rank, lifetime=Lifetime(), **given)
            for rank, store in enumerate(joined(size))
        ]
    return [each.result() for each in found]


@pytest.fixture
def ends() -> Iterator[list[Comm]]:
    ends = connected(2)
    yield ends
    for end in ends:
        end.close()


def message(number: int, nbytes: int = 8) -> np.ndarray:
    return np.full(nbytes, number % 251, np.uint8)


def own_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("tcp")]


def assert_threads_end() -> None:
    deadline = time.monotonic() + 5
    while own_threads():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@given(sizes=st.lists(st.sampled_from([1, 9, 4000, 140_000, LARGE]), max_size=15))
@examples(25)
def test_any_sequence_of_messages(sizes: list[int]) -> None:
    here, there = connected(2)
    into = [np.zeros(nbytes, np.uint8) for nbytes in sizes]
    works = [here.exchange([], [(1, each)]) for each in into]
    sent = [there.exchange([(0, message(at, n))], []) for at, n in enumerate(sizes)]
    for work in [*reversed(works), *sent]:
        work.wait()
    for number, each in enumerate(into):
        np.testing.assert_array_equal(each, message(number, each.size))
    here.close()
    there.close()


def test_more_than_the_kernel_takes_does_not_block_the_sender(ends: list[Comm]) -> None:
    here, there = ends
    count, nbytes = 400, 60_000
    for number in range(count):
        there.exchange([(0, message(number, nbytes))], []).wait()
    for number in range(count):
        into = np.zeros(nbytes, np.uint8)
        here.exchange([], [(1, into)]).wait()
        assert (into == number % 251).all()


@pytest.mark.parametrize("order", [1, -1])
def test_one_thread_reads_for_others(order: int) -> None:
    here, *others = ends = connected(5)
    into = {other.rank: np.zeros(8, np.uint8) for other in others}
    works = {rank: here.exchange([], [(rank, each)]) for rank, each in into.items()}
    with ThreadPoolExecutor(len(into)) as pool:
        waiting = {rank: pool.submit(work.wait) for rank, work in works.items()}
        time.sleep(0.05)
        for other in others[::order]:
            other.exchange([(0, message(other.rank))], []).wait()
            waiting[other.rank].result(5)  # although others still wait
            assert (into[other.rank] == other.rank).all()
    for end in ends:
        end.close()


def test_a_large_message_of_another_size_is_an_error_of_its_receive(ends: list[Comm]) -> None:
    here, there = ends
    receive = here.exchange([], [(1, np.zeros(LARGE, np.uint8))])
    send = there.exchange([(0, message(1, LARGE + 1))], [])
    with pytest.raises(CommError, match=f"expected {LARGE} bytes, got {LARGE + 1}"):
        receive.wait()
    send.wait()


@pytest.mark.parametrize("early", [False, True])
def test_a_message_of_another_size_is_an_error_of_its_receive(
    ends: list[Comm], early: bool
) -> None:
    here, there = ends
    send = there.exchange([(0, message(1, 5))], []) if early else None
    receive = here.exchange([], [(1, np.zeros(8, np.uint8))])
    if send is None:
        there.exchange([(0, message(1, 5))], []).wait()
    with pytest.raises(CommError, match="expected 8 bytes, got 5"):
        receive.wait()


@pytest.mark.parametrize("how", ["close", "abort"])
def test_the_end_of_a_rank_with_unsent_messages_leaves_no_thread(how: str) -> None:
    here, there = connected(2)
    for _ in range(200):
        here.exchange([(1, message(1, 60_000))], [])
    assert "tcp-send" in own_threads()
    if how == "abort":
        here.abort("enough")
    else:
        here.close()
        for _ in range(200):  # what was sent arrives
            there.exchange([], [(0, message(0, 60_000))]).wait()
    there.close()
    assert_threads_end()


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_all_pairs(size: int, host: str) -> None:
    ends = connected(size, host)
    others = {end.rank: [p for p in range(size) if p != end.rank] for end in ends}
    works, into = [], {}
    for rank, peers in others.items():
        into[rank] = {peer: np.zeros(1, np.uint8) for peer in peers}
        sends = [(peer, message(10 * rank + peer, 1)) for peer in peers]
        works.append(ends[rank].exchange(sends, list(into[rank].items())))
    for work in works:
        work.wait()
    for rank, buffers in into.items():
        assert {p: b[0] for p, b in buffers.items()} == {p: 10 * p + rank for p in others[rank]}
    for end in ends:
        end.close()


def test_strangers_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """One says nothing, one too little, one has another token."""
    monkeypatch.setattr(sockets, "_HELLO_SECONDS", 0.1)
    original, strangers = sockets._connect, []

    def connect_after_strangers(to: str, rank: int, deadline: float) -> socket.socket:
        host, port, _ = to.split()
        for hello in (b"", b"hello", bytes(16) + b"\x02\0\0\0"):
            strangers.append(socket.create_connection((host, int(port))))
            strangers[-1].sendall(hello)
        return original(to, rank, deadline)

    monkeypatch.setattr(sockets, "_connect", connect_after_strangers)
    for end in connected(3):
        end.close()
    for stranger in strangers:
        stranger.close()


def connect_as(rank: int, other: bytes, **given: Any) -> Comm:
    """Connect with a rank that has published an address, and then does nothing."""
    stores = joined(2)
    stores[1 - rank].set(f"streams/{1 - rank}", other)
    terms = {"host": "127.0.0.1", "timeout": 0.3, "lifetime": Lifetime()} | given
    return sockets.connect(stores[rank], rank=rank, size=2, **terms)


def test_a_missing_rank_is_named() -> None:
    with pytest.raises(CommError, match=r"ranks \[1\] of 2 did not connect in time"):
        connect_as(0, b"127.0.0.1 1 00")


def test_a_rank_that_does_not_listen_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(CommError, match=r"rank 1 could not connect to 127\.0\.0\.1"):
        connect_as(1, f"127.0.0.1 {port} 00".encode())


def test_a_rank_that_ends_before_it_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is reset; its socket is closed, not left to the garbage collector."""
    reset = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def connect(to: tuple[str, int], timeout: float) -> socket.socket:
            reset.append(socket.socket())
            reset[0].settimeout(timeout)
            reset[0].connect(to)
            accepted, _ = listener.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            return reset[0]

        monkeypatch.setattr(socket, "create_connection", connect)
        with pytest.raises(CommError, match=r"rank 1 could not connect to 127\.0\.0\.1"):
            connect_as(1, f"127.0.0.1 {port} {bytes(16).hex()}".encode())
    assert reset[0].fileno() == -1


def test_an_abort_ends_connecting() -> None:
    lifetime = Lifetime()
    threading.Timer(0.1, lifetime.abort, ["enough"]).start()
    began = time.monotonic()
    with pytest.raises(CommAbortedError, match="enough"):
        connect_as(0, b"127.0.0.1 1 00", timeout=60.0, lifetime=lifetime)
    assert time.monotonic() - began < 10
    assert_threads_end()


def test_an_address_of_another_host() -> None:
    with pytest.raises(CommError, match=r"expected an address of this host, got '192\.0\.2\.1'"):
        connect_as(0, b"", host="192.0.2.1")
