"""Workers that are lost in the midst of calls."""

from __future__ import annotations

import os
import signal
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.losses import Losses
from tests.cluster.observe import eventually, host, send_signal

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
