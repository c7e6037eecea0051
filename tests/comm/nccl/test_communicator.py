"""What NCCL keeps for a thread, when a communicator ends in the midst of a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.relay import Relay, join_relay
from tests.comm.processes import RankPool

pytestmark = pytest.mark.multigpu


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    pool = RankPool(2)
    yield pool
    pool.stop()


@pytest.fixture(scope="module")
def relay() -> Relay:
    return Relay()


def _connected(rank: int, address: str, name: str) -> Any:
    from dask_dgpu.comm.nccl.communicator import NcclComm

    given = {"rank": rank, "size": 2, "device": rank, "timeout": 20.0}
    return NcclComm(join_relay(address, name), **given)


def _swapped(comm: Any) -> int:
    """Send this rank's number to the other rank, in two messages; return what has come."""
    import cupy

    peer, sent, received = 1 - comm.rank, cupy.full(2, comm.rank), cupy.full(2, -1)
    halves = slice(0, 1), slice(1, 2)
    comm.exchange([(peer, sent[h]) for h in halves], [(peer, received[h]) for h in halves]).wait()
    (number,) = set(received.tolist())
    return int(number)


def _at_message(comm: Any, number: int, call: Callable[[], None]) -> None:
    """Make a communicator call a function before it posts its next message of this number."""
    tensor, posted = comm._tensor, []

    def tensor_of(data: Any) -> Any:
        posted.append(data)
        if len(posted) == number:
            call()
        return tensor(data)

    comm._tensor = tensor_of


def _fail() -> None:
    raise RuntimeError("a message cannot be posted")


def _after_a_failure(rank: int, address: str) -> int:
    import cupy

    from dask_dgpu.errors import CommError

    with cupy.cuda.Device(rank):
        comm = _connected(rank, address, "failed")
        assert _swapped(comm) == 1 - rank
        _at_message(comm, 2, _fail)
        with pytest.raises(CommError, match="a message cannot be posted"):
            _swapped(comm)
        comm.abort("it failed")
        return _swapped(_connected(rank, address, "after the failure"))


def _after_an_abort(rank: int, address: str) -> int:
    import cupy

    from dask_dgpu.errors import CommAbortedError

    with cupy.cuda.Device(rank):
        comm = _connected(rank, address, "aborted")
        assert _swapped(comm) == 1 - rank
        aborts = threading.Thread(target=comm.abort, args=["in the midst"])

        def abort() -> None:
            aborts.start()
            aborts.join()  # a thread of its own aborts NCCL, once this call has returned

        _at_message(comm, 2, abort)
        with pytest.raises(CommAbortedError, match="in the midst"):
            _swapped(comm)
        return _swapped(_connected(rank, address, "after the abort"))


@pytest.mark.parametrize("rank_main", [_after_a_failure, _after_an_abort])
def test_the_next_communicator_of_the_thread_works(
    pool: RankPool, relay: Relay, rank_main: Callable[[int, str], int]
) -> None:
    assert pool.run(rank_main, relay.address) == [1, 0]
