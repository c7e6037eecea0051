from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS, start_cluster
from tests.cluster.faults import find_workers_of
from tests.cluster.observe import (
    counted,
    eventually,
    host,
    launched_runs,
    left_over,
    reports,
)

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(5)
A = RNG.integers(-9, 9, (61, 47))
B = RNG.integers(-9, 9, (47, 29))


@pytest.fixture
def x(on_device):
    return on_device(A, (17, 11))


@pytest.fixture
def y(on_device):
    return on_device(B, (11, 13))


def test_product_is_that_of_a_gang(client, x, y):
    before = launched_runs(client)
    z = x @ y
    result = z.compute()
    np.testing.assert_array_equal(host(result), A @ B)
    assert result.dtype == z.dtype
    assert type(result) is type(z._meta)
    assert launched_runs(client) == before + 1
    eventually(lambda: left_over(client) == 0)


def test_ranks_read_each_other_or_send(client, device, x, y):
    """GPUs of one host with pools read blocks; the same product also goes by messages."""
    optimizer = dask.config.get("array_optimize")
    assert optimizer.facts.one_sided == (device == "cuda")
    for one_sided in (True, False):
        cheap = ("window_seconds", 1e-12)
        facts = replace(optimizer.facts, one_sided=one_sided, figures=(cheap,))
        with dask.config.set(array_optimize=replace(optimizer, facts=facts)):
            before = launched_runs(client)
            np.testing.assert_array_equal(host((x @ y + one_sided).compute()), A @ B + one_sided)
            assert launched_runs(client) == before + 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float32", "complex64"])
def test_dtypes(client, on_device, dtype):
    a, b = A.astype(dtype), B.astype(dtype)
    z = on_device(a, (17, 11)) @ on_device(b, (11, 13))
    result = z.compute()
    assert result.dtype == z.dtype
    wanted = a.astype(z.dtype) @ b.astype(z.dtype)
    exact = z.dtype.kind not in "fc"
    bound = 0.0 if exact else 47 * 81 * 47 * float(np.finfo(z.dtype).eps)
    np.testing.assert_allclose(host(result), wanted, rtol=0, atol=bound)


def test_inside_larger_graphs(client, x, y, on_device):
    v, w = on_device(A[0], 17), on_device(B[:, 0], 11)
    results = dask.compute(
        (x @ y).sum(), (x @ y) @ (y.T @ x.T), da.dot(x, y), v @ y, x @ w, (x @ y)[20:30, 3]
    )
    oracle = (
        (A @ B).sum(),
        (A @ B) @ (B.T @ A.T),
        A @ B,
        A[0] @ B,
        A @ B[:, 0],
        (A @ B)[20:30, 3],
    )
    for result, wanted in zip(results, oracle, strict=True):
        np.testing.assert_array_equal(host(result), wanted)


@pytest.mark.parametrize("inputs", ["new", "in memory", "under way"])
def test_two_numbers_of_one_compute_are_one_gang(client, on_device, inputs):
    square = A[:40, :40] / 100
    a, r, w = on_device(square, 17), on_device(A[0, :40], 17), on_device(A[1, :40], 17)
    r_host, w_host = A[0, :40], A[1, :40]
    if inputs == "in memory":
        r, w = dask.persist(r, w)
        wait([r, w])
    before = launched_runs(client)
    if inputs == "under way":
        before += 2
        r = (a @ r).persist()
        w = (a @ r).persist()
        r_host = square @ r_host
        w_host = square @ r_host
    found = dask.compute((r * r).sum(), (r * w).sum())
    np.testing.assert_allclose(list(map(float, found)), [r_host @ r_host, r_host @ w_host])
    assert launched_runs(client) == before + 1


def test_tasks_submitted(client, x, y):
    z, tasks, blocks, ranks = counted(client, da.matmul, x, y)
    assert blocks < tasks <= blocks + 2 * ranks + 2
    np.testing.assert_array_equal(host(z.compute()), A @ B)


def test_second_use_makes_no_communicator(client, x, y):
    (x @ y).compute()
    before = {w: r["connected"] for w, r in reports(client).items()}
    (y.T @ x.T).compute()
    assert {w: r["connected"] for w, r in reports(client).items()} == before


@pytest.mark.slow
@pytest.mark.parametrize("how", ["persist", "annotate"])
@pytest.mark.parametrize("count", [1, 2])
def test_subset_of_workers(client, x, y, how, count):
    chosen = sorted(client.scheduler_info()["workers"])[:count]
    if how == "persist":
        z = (x @ y).persist(workers=chosen)
    else:
        with dask.annotate(workers=chosen):
            z = (x @ y).persist()
    wait(z)
    holders = {worker for workers in client.who_has(z).values() for worker in workers}
    assert holders <= set(chosen)
    np.testing.assert_array_equal(host(z.compute()), A @ B)


