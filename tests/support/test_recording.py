"""The ledger against what the calls must move by definition."""

from __future__ import annotations

import numpy as np

from dask_dgpu.comm.local import run_local
from tests.support.recording import RecordingComm


def _program(inner):
    comm = RecordingComm(inner)
    x = np.zeros(6, np.float32)
    comm.broadcast(x, 0).wait()
    comm.all_gather(np.zeros(18, np.float32), x).wait()
    me, right, left = comm.rank, (comm.rank + 1) % 3, (comm.rank - 1) % 3
    y = np.zeros(6, np.float32)
    comm.exchange([(right, x), (me, x)], [(left, y), (me, y.copy())]).wait()
    child = comm.split(0 if comm.rank else None, -comm.rank)
    if child is not None:
        child.all_reduce(np.zeros(5)).wait()
    return comm.ledger


def test_ledger():
    root, one, two = run_local(3, _program)
    assert root.calls == {"broadcast": 1, "all_gather": 1, "exchange": 1, "split": 1}
    assert root.sent == {1: 24 * 3, 2: 24 * 2}
    assert root.messages_sent == {1: 3, 2: 2}
    assert root.received == {1: 24, 2: 24 * 2}
    # In the child, the order is reversed: rank 2 comes first and has the larger piece.
    assert one.calls["all_reduce"] == two.calls["all_reduce"] == 1
    assert one.sent == {0: 24, 2: 24 * 2 + 40}
    assert two.received == {0: 24 * 2, 1: 24 * 2 + 40}
    assert one.bytes_sent == 24 * 3 + 40
