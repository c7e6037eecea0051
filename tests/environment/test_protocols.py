"""Decisions on clusters that are made up: they depend on how Dask moves blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dask.array as da
import pytest

import dask_dgpu as dgpu
from dask_dgpu.environment import facts
from dask_dgpu.environment.facts import ALONE, ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.optimizer import GraphOptimizer
from graph_opt.model.cost import HOST, dask_product_seconds, machine_of
from tests.graph_opt.graphs import matches

GPUS = 4


def declined(z: da.Array, protocol: str, device: Any = "cuda") -> list[str]:
    there = ClusterFacts(GPUS, device, 80 << 30, transport="nccl", protocol=protocol)
    optimizer = GraphOptimizer(read({"on_error": "raise"}), there)
    rewriting = optimizer.rewrite(z.dask, z.__dask_keys__())
    assert len(rewriting.pieces) + len(rewriting.declined) == 1
    return [each.reason for each in rewriting.declined]


def slabs(n: int) -> da.Array:
    """Return blocks that no reader makes for itself."""
    shape = n // GPUS, n
    return da.concatenate([da.full(shape, 1j * k, chunks=shape) for k in range(GPUS)])


@pytest.mark.parametrize("protocol", ["tcp", "tls", "ws"])
def test_a_transform_over_tcp_is_a_gang(protocol: str) -> None:
    assert declined(dgpu.fft.fft2(slabs(8192)), protocol) == []


@pytest.mark.parametrize("protocol", ["ucx", "ucxx", "inproc"])
def test_a_transform_over_ucx_is_left_to_dask(protocol: str) -> None:
    (reason,) = declined(dgpu.fft.fft2(slabs(2048)), protocol)
    assert "plain Dask is predicted to be quicker" in reason


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: dgpu.fft.fft2(x),
        lambda x: x @ x.T,
        lambda x: x.rechunk((x.shape[0], x.shape[1] // GPUS)),
        lambda x: dgpu.stencil(x, iterations=3),
        lambda x: da.overlap.overlap(x, depth=1, boundary=0),
    ],
    ids=["fft", "matmul", "rechunk", "stencil", "overlap"],
)
def test_plain_dask_takes_longer_over_tcp(make: Any, device: str) -> None:
    z = make(slabs(2**16))
    there = ClusterFacts(GPUS, "cpu", None, protocol="tcp")
    optimizer = GraphOptimizer(read({"on_error": "raise", "when": "always"}), there)
    (piece,) = optimizer.rewrite(z.dask, z.__dask_keys__()).pieces
    seconds = {
        protocol: piece.dask_cost(GPUS, machine_of(device, protocol))[1]
        for protocol in ("tcp", "ucx", "inproc")
    }
    assert seconds["tcp"] > seconds["ucx"] > seconds["inproc"]


def test_ghost_cells_of_plain_dask_are_moved() -> None:
    x = da.zeros((64, 8), chunks=(16, 8))
    y = dgpu.stencil(x, iterations=5)
    (piece,) = matches(y).pieces
    times = [piece.dask_cost(GPUS, machine_of("cpu", each))[1] for each in ("tcp", "ucx")]
    moved = 5 * 3 * 2 * 8 * x.dtype.itemsize  # sweeps, cuts, sides, cells in a row
    lost = moved * (1 / 1e8 - 1 / 5e8) * (GPUS - 1) / GPUS / GPUS
    assert times[0] - times[1] == pytest.approx(lost)


# seconds of plain Dask on four workers over TCP, as docs/performance.md has them
@pytest.mark.parametrize(
    ("n", "blocks", "measured"),
    [(2048, 16, 6.76), (4096, 8, 3.86), (2048, 2, 0.36), (4096, 2, 2.04)],
)
def test_products_of_plain_dask_are_predicted_as_measured(
    n: int, blocks: int, measured: float
) -> None:
    seconds = dask_product_seconds((n,) * 3, (blocks,) * 3, "float64", 4, HOST)
    assert measured / 1.6 < seconds < 1.6 * measured


class Cluster:
    """A client whose workers have these addresses."""

    def __init__(self, *workers: str) -> None:
        self.workers = workers

    def wait_for_workers(self, n_workers: int, timeout: float) -> None: ...

    def run(self, function: Any, *args: Any, on_error: str) -> dict[str, Any]:
        return dict.fromkeys(self.workers, facts.WorkerFacts("cpu", None, "a CPU", {}))

    def run_on_scheduler(self, function: Any, *args: Any) -> Any:
        scheduler = SimpleNamespace(id="Scheduler-1", plugins={}, workers={})
        return function(*args, dask_scheduler=scheduler)


@pytest.mark.parametrize(
    ("workers", "protocol", "rate"),
    [
        (["tcp://10.0.0.1:1", "tcp://10.0.0.2:1"], "tcp", 1e8),
        (["tls://10.0.0.1:1"], "tls", 1e8),
        (["ucxx://10.0.0.1:1"], "ucxx", 5e8),
        (["inproc://10.0.0.1/7/1"], "inproc", HOST.memory_bandwidth),
        (["ucx://10.0.0.1:1", "tcp://10.0.0.2:1"], "tcp", 1e8),
    ],
)
def test_protocol_of_a_cluster(workers: list[str], protocol: str, rate: float) -> None:
    cluster: Any = Cluster(*workers)
    found = facts.gather(cluster, read())
    assert (found.protocol, found.machine.dask_bandwidth) == (protocol, rate)


def test_without_a_cluster_nothing_is_sent() -> None:
    assert ALONE.machine.dask_bandwidth == HOST.memory_bandwidth
    assert ALONE.machine.round_trip_seconds == 0
