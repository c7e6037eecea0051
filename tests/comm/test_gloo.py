"""Gloo beside a torch.distributed of the user's own, and what is imported when."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from benchmarks.relay import Relay, join_relay
from dask_dgpu.comm.bootstrap import connect
from dask_dgpu.comm.store import Store
from tests.comm.processes import RankPool

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def relay():
    return Relay()


@pytest.fixture
def pool():
    pool = RankPool(3)
    yield pool
    pool.stop()


def _connect(rank, address, name, timeout, size=3):
    return connect(
        "gloo",
        host=HOST,
        store=join_relay(address, name),
        rank=rank,
        size=size,
        timeout=timeout,
    )


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


@pytest.mark.slow
def test_own_default_group_is_untouched(pool, relay):
    import torch.distributed as dist

    own = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    pool.run(_beside_own_group, relay.address, own.port)


def test_unknown_transport():
    with pytest.raises(ValueError, match="pigeon"):
        connect(
            "pigeon",
            store=Store(lambda key, value: None),
            host=HOST,
            rank=0,
            size=1,
            timeout=1,
        )


@pytest.mark.slow
@pytest.mark.parametrize("module", ["dask_dgpu.comm", "dask_dgpu.comm.bootstrap"])
def test_import_without_torch(module):
    program = f"import sys, {module}; print({{'torch', 'cupy'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


WAITS_AT_EXIT = """
import contextlib, sys, threading
import numpy as np
from benchmarks.relay import join_relay
from dask_dgpu.comm.bootstrap import connect
from dask_dgpu.errors import CommError
rank, address = int(sys.argv[1]), sys.argv[2]
there = threading.Event()

def program():
    comm = connect("gloo", store=join_relay(address, "exit"), host="127.0.0.1", rank=rank, size=2,
                   timeout=60)
    work = comm.exchange([], [(1, np.zeros(4))] if rank == 0 else [])
    there.set()
    with contextlib.suppress(CommError):
        work.wait()

threading.Thread(target=program, daemon=True).start()
there.wait()
"""


@pytest.mark.slow
def test_interpreter_exits_while_a_rank_waits(relay):
    """No thread is stopped within gloo, which would end the process by std::terminate."""
    command = [sys.executable, "-c", WAITS_AT_EXIT]
    processes = [
        subprocess.Popen([*command, str(rank), relay.address], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
