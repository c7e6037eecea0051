"""What every communicator must do, as rank programs ``case(comm, xp)``.

They run in other processes, so they are importable functions. Every case holds
for any number of ranks, also for one.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from dask_dgpu.comm.common import exchange
from dask_dgpu.comm.point_to_point import PointToPointComm
from dask_dgpu.errors import CommAbortedError

DTYPES = [
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


def values(n, dtype, seed=0):
    """Make small numbers whose sums over a few ranks are exact in any dtype."""
    rng = np.random.default_rng([seed, n])
    x = rng.integers(0, 2 if dtype == "bool" else 20, n)
    if np.dtype(dtype).kind == "c":
        return (x + 1j * rng.integers(0, 20, n)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        return (x / 4).astype(dtype)
    if dtype.startswith("uint"):
        # The top bit set: an order taken as signed would be wrong.
        top = np.asarray(np.iinfo(dtype).max // 2 + 1, dtype)
        return x.astype(dtype) + (x % 2).astype(dtype) * top
    if dtype.startswith("int"):
        return (x - 10).astype(dtype)
    return x.astype(dtype)


def host(x):
    """Return a NumPy copy."""
    return x.get() if hasattr(x, "get") else np.array(x)


def same(got, wanted):
    """Compare bit for bit, dtype included."""
    np.testing.assert_array_equal(host(got), wanted, strict=True)


def identity(comm, xp):
    assert 0 <= comm.rank < comm.size
    comm.barrier()


def ring(comm, xp):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for dtype in DTYPES:
        got = xp.zeros((3, 5), dtype)
        sent = xp.asarray(values(15, dtype, comm.rank).reshape(3, 5))
        comm.exchange([(right, sent)], [(left, got)]).wait()
        same(got, values(15, dtype, left).reshape(3, 5))


def message_to_oneself(comm, xp):
    got = [xp.zeros(3), xp.zeros(2)]
    sent = [xp.arange(3.0), xp.ones(2)]
    me = comm.rank
    comm.exchange([(me, x) for x in sent], [(me, x) for x in got]).wait()
    same(got[0], np.arange(3.0))
    same(got[1], np.ones(2))
    comm.barrier()  # others may be about to connect


def messages_in_order(comm, xp):
    others = [p for p in range(comm.size) if p != comm.rank]
    sizes = [4, 0, 7, 1, 100_000]
    got = {p: [xp.zeros(n, np.int64) for n in sizes] for p in others}
    works = []
    for half in (slice(0, 2), slice(2, None)):
        sends = [
            (p, xp.full(n, 100 * comm.rank + i, np.int64))
            for p in others
            for i, n in list(enumerate(sizes))[half]
        ]
        works.append(comm.exchange(sends, [(p, x) for p in others for x in got[p][half]]))
    for work in reversed(works):
        work.wait()
    for p in others:
        for i, n in enumerate(sizes):
            same(got[p][i], np.full(n, 100 * p + i))


def scalars_and_nothing(comm, xp):
    scalar = xp.asarray(float(comm.rank))
    comm.all_reduce(scalar).wait()
    assert float(scalar) == comm.size * (comm.size - 1) / 2
    comm.exchange([], []).wait()
    for shape in ((0,), (0, 3)):
        empty = xp.zeros(shape, np.float32)
        comm.all_reduce(empty).wait()
        none = [0] * comm.size
        assert exchange(comm, xp.zeros(0), none, xp.zeros(0), none) is None


def gathered(comm, xp, x):
    """Return the buffers of all ranks."""
    out = xp.zeros((comm.size, *x.shape), x.dtype)
    comm.exchange([(p, x) for p in range(comm.size)], list(enumerate(out))).wait()
    return out


def read_only_source(comm, xp):
    source = np.arange(6.0)
    source.flags.writeable = xp is not np
    same(gathered(comm, xp, xp.asarray(source)), np.tile(np.arange(6.0), (comm.size, 1)))


def _reduced(wholes, op, dtype):
    ufunc = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op]
    return ufunc.reduce(wholes, axis=0, dtype=dtype)


def _operations(dtype):
    return ("sum",) if dtype.startswith("complex") else ("sum", "min", "max")


def all_reduce(comm, xp):
    for dtype in DTYPES:
        for op in _operations(dtype):
            for n in (13, 9_001) if dtype in ("float64", "uint32") else (13,):
                x = xp.asarray(values(n, dtype, comm.rank))
                comm.all_reduce(x, op).wait()
                same(
                    x,
                    _reduced([values(n, dtype, p) for p in range(comm.size)], op, dtype),
                )


def all_reduce_identical_bits(comm, xp):
    for n in (100, 10_007):
        x = xp.asarray(np.random.default_rng(comm.rank).standard_normal(n))
        comm.all_reduce(x).wait()
        same(gathered(comm, xp, x), np.tile(host(x), (comm.size, 1)))


def complex_numbers_have_no_order(comm, xp):
    x = xp.zeros(comm.size, np.complex64)
    with pytest.raises(ValueError, match="no min"):
        comm.all_reduce(x, "min")
    with pytest.raises(ValueError, match="no max"):
        comm.all_reduce(x, "max")
    comm.barrier()


def bad_arguments(comm, xp):
    with pytest.raises(ValueError, match="C-contiguous"):
        comm.all_reduce(xp.zeros((4, 4)).T)
    with pytest.raises(ValueError, match="expected a rank from 0 to"):
        comm.exchange([(comm.size, xp.zeros(4))], [])
    with pytest.raises(ValueError, match="expected a reduction"):
        comm.all_reduce(xp.zeros(1), "mean")
    comm.barrier()


def all_to_all(comm, xp, counts=None):
    """``counts[p][q]`` elements go from p to q; without it, uneven and some zero."""
    size, me = comm.size, comm.rank
    if counts is None:
        counts = [[(3 * p + 5 * q) % 4 for q in range(size)] for p in range(size)]
    for dtype in ("bool", "uint16", "complex128"):
        parts = [
            [values(counts[p][q], dtype, 10 * p + q) for q in range(size)] for p in range(size)
        ]
        in_counts = counts[me]
        out_counts = [counts[p][me] for p in range(size)]
        whole = xp.asarray(np.concatenate(parts[me]))
        out = xp.zeros(sum(out_counts), dtype)
        work = exchange(comm, whole, in_counts, out, out_counts)
        if work is not None:
            work.wait()
        same(out, np.concatenate([parts[p][me] for p in range(size)]))


def several_in_flight(comm, xp):
    size, n = comm.size, 20_000
    sums = [xp.full(n, comm.rank + i, np.int64) for i in range(6)]
    whole, swapped = xp.full((size, n), comm.rank, np.int64), xp.zeros((size, n), np.int64)
    right, left = (comm.rank + 1) % size, (comm.rank - 1) % size
    got = xp.zeros(n, np.int64)
    mine = xp.full(n, comm.rank, np.int64)
    works = [comm.all_reduce(x) for x in sums]
    works.append(exchange(comm, whole.ravel(), [n] * size, swapped.ravel(), [n] * size))
    works.append(comm.exchange([(right, mine)], [(left, got)]))
    # No two ranks wait in the same order.
    for i in np.random.default_rng(comm.rank).permutation(len(works)):
        works[i].wait()
    for i, x in enumerate(sums):
        same(x, np.full(n, sum(range(size)) + size * i))
    same(swapped, np.repeat(np.arange(size)[:, None], n, axis=1))
    same(got, np.full(n, left))


def window(comm, xp, wanted=None):
    """Every rank reads parts of what the others gave, none of them taking part.

    ``wanted`` says whether there must be a window; all ranks or none have one.
    """
    size, me = comm.size, comm.rank

    def given(rank, dtype):
        wide = values(35, dtype, rank).reshape(5, 7)
        return [wide[: 1 + rank % 3], np.zeros((0, 4), dtype), wide.T, values(3, dtype, rank)]

    found = []
    for dtype in ("bool", "float32", "complex128"):
        window = comm.window([xp.asarray(x) for x in given(me, dtype)])
        found.append(window is not None)
        if window is None:
            continue
        got = xp.zeros((4, 9), dtype)
        for peer in range(size):
            for which, part in (
                (0, (slice(0, 1), slice(2, 6))),
                (1, (slice(0, 0), slice(1, 3))),
                (2, (slice(3, 6), slice(1, 4))),
            ):
                expected = given(peer, dtype)[which][part]
                rows, columns = expected.shape
                target = got[:rows, 1 : 1 + columns]
                window.get(peer, which, part, target)
                same(target, expected)
            line = xp.zeros(2, dtype)
            window.get(peer, 3, (slice(1, 3),), line)
            same(line, given(peer, dtype)[3][1:])
        window.close().wait()
    votes = xp.asarray([sum(found)])
    comm.all_reduce(votes).wait()
    assert int(votes[0]) in (0, 3 * size)
    assert wanted is None or all(found) == wanted


def no_window(comm, xp):
    window(comm, xp, wanted=False)


def a_window(comm, xp):
    window(comm, xp, wanted=True)


def use_after_abort(comm, xp):
    comm.barrier()
    comm.abort("enough")
    for call in (
        comm.barrier,
        lambda: comm.all_reduce(xp.zeros(1)),
        lambda: comm.exchange([], []),
        lambda: comm.window([]),
        comm.check,
    ):
        with pytest.raises(CommAbortedError, match="enough"):
            call()


def _finish(comm, xp, work):
    """Wait as a program does whose result counts."""
    work.wait()
    if xp is not np:
        xp.cuda.get_current_stream().synchronize()
    comm.check()


def _receive_from(peer, comm, xp):
    """Wait for a message; over NCCL the call itself already waits for the peer."""
    work = comm.exchange([], [(peer, xp.zeros(1))])
    _finish(comm, xp, work)


def abort_while_waiting(comm, xp):
    """Rank 0 waits for a message that is never sent, and its other thread aborts."""
    if comm.size == 1:
        return
    comm.barrier()
    if comm.rank == 0:
        timer = threading.Timer(0.1, comm.abort, ["enough"])
        timer.start()
        start = time.monotonic()
        with pytest.raises(CommAbortedError, match="enough"):
            _receive_from(comm.size - 1, comm, xp)
        assert time.monotonic() - start < 5
        timer.join()
    else:
        time.sleep(0.5)


def end_of_a_transfer(comm, xp):
    begin = time.perf_counter()
    for elements, known in ((100_000, True), (1000, False)):  # a small one has no thread to notice
        work = comm.all_reduce(xp.ones(elements))
        work.wait()
        if isinstance(comm, PointToPointComm) and (known or comm.size == 1):
            assert begin <= work.ended <= time.perf_counter()
        else:
            assert work.ended is None


HEALTHY = [
    identity,
    ring,
    message_to_oneself,
    messages_in_order,
    scalars_and_nothing,
    read_only_source,
    all_reduce,
    all_reduce_identical_bits,
    complex_numbers_have_no_order,
    bad_arguments,
    all_to_all,
    several_in_flight,
    end_of_a_transfer,
]
