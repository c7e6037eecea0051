"""The ledger against what the calls must move by definition."""

from __future__ import annotations

import numpy as np

from dask_dgpu.comm.local import run_local
from tests.support.recording import RecordingComm


def _program(inner):
    comm = RecordingComm(inner)
    x = np.zeros(6, np.float32)
    me, right, left = comm.rank, (comm.rank + 1) % 3, (comm.rank - 1) % 3
    y = np.zeros(6, np.float32)
    comm.exchange([(right, x), (me, x)], [(left, y), (me, y.copy())]).wait()
    comm.all_reduce(np.zeros(5)).wait()
    return comm.ledger


def test_ledger():
    root, one, two = run_local(3, _program)
    assert root.calls == {"exchange": 1, "all_reduce": 1}
    # The pieces of the all-reduce have 2, 2 and 1 elements: each rank sends the other ranks
    # their pieces, then its own reduced piece.
    assert root.sent == {1: 24 + 16 + 16, 2: 8 + 16}
    assert root.messages_sent == {1: 3, 2: 2}
    assert root.received == {1: 16 + 16, 2: 24 + 16 + 8}
    assert one.sent == {0: 16 + 16, 2: 24 + 8 + 16}
    assert two.received == {0: 8 + 16, 1: 24 + 8 + 16}
    assert one.bytes_sent == 24 + 32 + 24
