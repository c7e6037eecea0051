"""Connecting that is given up: what comes of it too late is closed."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from benchmarks.relay import Relay
from dask_dgpu.comm.bootstrap import _abandonable, connect
from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.store import Store
from dask_dgpu.errors import CommAbortedError, CommError


class Late:
    """A communicator that is made when it is let."""

    def __init__(self) -> None:
        self.may_be_made = threading.Event()
        self.closed = threading.Event()

    def make(self) -> Any:
        assert self.may_be_made.wait(10)
        return self

    def close(self) -> None:
        self.closed.set()


def join_alone(kind: Any, **given: Any) -> Any:
    """Connect as rank 0, which no other rank hears of."""
    store = Store(lambda key, value: None)
    return connect(kind, store=store, host="127.0.0.1", rank=0, **given)


@pytest.mark.parametrize("how", ["limit", "abort"])
def test_what_is_made_too_late_is_closed(how: str) -> None:
    late, attempt = Late(), Lifetime()
    if how == "abort":
        attempt.abort("enough")
    with pytest.raises(CommAbortedError if how == "abort" else CommError):
        _abandonable(late.make, attempt, 0.01 if how == "limit" else 60.0, "The connection")
    assert not late.closed.is_set()
    late.may_be_made.set()
    assert late.closed.wait(10)


@pytest.mark.parametrize("patient", [True, False])
def test_an_abort_ends_the_threads(patient: bool) -> None:
    """Rank 1 never comes: the attempt goes on until it is aborted, and leaves nothing behind."""
    attempt = Lifetime()
    threading.Timer(0.2, attempt.abort, ["enough"]).start()
    with pytest.raises(CommAbortedError, match="enough"):
        join_alone("tcp", size=2, timeout=60.0, patient=patient, lifetime=attempt)
    for thread in list(attempt.threads):
        thread.join(5)
        assert not thread.is_alive()


def test_unknown_transport():
    with pytest.raises(ValueError, match="pigeon"):
        join_alone("pigeon", size=1, timeout=1)


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
    comm = connect("tcp", store=join_relay(address, "exit"), host="127.0.0.1", rank=rank, size=2,
                   timeout=60)
    work = comm.exchange([], [(1, np.zeros(4))] if rank == 0 else [])
    there.set()
    with contextlib.suppress(CommError):
        work.wait()

threading.Thread(target=program, daemon=True).start()
there.wait()
"""


@pytest.mark.slow
def test_interpreter_exits_while_a_rank_waits():
    """Nothing of a rank that waits holds up its process."""
    command, address = [sys.executable, "-c", WAITS_AT_EXIT], Relay().address
    processes = [
        subprocess.Popen([*command, str(rank), address], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
