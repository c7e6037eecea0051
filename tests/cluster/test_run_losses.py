"""Calls of ``dgpu.run`` on a cluster that lose a worker, are interrupted or fail amid a batch."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu
from dask_dgpu.batches import sites as cluster_module
from dask_dgpu.batches.executor import _Work
from dask_dgpu.batches.sites import Cluster
from dask_dgpu.environment.facts import gather
from dask_dgpu.environment.settings import read
from dask_dgpu.optimizer import GraphOptimizer
from tests.cluster.conftest import SETTINGS
from tests.cluster.losses import Losses
from tests.cluster.observe import eventually, send_signal, settled
from tests.cluster.test_run_faults import LIMITS, RNG, A, B, exhausting, names, nothing_left

pytestmark = pytest.mark.cluster


TALL = RNG.random((6000, 40))


CALLS: dict[str, tuple[Any, Any]] = {
    "rows": (("matmul", A, B), A @ B),
    "sums": (("einsum", "ij,ik->jk", TALL, TALL), TALL.T @ TALL),
}


@pytest.fixture
def in_batch(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Return a function that has another one called when so many batches have ended."""

    def call_in(batch: int, function: Callable[[], None]) -> None:
        finish, counted = _Work._finish, iter(range(1000))

        def finishing(self: _Work, *args: Any) -> None:
            finish(self, *args)
            if next(counted) == batch:
                function()

        monkeypatch.setattr(_Work, "_finish", finishing)

    return call_in


@pytest.mark.slow
def test_an_operation_that_fails_leaves_the_rest_of_out(client: Client) -> None:
    earlier = names(client)
    x = RNG.random((600, 200))
    x[450:] = -1
    out = np.full((600, 200), -2.0)

    def root(block: Any) -> Any:
        if (block < 0).any():
            raise OSError("negative")
        return np.sqrt(block)

    with dgpu.enable(client, **LIMITS), pytest.MonkeyPatch.context() as patch:
        from dask_dgpu.batches.operations import Operation
        from dask_dgpu.batches.rules import elementwise

        operation = Operation("root", lambda a: a.map_blocks(root, dtype=float), elementwise)
        patch.setattr("dask_dgpu.batches.run.resolve", lambda op: operation)
        plan = dgpu.plan("root", x)
        assert plan.batches > 3
        with pytest.raises(OSError, match="negative") as caught:
            dgpu.run("root", x, out=out)
    (note,) = [each for each in caught.value.__notes__ if each.startswith("dask_dgpu.run")]
    written = int(note.split()[1])
    done = (out != -2).all(axis=1)
    assert 1 <= written < plan.batches
    assert abs(done.sum() - written * plan.rows) <= written
    np.testing.assert_array_equal(out[done], np.sqrt(x[done]))
    assert (out[~done] == -2).all()
    del caught
    eventually(lambda: nothing_left(client, earlier))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CALLS)
def test_interrupting_leaves_nothing(client: Client, in_batch: Any, kind: str) -> None:
    earlier = names(client)

    def interrupt() -> None:
        raise KeyboardInterrupt

    in_batch(1, interrupt)
    call, _ = CALLS[kind]
    with dgpu.enable(client, **LIMITS):
        assert dgpu.plan(*call).batches > 3
        with pytest.raises(KeyboardInterrupt):
            dgpu.run(*call)
    eventually(lambda: nothing_left(client, earlier))
    assert not [each for each in threading.enumerate() if each.name.startswith("dgpu-load")]


def test_other_threads_ask_for_fewer_workers(client: Client) -> None:
    """As the main thread does while the next batch is loaded."""
    site = Cluster(client, GraphOptimizer(read(), gather(client, read())), is_enabled=False)
    workers = set(client.scheduler_info(n_workers=-1)["workers"])
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            client.scheduler_info(n_workers=0)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert all(site._addresses() == workers for _ in range(100))
    finally:
        done.set()
        thread.join()


class TestLosses(Losses):
    @pytest.fixture(autouse=True)
    def through_windows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Blocks go as large ones do."""
        monkeypatch.setattr(cluster_module, "LEAST", 1)

    @pytest.mark.slow
    @pytest.mark.timeout(240)
    @pytest.mark.parametrize("batch", [0, 3])
    @pytest.mark.parametrize("kind", CALLS)
    def test_a_killed_worker(self, client: Client, in_batch: Any, batch: int, kind: str) -> None:
        earlier = names(client)
        in_batch(batch, lambda: send_signal(client, sorted(client.scheduler_info()["workers"])[1]))
        call, wanted = CALLS[kind]
        with dgpu.enable(client, **LIMITS):
            assert dgpu.plan(*call).batches > 4
            found = dgpu.run(*call)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        eventually(lambda: nothing_left(client, earlier))

    @pytest.mark.slow
    @pytest.mark.timeout(240)
    def test_a_killed_worker_of_an_unknown_shape(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        earlier, killed = names(client), []
        compute = Cluster.compute

        def killing(self: Cluster, result: Any) -> Any:
            if not killed:
                killed.append(sorted(client.scheduler_info(n_workers=-1)["workers"])[1])
                send_signal(client, killed[0])
            return compute(self, result)

        monkeypatch.setattr(Cluster, "compute", killing)
        with dgpu.enable(client, **SETTINGS):
            found = dgpu.run(exhausting(A.nbytes), A)
        np.testing.assert_array_equal(np.sort(found), np.sort(A[A > 0.5]))
        assert killed
        eventually(lambda: nothing_left(client, earlier))

    @pytest.mark.slow
    @pytest.mark.parametrize("op", [lambda x: x @ x, "matmul", "fft2"])
    def test_a_worker_that_is_lost_while_operands_are_sent(self, client: Client, op: Any) -> None:
        """Also if there is no smaller batch."""
        earlier = names(client)
        values = RNG.random((64, 64))

        class Source:
            shape, dtype, reads = values.shape, values.dtype, 0

            def __getitem__(self, key: Any) -> Any:
                if not self.reads:
                    send_signal(client, sorted(client.scheduler_info(n_workers=-1)["workers"])[0])
                self.reads += 1  # again, if the loss is seen while they are sent
                return values[key]

        source = Source()
        operands = [source, values] if op == "matmul" else [source]
        wanted = np.fft.fft2(values) if op == "fft2" else values @ values
        with dgpu.enable(client, **SETTINGS):
            found = dgpu.run(op, *operands)
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
        eventually(lambda: nothing_left(client, earlier))

    @pytest.mark.slow
    @pytest.mark.timeout(240)
    @pytest.mark.parametrize("calls", [1, 3])
    def test_workers_that_are_killed_at_any_moment(
        self, client: Client, cluster: Any, calls: int
    ) -> None:
        """Each call is repeated, whichever thread sees the loss first, and how."""
        earlier, chance = names(client), random.Random(calls)
        ops: list[tuple[Any, Any]] = [(lambda x, y: x @ y, A @ B), ("matmul", A @ B)]
        for at in range(6):
            eventually(lambda: settled(cluster), 60)
            op, wanted = ops[at % 2]
            victim = chance.choice(sorted(cluster.scheduler.workers))
            killer = threading.Timer(chance.uniform(0, 0.3), send_signal, [client, victim])
            with dgpu.enable(client, **{**LIMITS, "memory_limit": "2 MiB"}):
                killer.start()
                for found in dgpu.run_many(op, [(A, B)] * calls):
                    np.testing.assert_allclose(found, wanted, rtol=1e-12)
            killer.join()
            eventually(lambda victim=victim: victim not in cluster.scheduler.workers)
            del found
            eventually(lambda: nothing_left(client, earlier))
