"""The collectives of ``dgpu.ShardComm``, on ranks that are threads, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu

RANKS = pytest.mark.parametrize("size", [1, 2, 3, 5])
DTYPES = pytest.mark.parametrize("dtype", ["f4", "c16", "i8", "?"])


def on_ranks(size: int, function: Callable[[dgpu.ShardComm], Any]) -> None:
    """Call a function on each rank; it raises if anything is wrong."""

    def called(comm: dgpu.ShardComm, x: Any) -> Any:
        assert comm.size == size
        function(comm)
        return x

    with dgpu.enable(local_ranks=size, on_error="raise"):
        dgpu.shard_map(called, out=((size,), "f8"))(da.ones(size, chunks=1)).compute()


def of_rank(rank: int, dtype: str, shape: tuple[int, ...]) -> Any:
    return (np.random.default_rng(rank).standard_normal(shape) * 5).astype(dtype)


@RANKS
@DTYPES
@pytest.mark.parametrize("shape", [(), (0, 3), (4, 3)])
def test_all_reduce(size: int, dtype: str, shape: tuple[int, ...]) -> None:
    every = np.array([of_rank(rank, dtype, shape) for rank in range(size)])
    operations = {"sum": every.any(0) if dtype == "?" else every.sum(0)}
    if dtype != "c16":
        operations |= {"min": every.min(0), "max": every.max(0)}

    def check(comm: dgpu.ShardComm) -> None:
        mine = every[comm.rank]
        before = mine.copy()
        for op, wanted in operations.items():
            found = comm.all_reduce(mine, op)  # type: ignore[arg-type]
            assert found.dtype == mine.dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
        np.testing.assert_array_equal(mine, before)

    on_ranks(size, check)


@RANKS
@DTYPES
def test_all_gather_and_reduce_scatter(size: int, dtype: str) -> None:
    lengths = [rank + 1 for rank in range(size)]
    parts = [of_rank(rank, dtype, (length, 2)) for rank, length in enumerate(lengths)]
    wide = [of_rank(rank, dtype, (7, 2)) for rank in range(size)]

    def check(comm: dgpu.ShardComm) -> None:
        found = comm.all_gather(parts[comm.rank], lengths)
        np.testing.assert_array_equal(found, np.concatenate(parts))
        np.testing.assert_array_equal(comm.all_gather(wide[comm.rank]), np.concatenate(wide))
        lo, hi = comm.bounds(7)
        total = np.logical_or.reduce(wide) if dtype == "?" else np.sum(wide, 0)
        np.testing.assert_allclose(comm.reduce_scatter(wide[comm.rank]), total[lo:hi], rtol=1e-4)
        if dtype != "c16":
            least = comm.reduce_scatter(wide[comm.rank], "min")
            np.testing.assert_array_equal(least, np.min(wide, 0)[lo:hi])

    on_ranks(size, check)


@RANKS
@DTYPES
def test_all_to_all(size: int, dtype: str) -> None:
    def sent(source: int, target: int) -> Any:
        return of_rank(7 * source + target, dtype, ((source + 2 * target) % 4, 3))

    def check(comm: dgpu.ShardComm) -> None:
        found = comm.all_to_all([sent(comm.rank, target) for target in range(size)])
        for source, array in enumerate(found):
            assert array.dtype == dtype
            np.testing.assert_array_equal(array, sent(source, comm.rank))
        with pytest.raises(ValueError, match=f"one for each of {size} ranks, got {size + 1}"):
            comm.all_to_all([np.zeros(1)] * (size + 1))

    on_ranks(size, check)


@RANKS
@DTYPES
def test_point_to_point(size: int, dtype: str) -> None:
    parts = [of_rank(rank, dtype, (rank, 2)) for rank in range(size)]
    first = of_rank(99, dtype, (2, 3))

    def check(comm: dgpu.ShardComm) -> None:
        rank = comm.rank
        for by in (1, -1, size):
            source = (rank - by) % size
            found = comm.shift(parts[rank], by, parts[source].shape)
            np.testing.assert_array_equal(found, parts[source])
        root = size - 1
        mine = first if rank == root else np.zeros_like(first)
        np.testing.assert_array_equal(comm.broadcast(mine, root), first)
        comm.barrier()
        others = [other for other in (rank - 1, rank + 1) if 0 <= other < size]
        shapes = {other: parts[other].shape for other in others}
        around = comm.exchange(dict.fromkeys(others, parts[rank]), shapes, dtype)
        assert around.keys() == shapes.keys()
        for other, array in around.items():
            np.testing.assert_array_equal(array, parts[other])

    on_ranks(size, check)


def test_shards_of_all_ranks_are_an_axis() -> None:
    def check(comm: dgpu.ShardComm) -> None:
        for length in (0, 1, 3, 4, 17):
            ends = [comm.bounds(length, rank) for rank in range(comm.size)]
            assert ends[comm.rank] == comm.bounds(length)
            assert [lo for lo, _ in ends] == [0, *(hi for _, hi in ends[:-1])]
            assert ends[-1][1] == length
            lengths = [hi - lo for lo, hi in ends]
            assert max(lengths) - min(lengths) <= 1

    on_ranks(4, check)
