"""Every transport passes every case."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.relay import Relay
from tests.comm import cases
from tests.comm.processes import RankPool
from tests.comm.transports import WRAPPERS, connected, on_threads
from tests.support.profiles import examples
from tests.support.recording import RecordingComm

THREADS = WRAPPERS | {"recording": RecordingComm}


@pytest.fixture(scope="module")
def relay():
    return Relay()


@pytest.fixture(scope="module")
def cpu_pool():
    pool = RankPool(3)
    yield pool
    pool.stop()


@pytest.fixture(scope="module")
def gpu_pool():
    import cupy

    pool = RankPool(cupy.cuda.runtime.getDeviceCount())
    yield pool
    pool.stop()


def _module(name):
    if name == "cupy":
        import cupy

        return cupy
    return np


def _rank_main(rank, size, kind, module, address, name, case):
    if module == "cupy":
        _module("cupy").cuda.Device(rank).use()
    device = rank if module == "cupy" else None
    comm = connected(kind, rank, size, address, name, device=device)
    try:
        case(comm, _module(module))
    finally:
        comm.close()


def _wrapped(comm, xp, wrapper, case):
    case(wrapper(comm), xp)


@pytest.fixture(
    params=[
        "local-1",
        "local-4",
        "recording-3",
        pytest.param("timed-3", marks=pytest.mark.slow),
        pytest.param("dask-1", marks=pytest.mark.slow),
        "dask-3",
        pytest.param("tcp-1", marks=pytest.mark.slow),
        "tcp-3",
        pytest.param("ucx-1", marks=pytest.mark.slow),
        "ucx-3",
        pytest.param("local-3-cupy", marks=pytest.mark.gpu),
        pytest.param("nccl-1-cupy", marks=pytest.mark.gpu),
        pytest.param("nccl-all-cupy", marks=pytest.mark.multigpu),
        pytest.param("ucx-1-cupy", marks=pytest.mark.gpu),
        pytest.param("ucx-all-cupy", marks=pytest.mark.multigpu),
    ]
)
def launch(request):
    """Run a case on all ranks of a transport."""
    kind, size, module = f"{request.param}-numpy".split("-")[:3]
    if kind in THREADS:
        args = _module(module), THREADS[kind]

        def launch(case):
            on_threads(int(size), _wrapped, *args, case)

    else:
        pool = request.getfixturevalue("gpu_pool" if module == "cupy" else "cpu_pool")
        address = request.getfixturevalue("relay").address
        count = pool.size if size == "all" else int(size)

        def launch(case):
            name = f"{request.node.name}-{case.__name__}"
            args = (count, kind, module, address, name, case)
            for rank in range(count):
                pool.pipes[rank].send((_rank_main, (rank, *args)))
            pool.results(range(count))

    return launch


@pytest.mark.parametrize("case", cases.HEALTHY, ids=lambda case: case.__name__)
def test_case(launch, case):
    launch(case)


def test_window(launch, request):
    """Threads see each other's memory; processes only that of an RMM pool."""
    kind = request.node.callspec.params["launch"].split("-")[0]
    launch(cases.a_window if kind in THREADS else cases.no_window)


@pytest.mark.multigpu
def test_window_of_pools(gpu_pool, relay):
    gpu_pool.start(_pooled_rank_main, gpu_pool.size, relay.address)
    gpu_pool.results()


def _pooled_rank_main(rank, size, address):
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator

    cupy = _module("cupy")
    rmm.reinitialize(pool_allocator=True, initial_pool_size=1 << 30, devices=rank)
    with cupy.cuda.using_allocator(rmm_cupy_allocator):
        _rank_main(rank, size, "nccl", "cupy", address, "pools", cases.a_window)


def test_use_after_abort(launch):
    launch(cases.use_after_abort)


def test_abort_while_waiting(launch):
    launch(cases.abort_while_waiting)


@given(data=st.data(), size=st.integers(1, 7))
@examples(25)
def test_all_to_all_of_any_counts(data, size):
    row = st.lists(st.integers(0, 6), min_size=size, max_size=size)
    counts = data.draw(st.lists(row, min_size=size, max_size=size))
    on_threads(size, cases.all_to_all, np, counts)
