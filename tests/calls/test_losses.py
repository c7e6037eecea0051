"""Workers that are lost in the midst of calls."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from distributed.client import FutureCancelledError

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.losses import Losses
from tests.cluster.observe import eventually, host, send_signal, settled

pytestmark = pytest.mark.cluster


class TestCalls(Losses):
    @pytest.mark.timeout(240)
    def test_results_are_computed_again(self, client: Client, placed: da.Array) -> None:
        matrix = da.tile(placed, (8, 8)).rechunk(100).persist()
        a = host(matrix.compute())
        step = dgpu.jit(lambda x, y: (x @ y / len(a), x.sum()))
        x, expected = matrix, a
        totals: list[Any] = []
        for at in range(40):
            if at == 20:
                send_signal(client, min(client.scheduler_info()["workers"]))
            x, total = step(x, matrix)
            totals.append((total, expected.sum()))
            expected = expected @ a / len(a)
        np.testing.assert_allclose(host(x.compute()), expected)
        for total, own in totals:
            np.testing.assert_allclose(float(total), own)
        np.testing.assert_allclose(host((x + 1).compute()), expected + 1)

    @pytest.mark.slow
    @pytest.mark.timeout(240)
    def test_results_that_dask_has_lost(
        self, client: Client, cluster: Any, placed: da.Array
    ) -> None:
        step = dgpu.jit(lambda x: x + 1)
        x = step(placed)
        np.testing.assert_allclose(host((x + 1).compute()), host(placed.compute()) + 2)
        victim = min(client.scheduler_info()["workers"])
        send_signal(client, victim)
        eventually(lambda: victim not in cluster.scheduler.workers)
        states = client.futures.values()
        eventually(lambda: {each.status for each in [*states]} & {"cancelled", "lost"})
        np.testing.assert_allclose(host((x + 2).compute()), host(placed.compute()) + 3)

    @pytest.mark.timeout(240)
    def test_a_rank_that_hangs(self, client: Client, placed: da.Array) -> None:
        matrix = da.tile(placed, (8, 8)).rechunk(100).persist()
        step = dgpu.jit(lambda x: (x @ x).sum())
        with dgpu.enable(client, **SETTINGS | {"gang_timeout": "2s"}):
            expected = float(step(matrix))
            victim = min(client.scheduler_info()["workers"])
            (pid,) = client.run(os.getpid, workers=[victim]).values()
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(dgpu.errors.GangError, match="no progress of a call for 2 s"):
                    float(step(matrix))
            finally:
                os.kill(pid, signal.SIGCONT)
            np.testing.assert_allclose(float(step(matrix)), expected)

    @pytest.mark.slow
    @pytest.mark.timeout(1200)
    @pytest.mark.parametrize("donate", [(), (0,)], ids=["kept", "donated"])
    def test_kills_at_random(
        self, client: Client, cluster: Any, placed: da.Array, device: str, donate: tuple[int, ...]
    ) -> None:
        """Fifty kills in the midst of calls and loops, which end right; or in a named error.

        There is an error only for arrays whose memory was donated.
        """
        chance = random.Random(len(donate))
        a = host(placed.compute())
        step = dgpu.jit(lambda x, y: (x @ y / len(a), x.sum()), donate=donate)
        again = dgpu.jit(lambda x: x @ placed / len(a))
        failed = 0
        for at in range(50 if device == "cpu" else 3):
            eventually(lambda: settled(cluster), seconds=60)
            victim = chance.choice(sorted(cluster.scheduler.workers))
            (pid,) = client.run(os.getpid, workers=[victim]).values()
            killer = threading.Timer(chance.uniform(0, 0.3), os.kill, (pid, signal.SIGKILL))
            x, own, totals = dgpu.jit(lambda x: x + 0)(placed), a, list[Any]()
            killer.start()
            try:
                while killer.is_alive() or len(totals) < 20:
                    x, total = step(x, placed)
                    totals.append((total, own.sum()))
                    own = own @ a / len(a)
                    if at % 3 == 1:
                        n = chance.randrange(5)
                        x = dgpu.fori_loop(n, lambda i, x: again(x), x)
                        own = own @ np.linalg.matrix_power(a / len(a), n)
                    if at % 3 == 2 and not chance.randrange(5):
                        with suppress(FutureCancelledError):  # as of data that was scattered
                            np.testing.assert_allclose(host((x + 1).compute()), own + 1)
                np.testing.assert_allclose(host(x.compute()), own)
                for total, expected in totals:
                    np.testing.assert_allclose(float(total), expected)
            except dgpu.errors.GangError:
                if not donate:
                    raise
                failed += 1
            killer.join()
            eventually(lambda victim=victim: victim not in cluster.scheduler.workers)
        assert failed < 25