def test_fewer_blocks_than_workers(client, on_device):
    z = on_device(A, -1) @ on_device(B, -1)
    np.testing.assert_array_equal(host(z.compute()), A @ B)


def test_block_rows_of_length_zero(client, on_device):
    a = on_device(A, ((0, 40, 0, 21), (20, 27))) @ on_device(B, ((20, 27), (29, 0)))
    np.testing.assert_array_equal(host(a.compute()), A @ B)
    empty = on_device(A[:0], (17, 11)) @ on_device(B, (11, 13))
    assert empty.compute().shape == (0, 29)


@pytest.mark.slow
def test_stored(client, x, y, tmp_path, device):
    target = np.zeros((61, 29), A.dtype)
    z = (x @ y).map_blocks(host, dtype=A.dtype, meta=np.empty((0, 0), A.dtype))
    stored = da.store(z, target, return_stored=True, compute=False)
    np.testing.assert_array_equal(stored.compute(), A @ B)
    z.to_zarr(str(tmp_path / "z"))
    np.testing.assert_array_equal(da.from_zarr(str(tmp_path / "z")).compute(), A @ B)


@pytest.mark.slow
def test_delayed(client, x, y):
    total = dask.delayed(lambda block: float(block.sum()))(x @ y)
    assert total.compute() == (A @ B).sum()
    before = launched_runs(client)
    blocks = [[block.compute() for block in row] for row in (x @ y).to_delayed()]
    np.testing.assert_array_equal(np.block([[host(b) for b in row] for row in blocks]), A @ B)
    assert launched_runs(client) == before


def test_other_scheduler_with_a_client_about(client, x, y):
    np.testing.assert_array_equal(host((x @ y).compute(scheduler="threads")), A @ B)


def test_numpy_blocks_stay_numpy_blocks(client):
    z = da.from_array(A, chunks=17) @ da.from_array(B, chunks=17)
    result = z.compute()
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, A @ B)


def test_two_clients(client, cluster, x, y):
    with Client(cluster, set_as_default=False) as other:
        mine, theirs = client.compute(x @ y), other.compute(y.T @ x.T)
        np.testing.assert_array_equal(host(mine.result()), A @ B)
        np.testing.assert_array_equal(host(theirs.result()), (A @ B).T)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_fifty_products_from_each_of_two_threads(client, x, y):
    x, y = dask.persist(x, y)
    found: list[Any] = []

    def submit(start: int) -> None:
        products = [(x + i) @ y for i in range(start, start + 50)]
        totals = [client.compute(product.sum()) for product in products]
        found.extend((i, total.result()) for i, total in enumerate(totals, start))

    threads = [threading.Thread(target=submit, args=(start,)) for start in (0, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 100
    for i, total in found:
        assert total == ((A + i) @ B).sum()
    eventually(lambda: left_over(client) == 0)


def test_health(client):
    health = dgpu.check_health(client)
    assert health.ok, str(health)
    assert len(health.workers) == len(client.scheduler_info()["workers"])


def test_enabling_twice_changes_nothing(client, cluster, x, y):
    dgpu.enable(client, **SETTINGS)
    np.testing.assert_array_equal(host((x @ y).compute()), A @ B)
    assert dgpu.explain(x @ y).rewritten


def test_disabled_again(client, x, y, tmp_path: Path):
    dgpu.disable()
    before = launched_runs(client)
    np.testing.assert_array_equal(host((x @ y).compute()), A @ B)
    assert launched_runs(client) == before
    assert not hasattr(da.Array.to_delayed, "__wrapped__")


@pytest.mark.slow
def test_enabled_before_the_first_worker_is_there():
    with start_cluster("cpu", n_workers=0) as cluster, Client(cluster) as client:
        comes = threading.Timer(0.5, cluster.scale, (2,))
        comes.start()
        with dgpu.enable(client):
            assert dask.config.get("array_optimize").facts.workers >= 1
        comes.join()


def test_enabled_with_another_device(client, device, monkeypatch):
    facts, other = dask.config.get("array_optimize").facts, {"cpu": "cuda", "cuda": "cpu"}[device]
    find_workers_of(other, monkeypatch)
    message = f"expected setting dgpu.device to be {device!r}, got .*, which is {other!r} here"
    with pytest.raises(dgpu.errors.DgpuError, match=message):
        dgpu.enable(client)
    assert dask.config.get("array_optimize").facts == facts
