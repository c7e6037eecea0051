"""Short messages: each reaches its receive, whoever reads, and only ranks connect."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.comm import gloo
from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.gloo import Link, Receive, connect_links
from dask_dgpu.errors import CommAbortedError, CommError
from tests.comm.test_store import joined
from tests.support.profiles import examples

Ends = tuple[Link, Link]


def pair() -> Ends:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return Link(one), Link(other)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = pair()
    yield ends
    for end in ends:
        end.close()


def message(number: int, nbytes: int = 8) -> np.ndarray:
    return np.full(nbytes, number % 251, np.uint8)


def post(link: Link, tag: int, nbytes: int = 8) -> tuple[Receive, np.ndarray]:
    into = np.zeros(nbytes, np.uint8)
    return link.receive(tag, into, "receive"), into


@pytest.mark.parametrize("early", [False, True])
def test_messages_are_matched_by_tag_and_order(ends: Ends, early: bool) -> None:
    here, there = ends
    tags = [3, 5, 3, 4]
    if early:
        for number, tag in enumerate(tags):
            there.send(tag, message(number), "send")
        last, into = post(here, 6)
        there.send(6, message(9), "send")
        last.wait(5)  # all others have arrived by now
        assert (into == 9).all()
    posted = [post(here, tag) for tag in (5, 3, 4, 3)]
    assert all(receive.done is early for receive, _ in posted)
    if not early:
        for number, tag in enumerate(tags):
            there.send(tag, message(number), "send")
    for receive, _ in posted:
        receive.wait(5)
    assert [into[0] for _, into in posted] == [1, 0, 3, 2]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 9, 4000, 70_000])), max_size=15)
)
@examples(25)
def test_any_sequence_of_messages(sizes: list[tuple[int, int]]) -> None:
    here, there = pair()
    try:
        posted = [post(here, tag, nbytes) for tag, nbytes in sizes]
        for number, (tag, nbytes) in enumerate(sizes):
            there.send(tag, message(number, nbytes), "send")
        for receive, _ in reversed(posted):
            receive.wait(5)
        for number, (_, into) in enumerate(posted):
            np.testing.assert_array_equal(into, message(number, into.size))
    finally:
        here.close()
        there.close()


def test_more_than_the_kernel_takes_does_not_block_the_sender(ends: Ends) -> None:
    here, there = ends
    count, nbytes = 400, 60_000
    for number in range(count):
        there.send(1, message(number, nbytes), "send")
    for number in range(count):
        receive, into = post(here, 1, nbytes)
        receive.wait(10)
        assert (into == number % 251).all()


@pytest.mark.parametrize("order", [1, -1])
def test_one_thread_reads_for_others(ends: Ends, order: int) -> None:
    here, there = ends
    tags = range(6)
    posted = [post(here, tag) for tag in tags]
    with ThreadPoolExecutor(len(tags)) as pool:
        waiting = [pool.submit(receive.wait, 10) for receive, _ in posted]
        time.sleep(0.05)
        for tag in tags[::order]:
            there.send(tag, message(tag), "send")
            waiting[tag].result(5)  # although others still wait
    assert [into[0] for _, into in posted] == list(tags)


def test_a_late_message(ends: Ends) -> None:
    receive, into = post(ends[0], 1)
    began = time.monotonic()
    with pytest.raises(CommError, match="receive did not finish within the time limit"):
        receive.wait(0.1)
    assert 0.1 <= time.monotonic() - began < 5
    ends[1].send(1, message(7), "send")
    receive.wait(5)
    assert into[0] == 7


@pytest.mark.parametrize("who", [0, 1])
def test_losing_a_link_ends_all_waits(ends: Ends, who: int) -> None:
    posted = [post(ends[0], tag)[0] for tag in range(3)]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(receive.wait, None) for receive in posted]
        time.sleep(0.05)
        ends[who].lose()
        for each in waiting:
            with pytest.raises(CommError, match="receive failed: the peer is lost"):
                each.result(5)
    with pytest.raises(CommError, match="receive failed: the peer is lost"):
        post(ends[0], 9)[0].wait(None)
    with pytest.raises(CommError, match="send failed: the peer is lost"):
        ends[0].send(1, message(1), "send")


def test_closing_ends_a_thread_that_still_sends(ends: Ends) -> None:
    for _ in range(200):
        ends[0].send(1, message(1, 60_000), "send")
    assert any(thread.name == "short" for thread in threading.enumerate())
    ends[0].close()
    deadline = time.monotonic() + 5
    while any(thread.name == "short" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("early", [False, True])
def test_a_message_of_another_size_is_an_error_of_its_receive(ends: Ends, early: bool) -> None:
    """Also if the wait for another message reads it."""
    here, there = ends
    posted = [] if early else [post(here, 1, 8)]
    there.send(1, message(1, 5), "send")
    there.send(2, message(2), "send")
    other, into = post(here, 2)
    other.wait(5)
    assert (into == 2).all()
    receive, _ = posted[0] if posted else post(here, 1, 8)
    with pytest.raises(CommError, match="receive failed: expected 8 bytes, got 5"):
        receive.wait(5)


def connected(size: int, host: str = "127.0.0.1") -> list[Mapping[int, Link]]:
    """Return the links of each rank."""
    given: dict[str, Any] = {"host": host, "timeout": 5.0, "lifetime": Lifetime(), "size": size}
    stores = joined(size)
    with ThreadPoolExecutor(size) as pool:
        found = [
            pool.submit(connect_links, stores[rank], rank=rank, **given) for rank in range(size)
        ]
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
    monkeypatch.setattr(gloo, "_HELLO_SECONDS", 0.1)
    original, strangers = gloo._connect, []

    def connect_after_strangers(to: str, rank: int, deadline: float) -> socket.socket:
        host, port, _ = to.split()
        for hello in (b"", b"hello", bytes(16) + b"\x02\0\0\0"):
            strangers.append(socket.create_connection((host, int(port))))
            strangers[-1].sendall(hello)
        return original(to, rank, deadline)

    monkeypatch.setattr(gloo, "_connect", connect_after_strangers)
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
        connect_links(stores[0], rank=0, size=2, host="127.0.0.1", timeout=0.3, lifetime=lifetime)


def test_a_rank_that_does_not_listen_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stores = joined(2)
    stores[0].set("short/0", f"127.0.0.1 {port} 00".encode())
    with pytest.raises(CommError, match=r"rank 1 could not connect to 127\.0\.0\.1"):
        connect_links(stores[1], rank=1, size=2, host="127.0.0.1", timeout=1.0, lifetime=Lifetime())


def test_an_abort_ends_connecting() -> None:
    stores, lifetime = joined(2), Lifetime()
    stores[1].set("short/1", b"127.0.0.1 1 00")
    threading.Timer(0.1, lifetime.abort, ["enough"]).start()
    began = time.monotonic()
    with pytest.raises(CommAbortedError, match="enough"):
        connect_links(stores[0], rank=0, size=2, host="127.0.0.1", timeout=60.0, lifetime=lifetime)
    assert time.monotonic() - began < 10


def test_an_address_of_another_host() -> None:
    with pytest.raises(CommError, match=r"expected an address of this host, got '192\.0\.2\.1'"):
        connect_links(
            joined(2)[0], rank=0, size=2, host="192.0.2.1", timeout=1.0, lifetime=Lifetime()
        )
