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
    comm.all_reduce(np.zeros(5)).wait()
    return comm.ledger


def test_ledger():
    root, one, two = run_local(3, _program)
    assert root.calls == {"broadcast": 1, "all_gather": 1, "exchange": 1, "all_reduce": 1}
    # The pieces of the all-reduce have 2, 2 and 1 elements: each rank sends the other ranks
    # their pieces, then its own reduced piece.
    assert root.sent == {1: 24 * 3 + 16 + 16, 2: 24 * 2 + 8 + 16}
    assert root.messages_sent == {1: 3 + 2, 2: 2 + 2}
    assert root.received == {1: 24 + 16 + 16, 2: 24 * 2 + 16 + 8}
    assert one.sent == {0: 24 + 16 + 16, 2: 24 * 2 + 8 + 16}
    assert two.received == {0: 24 * 2 + 8 + 16, 1: 24 * 2 + 8 + 16}
    assert one.bytes_sent == 24 * 3 + 32 + 24
