"""Gangs on GPUs of which one is nearly full, for as long as they run or until memory is freed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import pytest
from distributed import Client, wait

import dask_dgpu as dgpu
from dask_dgpu.errors import OutOfMemoryError
from tests.cluster.conftest import SETTINGS
from tests.cluster.observe import PLUGIN, launched_runs, nothing_left

pytestmark = [pytest.mark.multigpu, pytest.mark.slow, pytest.mark.timeout(300)]

N = 24_000
"""Rows and columns; each of two ranks makes 2.1 GiB of a product."""

ALL_BUT = 3 << 29
"""Free bytes of the full GPU: enough for a communicator, not for half of a product."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from dask_cuda import LocalCUDACluster

    with LocalCUDACluster(n_workers=2, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
    settings = {**SETTINGS, "memory_limit": "60 GiB", "memory_safety_margin": 0}
    with Client(cluster) as client, dgpu.enable(client, **settings):
        yield client


def take(how: str, dask_worker: Any) -> None:
    """Take the memory of a GPU but for a little, from the driver or from CuPy's pool."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    free, _ = cupy.cuda.runtime.memGetInfo()
    plugin = dask_worker.plugins[PLUGIN]
    if how == "driver":
        plugin.taken = cupy.cuda.runtime.malloc(free - ALL_BUT)
    else:
        plugin.taken = cupy.empty(free - ALL_BUT, "uint8")


def give_back(dask_worker: Any) -> None:
    import cupy

    taken = vars(dask_worker.plugins[PLUGIN]).pop("taken", None)
    if isinstance(taken, int):
        cupy.cuda.runtime.free(taken)
    del taken
    cupy.get_default_memory_pool().free_all_blocks()


def give_back_at_release(dask_worker: Any) -> None:
    """Have another owner give its memory back while the gang starts over."""
    member = dask_worker.plugins[PLUGIN].member
    release = member.release

    def releasing() -> None:
        give_back(dask_worker)
        release()

    member.release = releasing


def restore(dask_worker: Any) -> None:
    give_back(dask_worker)
    vars(dask_worker.plugins[PLUGIN].member).pop("release", None)


@pytest.fixture
def x(client: Client) -> Iterator[da.Array]:
    """A matrix of ones on the GPUs, whose product is known."""
    import cupy

    x = da.ones((N, N), chunks=N // 4).map_blocks(cupy.asarray).persist()
    wait(x)
    check(x)  # connects, and compiles
    yield x
    client.run(restore)


def check(x: da.Array) -> None:
    assert bool(((x @ x) == N).all().compute())


@pytest.mark.parametrize("how", ["driver", "pool"])
def test_memory_that_stays_taken_ends_in_one_sentence(
    client: Client, x: da.Array, how: str
) -> None:
    """Other results survive, and the same product is right once the memory is free again."""
    other = (x[:10, :10] + 1).persist()
    wait(other)
    before = launched_runs(client)
    full, _ = sorted(client.scheduler_info()["workers"])
    client.run(take, how, workers=[full])
    with pytest.raises(OutOfMemoryError, match="ran out of memory twice: with") as caught:
        check(x)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.second_bytes <= caught.value.first_bytes
    assert any(full in note for note in caught.value.__notes__)
    assert launched_runs(client) == before + 2
    del caught
    client.run(give_back, workers=[full])
    check(x)
    assert int(other.sum().compute()) == 200
    nothing_left(client, x, other)


@pytest.mark.parametrize("how", ["driver", "pool"])
def test_memory_that_is_free_again_gives_the_right_result(
    client: Client, x: da.Array, how: str
) -> None:
    before = launched_runs(client)
    full, _ = sorted(client.scheduler_info()["workers"])
    client.run(take, how, workers=[full])
    client.run(give_back_at_release, workers=[full])
    check(x)
    assert launched_runs(client) == before + 2
    nothing_left(client, x)
