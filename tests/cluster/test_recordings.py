"""Programs of many small steps that GPUs record: right on new data, and after losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.losses import Losses
from tests.cluster.observe import PLUGIN, eventually, host, nothing_left, send_signal

pytestmark = pytest.mark.cluster

N, CHUNK, STEPS = 60, 17, 6
CLOSE = {"rtol": 1e-9, "atol": 1e-10}
Array = Any


def solve(xp: Any, a: Array, b: Array) -> Array:
    """Return the solution after some steps of conjugate gradients."""
    x, r, p = b * 0, b, b
    rs = (r * r).sum()
    for _ in range(STEPS):
        ap = a @ p
        alpha = rs / (p * ap).sum()
        x, r = x + alpha * p, r - alpha * ap
        new = (r * r).sum()
        p, rs = r + new / rs * p, new
    return x


def data(seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    half = rng.random((N, N))
    return half @ half.T / N + np.eye(N), rng.random(N)


def check(in_memory: Callable[..., da.Array], seeds: Any) -> list[da.Array]:
    """Solve with new data, with each seed; return the solutions."""
    found = []
    for seed in seeds:
        a, b = data(seed)
        x = solve(da, in_memory(a, CHUNK), in_memory(b, CHUNK)).persist()
        wait(x)
        np.testing.assert_allclose(host(x.compute()), solve(np, a, b), **CLOSE)
        found.append(x)
    return found


def recordings(client: Client) -> set[int]:
    """Return the numbers of recordings of all workers."""

    def count(dask_worker: Any) -> int:
        sequences = dask_worker.plugins[PLUGIN].member.device.sequences
        return 0 if sequences is None else len(sequences)

    return set(client.run(count).values())


def test_new_data_and_results_that_stay(client: Client, device: str, in_memory: Any) -> None:
    results = check(in_memory, range(5))
    assert all(recordings(client)) == (device == "cuda")
    for seed, x in enumerate(results):  # later runs have not overwritten them
        np.testing.assert_allclose(host(x.compute()), solve(np, *data(seed)), **CLOSE)
    del results, x
    nothing_left(client)


def test_explain_has_the_time_of_a_recording(client: Client, device: str, in_memory: Any) -> None:
    *_, x = check(in_memory, range(4))
    rows = dgpu.explain(x, measured=True).to_dict()["operations"]
    recorded = [row for row in rows if "recorded: " in row["why"]]
    assert bool(recorded) == (device == "cuda")
    times = [row["measured"] for row in rows]
    if recorded:
        assert max(time or 0 for time in times) > 1e-5
    else:
        assert all(time > 0 for time in times)


def _scaled(x: da.Array) -> da.Array:
    return (x - x.mean(axis=0)) / x.std() + abs(x).max()


REDUCED: dict[str, tuple[tuple[int, int], Callable[[da.Array], da.Array]]] = {
    "means and deviations": ((N, N), _scaled),
    "compensated sums": ((N, N), lambda x: x / dgpu.sum(x, 0) + dgpu.mean(x * x)),
    "wide compensated sums": ((8, 70_000), lambda x: x / dgpu.sum(x, 0)),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("means and deviations", "float32"),
        pytest.param("compensated sums", "float64", marks=pytest.mark.slow),
        pytest.param("means and deviations", "float64", marks=pytest.mark.slow),
        pytest.param("compensated sums", "float32", marks=pytest.mark.slow),
        pytest.param("wide compensated sums", "float32", marks=pytest.mark.slow),
        pytest.param("wide compensated sums", "float64", marks=pytest.mark.slow),
    ],
)
def test_reductions(client: Client, device: str, in_memory: Any, name: str, dtype: str) -> None:
    """The host waits for none of them, so they are recorded as other steps are."""
    client.run(lambda dask_worker: dask_worker.plugins[PLUGIN].member.release())
    rng, (shape, build) = np.random.default_rng(5), REDUCED[name]
    for _ in range(4):
        a = rng.random(shape).astype(dtype)
        x, wanted = in_memory(a, (-(-shape[0] // 4), shape[1])), da.from_array(a, chunks=shape)
        for _ in range(STEPS):
            x, wanted = build(x), build(wanted)
        x = x.persist()
        wait(x)
        found = host(x.compute())
        assert found.dtype == dtype
        np.testing.assert_allclose(
            found, wanted.compute(scheduler="sync"), rtol=1e4 * np.finfo(dtype).eps, atol=1e-5
        )
    assert all(recordings(client)) == (device == "cuda")


@pytest.mark.slow
def test_a_profiler_sees_all_steps(client: Client, in_memory: Any) -> None:
    check(in_memory, range(3))
    a, b = (in_memory(each, CHUNK) for each in data(3))
    with dgpu.Profiler() as profiler:
        wait(solve(da, a, b).persist())
    rows = {row["operation"]: row for row in profiler.to_dict()["rows"] if row["by"] == "gang"}
    assert rows["matmul"]["calls"] == STEPS
    assert rows["matmul"]["seconds"] > 0


@pytest.mark.slow
def test_without_memory_for_them_there_are_none(client: Client, in_memory: Any) -> None:
    client.run(lambda dask_worker: dask_worker.plugins[PLUGIN].member.release())
    with dgpu.enable(client, gang_kept_recordings=0, **SETTINGS):
        check(in_memory, range(3))
    assert recordings(client) == {0}


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestLosses(Losses):
    def test_a_worker_is_killed_between_runs(
        self, client: Client, cluster: Any, in_memory: Any
    ) -> None:
        """The others abort a communicator whose calls are in recordings, and go on."""
        check(in_memory, range(3))
        workers = set(cluster.scheduler.workers)
        send_signal(client, sorted(workers)[1])
        eventually(lambda: len(workers & set(cluster.scheduler.workers)) == len(workers) - 1)
        check(in_memory, range(3, 6))
        eventually(lambda: len(cluster.scheduler.workers) == len(workers), 60)
        check(in_memory, range(6, 9))
        nothing_left(client)

    def test_a_worker_is_killed_while_a_recording_runs(
        self, client: Client, cluster: Any, in_memory: Any
    ) -> None:
        check(in_memory, range(3))
        self.slow(client, 1.0)
        a, b = data(5)
        x = client.compute(solve(da, in_memory(a, CHUNK), in_memory(b, CHUNK)))
        value = self.result_after_loss(client, x)
        np.testing.assert_allclose(value, solve(np, a, b), **CLOSE)
