"""UCX: what is on its way when ranks leave, and what is left of a communicator."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from benchmarks.relay import Relay
from dask_dgpu.comm import ucx
from dask_dgpu.comm.store import meet
from dask_dgpu.errors import CommAbortedError, CommError
from tests.comm.processes import RankPool
from tests.comm.transports import connected

TINY, LARGE = 1, 1_000_000


@pytest.fixture(scope="module")
def relay():
    return Relay()


@pytest.fixture(scope="module")
def pool():
    pool = RankPool(3)
    yield pool
    pool.stop()


def _threads_end(seconds=5.0):
    late = time.monotonic() + seconds
    while any(thread.name == "ucx" for thread in threading.enumerate()):
        assert time.monotonic() < late, "a thread goes on"
        time.sleep(0.01)


def _leave_early(rank, address):
    comm = connected("ucx", rank, 3, address, "early")
    if rank == 0:
        comm.exchange([(peer, np.full(TINY, 7.0)) for peer in (1, 2)], []).wait()
    else:
        time.sleep(0.3 * rank)  # rank 0 has closed long since
        got = np.zeros(TINY)
        comm.exchange([], [(0, got)]).wait()
        assert (got == 7).all()
    start = time.monotonic()
    comm.close()
    assert time.monotonic() - start < 2  # far less than the limits of a wait
    _threads_end()


@pytest.mark.slow
def test_what_a_rank_sent_before_it_closed_arrives(pool, relay):
    pool.run(_leave_early, relay.address)


def _give_up(rank, address):
    """What is received after an abort is not written into the buffer."""
    comm = connected("ucx", rank, 3, address, "abort")
    buffer = np.zeros(LARGE)
    if rank == 0:
        work = comm.exchange([], [(1, buffer)])
        comm.abort("enough")
        with pytest.raises(CommError, match="enough"):
            work.wait()
        comm.close()
    elif rank == 1:
        time.sleep(1.0)
        with pytest.raises(CommError):
            comm.exchange([(0, np.ones(LARGE))], []).wait()
    comm.close()
    _threads_end()
    assert not buffer.any()
    with pytest.raises(CommAbortedError):
        comm.barrier()


@pytest.mark.slow
def test_abandoned_buffer_is_left_alone(pool, relay):
    pool.run(_give_up, relay.address)


def _sizes_differ(rank, address):
    comm = connected("ucx", rank, 3, address, "sizes")
    if rank == 0:
        comm.exchange([(1, np.ones(8))], []).wait()
    elif rank == 1:
        with pytest.raises(CommError, match="receive from rank 0 failed"):
            comm.exchange([], [(0, np.ones(4))]).wait()
    comm.barrier()
    comm.close()


def test_message_longer_than_its_buffer(pool, relay):
    pool.run(_sizes_differ, relay.address)


def _know_another_secret(rank, address):
    """Rank 2 connects, as one that has the addresses but cannot read the store."""
    if rank == 2:
        patch = pytest.MonkeyPatch()

        def overhear(*args, **kwargs):
            return [f"{text.split()[0]} {'00' * 32}" for text in meet(*args, **kwargs)]

        patch.setattr(ucx, "meet", overhear)
    with pytest.raises(CommError, match=r"not know the secret" if rank < 2 else None):
        connected("ucx", rank, 3, address, "secret")
    if rank == 2:
        patch.undo()
    _threads_end()


def test_a_rank_without_the_secret_is_refused(pool, relay):
    pool.run(_know_another_secret, relay.address)


def _listen_on(rank, address, first, last):
    """Every listening port of this process is in the range."""
    known = _listening()
    comm = connected("ucx", rank, 3, address, f"ports-{first}", ports=(first, last))
    comm.barrier()
    opened = _listening() - known
    assert opened
    assert all(first <= port <= last for port in opened)
    comm.barrier()
    comm.close()


def _listening():
    connections = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


def test_ports_are_limited(pool, relay):
    pool.run(_listen_on, relay.address, 30_500, 30_599)


NEVER_CLOSED = """
import sys, threading, time
from benchmarks.relay import join_relay
from dask_dgpu.comm.bootstrap import connect
rank, address = int(sys.argv[1]), sys.argv[2]
comm = connect("ucx", store=join_relay(address, "exit"), host="127.0.0.1", rank=rank, size=2,
               timeout=60)
comm.barrier()
assert [thread.daemon for thread in threading.enumerate() if thread.name == "ucx"] == [False]
time.sleep(rank * 0.5)
"""


@pytest.mark.slow
def test_interpreter_exits_without_close(relay):
    command = [sys.executable, "-c", NEVER_CLOSED]
    processes = [
        subprocess.Popen([*command, str(rank), relay.address], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors


WITHOUT_UCXX = """
import sys
sys.modules["ucxx"] = None
from dask_dgpu.comm.bootstrap import connect
from dask_dgpu.comm.store import Store
from dask_dgpu.errors import CommError
store = Store(lambda key, value: None)
try:
    connect("ucx", store=store, host="", rank=0, size=1, timeout=9)
except CommError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_ucxx():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_UCXX], capture_output=True, text=True, check=True
    )
    assert "needs ucxx: pip install 'dask-dgpu[ucx]'" in done.stdout
