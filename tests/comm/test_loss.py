"""Ranks in processes when one of them dies, stops or never comes."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from benchmarks.relay import Relay
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.errors import CommError
from tests.comm.processes import RankPool
from tests.comm.transports import connected

LARGE = 2**23  # numbers, more than a connection buffers

pytestmark = pytest.mark.parametrize(
    "kind", [pytest.param("dask", marks=pytest.mark.slow), "tcp", "ucx"]
)


@pytest.fixture(scope="module")
def relay():
    return Relay()


@pytest.fixture
def pool():
    pool = RankPool(3)
    yield pool
    pool.stop()


def _connect(kind, rank, address, name, timeout=30.0):
    return connected(kind, rank, 3, address, name, timeout)


def _threads_end(seconds: float = 10.0) -> None:
    late = time.monotonic() + seconds
    names = ("tcp", "ucx", "all_reduce", "exchange")
    while waiting := [t for t in threading.enumerate() if t.name.startswith(names)]:
        assert time.monotonic() < late, waiting
        time.sleep(0.01)


def _call(comm: Comm, how: str) -> None:
    if how == "collective":
        comm.all_reduce(np.ones(100_000)).wait()
    else:
        comm.exchange([(1, np.ones(4))], [(1, np.ones(4))]).wait()


def _await_victim(rank, kind, address, how, sent, abort=None):
    """Rank 1 gets a signal; return how long the others took to raise and to close."""
    comm = _connect(kind, rank, address, f"{kind}-{how}-{sent}-{abort}")
    comm.barrier()
    if rank == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), sent)
    start = time.monotonic()
    if abort is not None:
        threading.Timer(abort, comm.abort, ["enough"]).start()
    with pytest.raises(CommError, match=None if abort is None else "enough"):
        _call(comm, how)
    raised = time.monotonic()
    comm.close()
    if abort is not None:
        _threads_end()
    return raised - start, time.monotonic() - raised


@pytest.mark.slow
@pytest.mark.parametrize("how", ["collective", "exchange"])
def test_killed_peer(pool, relay, kind, how):
    pool.start(_await_victim, kind, relay.address, how, signal.SIGKILL)
    for raised, closed in pool.results([0, 2]):
        assert raised < 2
        assert closed < 1


def _lose_a_message_that_has_begun(rank, kind, address):
    """Rank 1 stops while it sends; return the seconds until nothing of it is left on rank 0."""
    comm = _connect(kind, rank, address, f"{kind}-begun", timeout=1.0)
    comm.barrier()
    if rank == 1:
        time.sleep(0.2)  # rank 0 waits already, so the message begins at once
        comm.exchange([(0, np.ones(LARGE))], [])
        os.kill(os.getpid(), signal.SIGSTOP)
    start = time.monotonic()
    if rank == 0:
        threading.Timer(0.5, comm.abort, ["enough"]).start()
        with pytest.raises(CommError, match="enough"):
            comm.exchange([], [(1, np.empty(LARGE))]).wait()
        assert time.monotonic() - start < 2
        _threads_end(30)
    comm.close()
    return time.monotonic() - start


@pytest.mark.slow
def test_a_message_that_has_begun_leaves_nothing(pool, relay, kind):
    """The receiver's thread, and the memory of the message, are free at last."""
    pool.start(_lose_a_message_that_has_begun, kind, relay.address)
    assert pool.results([0], limit=40)[0] < 2


def _await_abort(rank, kind, address):
    comm = _connect(kind, rank, address, f"{kind}-abort")
    comm.barrier()
    time.sleep(0.2)  # all have left the barrier
    start = time.monotonic()
    if rank == 1:
        comm.abort("enough")
    else:
        with pytest.raises(CommError):
            _call(comm, "collective")
    assert time.monotonic() - start < 2
    comm.close()


@pytest.mark.slow
def test_abort_of_a_peer_is_noticed(pool, relay, kind):
    pool.run(_await_abort, kind, relay.address)


@pytest.mark.slow
def test_stopped_peer_holds_up_nobody_after_an_abort(pool, relay, kind):
    """The abort alone ends the wait, and the threads that wait for the peer."""
    pool.start(_await_victim, kind, relay.address, "collective", signal.SIGSTOP, 0.3)
    for raised, closed in pool.results([0, 2]):
        assert 0.2 < raised < 2
        assert closed < 1


def _abort_beside_a_lost_rank(rank, kind, address):
    """Rank 0 waits for rank 2, which sends nothing; rank 1, its neighbour, is lost."""
    comm = _connect(kind, rank, address, f"{kind}-beside")
    comm.barrier()
    time.sleep(0.2)  # all have left the barrier
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    if rank == 0:
        threading.Timer(0.2, comm.abort, ["enough"]).start()
        start = time.monotonic()
        with pytest.raises(CommError, match="enough"):
            comm.exchange([], [(2, np.ones(4))]).wait()
        took = time.monotonic() - start
        comm.close()
        return took
    time.sleep(4)
    comm.close()
    return None


@pytest.mark.slow
def test_an_abort_ends_a_wait_although_a_neighbour_is_lost(pool, relay, kind):
    pool.start(_abort_beside_a_lost_rank, kind, relay.address)
    (took,) = pool.results([0])
    assert 0.1 < took < 2


def _come_late(rank, kind, address):
    """Rank 1 takes longer than it takes to connect; nobody else is held to that."""
    comm = _connect(kind, rank, address, f"{kind}-late", timeout=2.0)
    if rank == 1:
        time.sleep(3.0)
    x = np.ones(1)
    comm.all_reduce(x).wait()
    assert x[0] == 3
    comm.close()


@pytest.mark.slow
def test_a_slow_rank_is_waited_for(pool, relay, kind):
    pool.run(_come_late, kind, relay.address)


def test_missing_rank_is_named(relay, kind):
    with pytest.raises(CommError, match=r"ranks \[1, 2\] of 3 did not come"):
        _connect(kind, 0, relay.address, f"{kind}-lonely", 0.3)
