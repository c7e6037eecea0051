"""Regions on a cluster: one gang, few tasks, values, and with workers lost."""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, futures_of, get_task_stream, get_worker, wait
from distributed.diagnostics.task_stream import rectangles

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.losses import Losses
from tests.cluster.observe import (
    counted,
    eventually,
    host,
    launched_runs,
    left_over,
    running,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(10)
A = RNG.random((60, 44))
SQUARE = RNG.random((44, 44))


@pytest.fixture
def x(on_device):
    return on_device(A, (7, 44))


def waves(x: da.Array) -> da.Array:
    """Return a spectral filter, made of nothing, of the kind of blocks that ``x`` has."""
    rows, columns = x.shape
    k = da.fft.fftfreq(rows, chunks=7)[:, None] ** 2 + da.fft.fftfreq(columns, chunks=-1)[None] ** 2
    mask = da.exp(-9 * k)
    return mask if type(x._meta) is np.ndarray else mask.map_blocks(_moved)


def _moved(block: Any) -> Any:
    import cupy

    return cupy.asarray(block)


def filtered(x: da.Array) -> da.Array:
    return da.fft.ifft2(da.fft.fft2(x) * waves(x)).real


def wanted() -> Any:
    rows, columns = A.shape
    k = np.fft.fftfreq(rows)[:, None] ** 2 + np.fft.fftfreq(columns)[None] ** 2
    return np.fft.ifft2(np.fft.fft2(A) * np.exp(-9 * k)).real


def compute(client: Client, y: da.Array) -> tuple[Any, int]:
    """Return a result, and how many gangs it took."""
    before = launched_runs(client)
    result = host(client.compute(y).result(timeout=100))
    eventually(lambda: left_over(client) == 0)
    return result, launched_runs(client) - before


def test_a_filter_is_one_gang(client, x):
    result, gangs = compute(client, filtered(x))
    np.testing.assert_allclose(result, wanted(), rtol=1e-10, atol=1e-12)
    assert gangs == 1


def test_from_blocks_to_a_scalar(client, x):
    error = abs(filtered(x) - x).max()
    result, gangs = compute(client, error)
    np.testing.assert_allclose(result, abs(wanted() - A).max(), rtol=1e-10)
    assert gangs == 1


def test_reductions_and_broadcasts_travel(client, on_device):
    x = on_device(SQUARE, (11, 13))
    y = x - x.mean(axis=0)
    z = (y @ y.T) / y.var(axis=1)
    result, gangs = compute(client, z + z.argmax(axis=0))
    centred = SQUARE - SQUARE.mean(axis=0)
    gram = (centred @ centred.T) / centred.var(axis=1)
    np.testing.assert_allclose(result, gram + gram.argmax(axis=0), rtol=1e-9, atol=1e-9)
    assert gangs == 1


def test_ten_collectives_submit_few_tasks(client, on_device):
    def powers(x: Any) -> Any:
        y = x
        for _ in range(10):
            y = (y @ x) / 22 + 1
        return y

    before = launched_runs(client)
    y, tasks, blocks, ranks = counted(client, powers, on_device(SQUARE, (11, 13)))
    assert tasks <= blocks + 2 * ranks + 2
    assert launched_runs(client) - before == 1
    np.testing.assert_allclose(host(y.compute()), powers(SQUARE), rtol=1e-10)


def test_results_are_ordinary_futures(client, x):
    """Persisted results that share a region, and further work on one of them."""
    spectrum = da.fft.fft2(x)
    power = abs(spectrum) ** 2
    spectrum, power = dask.persist(spectrum, power)
    wait([spectrum, power])
    expected = np.fft.fft2(A)
    np.testing.assert_allclose(host(spectrum.compute()), expected, rtol=1e-10, atol=1e-10)
    more = da.fft.ifft2(spectrum).real + power.sum()
    np.testing.assert_allclose(host(more.compute()), A + (abs(expected) ** 2).sum(), rtol=1e-10)
    del more, spectrum, power
    eventually(lambda: left_over(client) == 0)


def test_arrays_of_futures(client, x):
    """Of what another computation makes, and of single blocks of a persisted array."""
    total = client.compute(x)
    whole = da.from_delayed(total, x.shape, meta=x._meta)
    np.testing.assert_allclose(compute(client, whole.rechunk(11).T @ x)[0], A.T @ A)
    persisted = x.persist()
    futures = {future.key: future for future in futures_of(persisted)}
    first = da.from_delayed(futures[x.name, 0, 0], (7, 44), meta=x._meta)
    np.testing.assert_allclose(compute(client, first @ x.T)[0], A[:7] @ A.T)


def _total(block: Any) -> float:
    return float(block.sum())


def test_an_array_of_a_delayed_of_an_array(client, x):
    """Dask wraps the tasks of the gang within, and would fuse them with others."""
    y = abs(da.fft.fft2(x))
    total = da.from_delayed(dask.delayed(_total)(y), (), dtype=float)
    result, gangs = compute(client, total + 1)
    np.testing.assert_allclose(result, abs(np.fft.fft2(A)).sum() + 1)
    assert gangs == 1
    result, gangs = compute(client, da.from_delayed(dask.delayed(_total)(y[:3]), (), float) + 1)
    np.testing.assert_allclose(result, abs(np.fft.fft2(A))[:3].sum() + 1)


def test_errors_name_the_operation(client, x):
    def broken(block: Any) -> Any:
        raise ArithmeticError("no such number")

    y = da.fft.fft2(x).map_blocks(broken, dtype=complex, meta=x._meta, name="broken-0123456789")
    with pytest.raises(ArithmeticError, match="no such number") as raised:
        client.compute(y).result(timeout=60)
    (where,) = raised.value.__notes__
    assert "on rank " in where
    assert "broken-01234567" in where
    assert raised.traceback[-1].name == "broken"  # on the worker
    with pytest.raises(ArithmeticError, match="no such number") as raised:
        client.compute(abs(y).sum()).result(timeout=60)  # which are fused
    assert "in broken" in raised.value.__notes__
    result, _ = compute(client, filtered(x))
    np.testing.assert_allclose(result, wanted(), rtol=1e-10, atol=1e-12)


def count_memory(device: str) -> None:
    """Have a worker know from now on how much memory of arrays is in use."""
    if device == "cpu":
        tracemalloc.start()
        return
    import rmm

    counting = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_current_device_resource())
    rmm.mr.set_current_device_resource(counting)


