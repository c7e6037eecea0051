"""Stores: what ranks set reaches the others, and no wait outlasts its limit or its lifetime."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.store import Store, meet
from dask_dgpu.errors import CommAbortedError, CommError


def joined(size: int) -> list[Store]:
    """Return stores of so many ranks, each of which passes its values to all others."""
    stores: list[Store] = []

    def publish(rank: int) -> Any:
        return lambda *value: [s.receive(*value) for r, s in enumerate(stores) if r != rank]

    stores += [Store(publish(rank)) for rank in range(size)]
    return stores


@pytest.mark.slow
@given(size=st.integers(1, 7), texts=st.lists(st.text(), min_size=7, max_size=7))
def test_all_ranks_read_what_all_have_set(size: int, texts: list[str]) -> None:
    stores = joined(size)
    found: dict[int, list[str]] = {}

    def program(rank: int) -> None:
        where: dict[str, Any] = {"rank": rank, "size": size, "limit": 9.0, "lifetime": Lifetime()}
        found[rank] = meet(stores[rank], "first", texts[rank], **where)
        meet(stores[rank], "second", "", **where)

    threads = [threading.Thread(target=program, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(9)
    assert found == dict.fromkeys(range(size), texts[:size])
    assert not any(store._values for store in stores)  # read once, and kept by none


def test_a_wait_ends_by_value_limit_or_abort() -> None:
    store, lifetime = Store(lambda key, value: None), Lifetime()
    assert store.wait(["a", "b"], 0.01, lifetime) == ["a", "b"]
    threading.Timer(0.05, store.receive, ["a", b"1"]).start()
    assert store.wait(["a"], 9.0, lifetime) == []
    assert store.get("a") == b"1"
    threading.Timer(0.05, lifetime.abort, ["enough"]).start()
    begin = time.monotonic()
    with pytest.raises(CommAbortedError, match="enough"):
        store.wait(["a", "b"], None, lifetime)
    assert time.monotonic() - begin < 5
    assert store.wait(["a"], None, lifetime) == []  # what is there needs no wait


def test_missing_ranks_are_named() -> None:
    store = joined(4)[2]
    store.receive("here/0", b"")
    with pytest.raises(
        CommError, match=r"ranks \[1, 3\] of 4 did not come to 'here' within 0.01 s"
    ):
        meet(store, "here", "", rank=2, size=4, limit=0.01, lifetime=Lifetime())
