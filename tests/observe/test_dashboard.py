"""Dask's dashboard in a real browser: the steps of a gang are in its task stream."""

from __future__ import annotations

import time
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu
from tests.support.browser import chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.dashboard,
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.timeout(240),
]

SECONDS = 30
DRAWN = """
(() => {
    const find = each => each.get_model_by_name("task_stream");
    const figure = (globalThis.Bokeh?.documents ?? []).map(find).find(each => each !== null);
    const data = figure?.renderers[0].data_source.data ?? {name: [], worker: [], duration: []};
    const row = (name, at) => ({name, worker: data.worker[at], duration: data.duration[at]});
    return [...data.name].map(row);
})()
"""
"""The rectangles of the task stream: Bokeh draws them on a canvas, which no test can read."""


def test_steps_of_a_gang_are_in_the_task_stream() -> None:
    a = np.random.default_rng(5).random((64, 64))
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(n_workers=2, **options) as cluster,
        Client(cluster) as client,
        dgpu.enable(client, when="always", on_error="raise"),
        chromium(1200, 800) as browser,
    ):
        port = cluster.scheduler.http_server.port
        browser.open(f"http://127.0.0.1:{port}/individual-task-stream")
        wait_for(browser, "start")  # Dask's own placeholder: the page is connected
        x = da.from_array(a, chunks=(16, 64))
        np.testing.assert_allclose(da.fft.fft2(x).compute(), np.fft.fft2(a), atol=1e-10)
        steps = wait_for(browser, "fft2")
        workers = set(client.scheduler_info(n_workers=-1)["workers"])
    assert {each["worker"] for each in steps} == workers
    assert all(each["duration"] > 0 for each in steps)


def wait_for(browser: Any, name: str) -> list[dict[str, Any]]:
    """Return the rectangles of an operation, once the page has some."""
    limit = time.monotonic() + SECONDS
    while True:
        drawn: list[dict[str, Any]] = browser.value(DRAWN) or []
        if found := [each for each in drawn if each["name"] == name]:
            return found
        assert time.monotonic() < limit, {each["name"] for each in drawn}
        time.sleep(0.1)
