"""Functions of users on the ranks of a cluster: values, tasks, errors, and with a worker lost."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu
from tests.cluster.losses import Losses
from tests.cluster.observe import check, computed, counted, host

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(6)
Q, K, V = (RNG.standard_normal((61, 8)) for _ in range(3))
POWERS = np.exp(Q @ K.T)
WANTED = POWERS @ V / POWERS.sum(1, keepdims=True)


def attention(comm: dgpu.ShardComm, q: Any, k: Any, v: Any, *, pause: float = 0.0) -> Any:
    """Attention without masks; keys and values go round in a ring."""
    time.sleep(pause)
    depth, most = k.shape[1], comm.all_reduce(abs(q).max(initial=0)) * 10
    passing, total, result = np.concatenate([k, v], 1), 0.0, 0.0
    for step in range(comm.size):
        powers = np.exp(q @ passing[:, :depth].T - most)
        total = total + powers.sum(1, keepdims=True)
        result = result + powers @ passing[:, depth:]
        lo, hi = comm.bounds(61, (comm.rank - step - 1) % comm.size)
        passing = comm.shift(passing, shape=(hi - lo, passing.shape[1]))
    return result / total


@pytest.fixture
def operands(on_device: Any) -> list[da.Array]:
    return [on_device(each, (9, 5)) for each in (Q, K, V)]


def attended(operands: list[da.Array], **options: float) -> da.Array:
    def f(comm: dgpu.ShardComm, *arrays: Any) -> Any:
        return attention(comm, *arrays, **options)

    return dgpu.shard_map(f, out=operands[0])(*operands)


def test_ring(client: Client, operands: list[da.Array]) -> None:
    assert check(client, attended(operands), WANTED) == 1
    assert check(client, attended([x + 1 - 1 for x in operands]).sum(0), WANTED.sum(0)) == 1


def collectives(rows: int, comm: dgpu.ShardComm, x: Any) -> Any:
    """Return the shard, by way of all collectives."""
    lengths = [hi - lo for lo, hi in (comm.bounds(rows, rank) for rank in range(comm.size))]
    whole = comm.all_gather(x, lengths)
    parts = comm.all_to_all([x[:rank] for rank in range(comm.size)])
    assert [len(part) for part in parts] == [comm.rank] * comm.size
    assert comm.broadcast(x[:3], comm.size - 1).shape == (3, 8)
    comm.barrier()
    if (other := comm.rank ^ 1) < comm.size:
        found = comm.exchange({other: x}, {other: (lengths[other], 8)}, "f8")
        lo, hi = comm.bounds(rows, other)
        assert bool((found[other] == whole[lo:hi]).all())
    total = comm.reduce_scatter(whole)  # as often as there are ranks
    return comm.shift(comm.shift(total / comm.size), -1, total.shape)


def test_collectives(client: Client, on_device: Any) -> None:
    x = on_device(np.resize(Q, (64, 8)), (7, 8))  # shards of one length
    y = dgpu.shard_map(partial(collectives, 64), out=x)(x)
    assert check(client, y, np.resize(Q, (64, 8))) == 1


def test_tasks_submitted(client: Client, on_device: Any, operands: list[da.Array]) -> None:
    y, tasks, blocks, _ = counted(client, lambda *x: attended([*x]), *operands)
    assert tasks <= blocks + 1
    np.testing.assert_allclose(host(y.compute()), WANTED, rtol=0, atol=1e-12)


def test_errors_of_the_function_are_raised(client: Client, operands: list[da.Array]) -> None:
    def fails(comm: dgpu.ShardComm, x: Any) -> Any:
        if comm.rank == comm.size - 1:
            raise KeyError("here")
        comm.barrier()
        return x

    y = dgpu.shard_map(fails, out=operands[0])(operands[0])
    with pytest.raises(KeyError, match="here"):
        client.compute(y).result(timeout=60)
    assert check(client, attended(operands), WANTED) == 1


@pytest.mark.slow
class TestLosses(Losses):
    """A worker is lost."""

    def test_killed_in_the_function(self, client: Client, operands: list[da.Array]) -> None:
        computed(client, attended(operands))
        future = client.compute(attended(operands, pause=1.0) * 1)
        result = self.result_after_loss(client, future)
        np.testing.assert_allclose(result, WANTED, rtol=0, atol=1e-10)
