"""Ranks as threads: how long they wait for each other."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from dask_dgpu.errors import CommError
from tests.comm.transports import on_threads


@pytest.mark.parametrize("how", ["collective", "receive", "send"])
def test_a_rank_that_has_ended_is_not_waited_for(how: str) -> None:
    """The programs of the ranks disagree; nothing but the end of one of them shows it."""

    def program(comm: Any) -> None:
        if comm.rank == 1:
            return
        one = np.ones(1)
        if how == "collective":
            comm.all_reduce(one).wait()
        elif comm.rank == 0 and how == "receive":
            comm.exchange([], [(1, one)]).wait()
        elif comm.rank == 0:
            comm.exchange([(1, one)], []).wait()

    begin = time.monotonic()
    with pytest.raises(CommError, match=r"on rank (0|2) waits for rank 1"):
        on_threads(3, program)
    assert time.monotonic() - begin < 5


def test_what_a_rank_sent_before_it_ended_arrives() -> None:
    def program(comm: Any) -> float:
        x = np.full(1, 7.0)
        if comm.rank == 1:
            comm.exchange([(0, x)], [])
            return 0.0
        time.sleep(0.1)
        got = np.zeros(1)
        comm.exchange([], [(1, got)]).wait()
        return float(got[0])

    assert on_threads(2, program) == [7.0, 0.0]


def test_an_interrupt_of_the_caller_ends_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def program(comm: Any) -> None:
        if comm.rank:
            ended.wait(10)
            return
        try:
            comm.barrier()
        finally:
            ended.set()

    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "rank-0":
            raise KeyboardInterrupt
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        on_threads(2, program)
    assert ended.wait(5)
