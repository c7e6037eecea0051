"""Gloo when processes die, stop, or have a torch.distributed of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from dask_dgpu.comm.bootstrap import connect, serve_store
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.errors import CommError
from tests.comm.processes import RankPool

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def store():
    return serve_store(HOST)


@pytest.fixture
def pool():
    pool = RankPool(3)
    yield pool
    pool.stop()


def _connect(rank, address, name, timeout, size=3):
    return connect(
        "gloo",
        host=HOST,
        store_address=address,
        rank=rank,
        size=size,
        name=name,
        timeout=timeout,
    )


def _call(comm: Comm, how: str) -> None:
    if how == "collective":
        comm.all_reduce(np.ones(100_000)).wait()
    else:
        comm.exchange([(1, np.ones(4))], [(1, np.ones(4))]).wait()


def _await_victim(rank, address, how, sent, timeout):
    """Rank 1 gets a signal; return how long the others took to raise and to close."""
    comm = _connect(rank, address, f"{how}-{sent}", timeout)
    comm.barrier()
    if rank == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), sent)
    start = time.monotonic()
    with pytest.raises(CommError):
        _call(comm, how)
    raised = time.monotonic()
    comm.close()
    return raised - start, time.monotonic() - raised


@pytest.mark.parametrize("how", ["collective", "exchange"])
def test_killed_peer(pool, store, how):
    pool.start(_await_victim, store.address, how, signal.SIGKILL, 30.0)
    for raised, closed in pool.results([0, 2]):
        assert raised < 2
        assert closed < 1


def test_stopped_peer(pool, store):
    pool.start(_await_victim, store.address, "collective", signal.SIGSTOP, 1.0)
    for raised, closed in pool.results([0, 2]):
        assert 0.5 < raised < 4
        assert closed < 1


def _beside_own_group(rank, address, own_port):
    import torch
    import torch.distributed as dist

    def own_sum():
        x = torch.ones(3) * rank
        dist.all_reduce(x)
        assert x.tolist() == [3.0] * 3

    early = _connect(rank, address, "early", 20.0)
    assert not dist.is_initialized()
    early.barrier()
    own = dist.PrefixStore("own", dist.TCPStore(HOST, own_port, is_master=False))
    dist.init_process_group("gloo", store=own, rank=rank, world_size=3)
    own_sum()
    late = _connect(rank, address, "late", 20.0)
    for comm in (early, late):
        x = np.full(2, rank)
        comm.all_reduce(x).wait()
        assert x.tolist() == [3, 3]
        own_sum()
        comm.barrier()
        comm.close()
    own_sum()
    dist.destroy_process_group()
    again = _connect(rank, address, "again", 20.0)
    again.barrier()
    again.close()


def test_own_default_group_is_untouched(pool, store):
    own = serve_store(HOST)
    pool.run(_beside_own_group, store.address, own.port)


def test_missing_rank_is_named(store):
    with pytest.raises(CommError, match=r"Ranks \[1, 2\] of 3 did not come"):
        _connect(0, store.address, "lonely", 0.3)


def test_unknown_transport(store):
    with pytest.raises(ValueError, match="pigeon"):
        connect(
            "pigeon",
            host=HOST,
            store_address=store.address,
            rank=0,
            size=1,
            name="x",
            timeout=1,
        )


@pytest.mark.parametrize("module", ["dask_dgpu.comm", "dask_dgpu.comm.bootstrap"])
def test_import_without_torch(module):
    program = f"import sys, {module}; print({{'torch', 'cupy'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