def counted_memory(device: str) -> int:
    gc.collect()
    if device == "cpu":
        arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
        snapshot = tracemalloc.take_snapshot().filter_traces([arrays])
        return sum(trace.size for trace in snapshot.traces)
    import rmm

    return int(rmm.mr.get_current_device_resource().allocation_counts.current_bytes)


def added(client: Client, device: str, before: dict[str, int]) -> Any:
    """Bytes that each worker has in use beyond those of before."""
    now = client.run(counted_memory, device)
    return np.array([now[worker] - before[worker] for worker in before])


class TestLosses(Losses):
    """A worker is lost, or the caller goes away."""

    @pytest.mark.slow
    def test_cancelled_midway_frees_everything(self, client, device, on_device, x):
        big = on_device(np.random.default_rng(4).random((640, 512)), (40, 512)).persist()
        wait(big)

        def dawdle(block: Any, seconds: float) -> Any:
            time.sleep(seconds)
            return block

        def started(seconds: float) -> Any:
            spectrum = da.fft.fft2(big)
            held = spectrum.map_blocks(dawdle, seconds, meta=spectrum._meta)
            return client.compute(abs(da.fft.ifft2(held)).max())

        started(0).result()  # what is kept for good is there now
        eventually(lambda: left_over(client) == 0)
        client.run(count_memory, device)
        before = client.run(counted_memory, device)
        future = started(0.3)
        eventually(lambda: running(client))
        share = 640 * 512 * 16 // len(before)
        eventually(lambda: all(added(client, device, before) > share // 2))
        future.cancel()
        eventually(lambda: left_over(client) == 0)
        eventually(lambda: all(added(client, device, before) < share // 8))
        result, _ = compute(client, filtered(x))
        np.testing.assert_allclose(result, wanted(), rtol=1e-10, atol=1e-12)

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_kills_at_random_moments(self, client, cluster, device, x):
        for result in self.killed_at_random(
            client,
            cluster,
            device,
            lambda: client.compute(filtered(x) * 1),
            seed=13,
            seconds=0.8,
        ):
            np.testing.assert_allclose(result, wanted(), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_without_regions_each_collective_is_a_gang(client, x):
    with dgpu.enable(client, **SETTINGS, regions=False):
        result, gangs = compute(client, filtered(x))
    np.testing.assert_allclose(result, wanted(), rtol=1e-10, atol=1e-12)
    assert gangs > 1


def test_functions_find_their_worker(client, x):
    def numbered(block: Any) -> Any:
        return block * 0 + len(get_worker().plugins) // len(get_worker().plugins)

    result, gangs = compute(client, da.fft.fft2(x).map_blocks(numbered, meta=x._meta).real)
    assert (result == 1).all()
    assert gangs == 1


@pytest.mark.slow
def test_functions_may_take_longer_than_a_gang_may_stand_still(client, on_device):
    x = on_device(SQUARE, (11, 44))  # a block a worker, which all take as long

    def slow(block: Any) -> Any:
        time.sleep(4)
        return block

    with dgpu.enable(client, **(SETTINGS | {"gang_timeout": "2s"})):
        y = da.fft.fft2(x).map_blocks(slow, dtype=complex, meta=x._meta)
        result, _ = compute(client, y)
    np.testing.assert_allclose(result, np.fft.fft2(SQUARE), rtol=1e-10, atol=1e-10)


def test_steps_are_shown_where_dask_shows_tasks(client, x):
    y = filtered(x) * 3
    unmeasured = dgpu.explain(y, measured=True).to_dict()["regions"]
    with get_task_stream(client) as stream:
        compute(client, y)
    names = {str(entry["key"][0]).partition("-")[0] for entry in stream.data}
    assert {"fft2", "ifft2", "mul"} <= names
    assert {"fft2", "ifft2", "mul"} <= set(rectangles(stream.data)["name"])  # on the dashboard
    (region,) = dgpu.explain(y, measured=True).to_dict()["regions"]
    assert unmeasured[0]["measured"] == []
    assert len(region["measured"]) == len(region["predicted"]) == len(region["steps"])
    assert all(seconds >= 0 for seconds in region["measured"])
    assert sum(region["measured"]) > 0
    assert " measured " in str(dgpu.explain(y, measured=True))


@pytest.mark.slow
def test_what_others_keep_is_not_there_for_a_gang(client, device):
    """Memory that persisted results take counts; what is spilled or released does not."""
    limit = 64 << 20
    workers = len(client.scheduler_info(n_workers=-1)["workers"])
    with (
        dask.config.set({"array.backend": "cupy" if device == "cuda" else "numpy"}),
        dgpu.enable(client, **SETTINGS, memory_limit=limit, memory_safety_margin=0),
    ):
        a = da.random.default_rng(1).random((512, 512), chunks=256).persist()
        wait(a)
        product = a @ a

        def reasons() -> list[str]:
            return [piece.reason for piece in dgpu.explain(product).declined]

        assert reasons() == []
        kept = da.random.default_rng(2).random((workers, limit // 8), chunks=(1, -1)).persist()
        wait(kept)
        (reason,) = reasons()
        assert "0 B may be used" in reason
        before = launched_runs(client)
        np.testing.assert_allclose(host(product.compute()), host(a.compute()) @ host(a.compute()))
        assert launched_runs(client) == before
        del kept
        eventually(lambda: reasons() == [])
        np.testing.assert_allclose(host(product.compute()), host(a.compute()) @ host(a.compute()))
        assert launched_runs(client) == before + 1
