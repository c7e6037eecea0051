"""Poisson's equation in one gang: its exchanges and their bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import pytest

import dask_dgpu as dgpu
from dask_dgpu.algorithms.pencil_fft.plan import PencilPlan
from dask_dgpu.optimizer import GraphOptimizer
from dask_dgpu.runtime import tasks
from graph_opt.dask_graph.layers import DeferredLayer
from tests.array.poisson.test_poisson import BOUNDARIES, check, numbers
from tests.support.recording import RecordingComm


@pytest.fixture
def ran(programs: list[Any]) -> Iterator[list[Any]]:
    """The launches of the programs that were run."""
    with dgpu.enable(local_ranks=4, on_error="raise", when="always"):
        yield programs


def exchanges(u: da.Array) -> int:
    plans = [
        layer.piece.plan for layer in u.dask.layers.values() if isinstance(layer, DeferredLayer)
    ]
    assert all(isinstance(plan, PencilPlan) for plan in plans)
    return sum(not exchange.local for plan in plans for exchange in plan.exchanges)


SLABS = [
    *itertools.product(BOUNDARIES, [((16, 12), (4, 12)), ((16, 12), (16, 3))]),
    *itertools.product(BOUNDARIES, [((8, 12, 10), (2, 12, 10)), ((12, 8, 10), (12, 2, 10))]),
    (("periodic", "zero"), ((16, 12), (4, 12))),
    (("zero", "periodic"), ((16, 12), (4, 12))),
    (("periodic", "reflect", "zero"), ((8, 12, 10), (2, 12, 10))),
]


@pytest.mark.parametrize(("boundary", "grid"), SLABS)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_one_gang_and_two_exchanges(boundary: Any, grid: Any, dtype: str, ran: list[Any]) -> None:
    shape, chunks = grid
    f = numbers(shape, dtype)
    x = da.from_array(f, chunks=chunks)
    u = dgpu.poisson(x, 1.0, boundary)
    assert exchanges(u) == 2
    assert u.chunks == x.chunks
    optimizer = dask.config.get("array_optimize")
    assert isinstance(optimizer, GraphOptimizer)
    graph = optimizer(u.dask, u.__dask_keys__())
    source = x.npartitions  # x's own tasks are in it too
    assert len(graph) - source <= x.npartitions + u.npartitions + 2
    each = (boundary,) * f.ndim if isinstance(boundary, str) else boundary
    check(u, f, 1.0, each)
    (launch,) = ran
    operations = [node.operation for node in launch.program.nodes]
    assert [each for each in operations if each is not None] == ["fft", "fft"]


@pytest.mark.parametrize("boundary", ["zero", "reflect", ("zero", "reflect")])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_bytes_are_those_of_two_transposes(
    boundary: Any, dtype: str, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    comms: list[RecordingComm] = []
    original = tasks.run_local

    def run_local(size: int, program: Any) -> Any:
        def recorded(comm: Any) -> Any:
            comms.append(RecordingComm(comm))
            return program(comms[-1])

        return original(size, recorded)

    monkeypatch.setattr(tasks, "run_local", run_local)
    f = numbers((16, 12), dtype)
    dgpu.poisson(da.from_array(f, chunks=(4, 12)), 1.0, boundary).compute()
    share = f.nbytes // 4
    assert [comm.ledger.bytes_sent for comm in comms] == [2 * share * 3 // 4] * 4
    # one message to each other rank and exchange, and nothing to agree upon before it
    assert [comm.ledger.messages_sent.total() for comm in comms] == [2 * 3] * 4
