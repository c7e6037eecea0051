"""Graphs that clients send: opened on the scheduler only if they are new."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.observe import host

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("no_stealing")]

RNG = np.random.default_rng(53)


def loop(x: da.Array, b: da.Array) -> tuple[da.Array, da.Array]:
    """Three steps of conjugate gradients, with long numbers."""
    z, r = b * 0.123456789, b
    for _ in range(3):
        q = x @ r
        step = (r * r).sum() / (r * q).sum()
        z, r = z + step * r, r - step * q
    return z, (r * r).sum()


def test_a_known_graph_is_not_opened(client, on_device, opened):
    counts = []
    for _ in range(4):
        a = RNG.random((24, 24)) + 24 * np.eye(24)
        values = a @ a.T, RNG.random(24)
        arrays = [on_device(each, 8).persist() for each in values]
        wait(arrays)
        before = opened.calls
        found = dask.compute(*loop(*arrays))
        counts.append(opened.calls - before)
        expected = loop(*values)
        np.testing.assert_allclose(host(found[0]), expected[0])
    assert counts[0] > 0
    assert counts[1:] == [0, 0, 0]


def test_several_threads_send_the_same_graph(client, on_device):
    x = on_device(RNG.random((24, 24)), 8).persist()
    expected = host((x @ x).sum(axis=0).compute())

    def compute(at: int) -> Any:
        return client.compute((x @ x).sum(axis=0) * (at + 0.123456789)).result()

    with ThreadPoolExecutor(4) as threads:
        for at, found in enumerate(threads.map(compute, range(12))):
            np.testing.assert_allclose(host(found), expected * (at + 0.123456789))


def test_a_known_graph_whose_blocks_differ_is_left_to_dask(client, on_device, opened):
    """Dask's own tasks are looked up in the sent graph, which is opened for them."""
    with dgpu.enable(client, **{**SETTINGS, "on_error": "fallback"}):
        for values in RNG.random((2, 9, 9)):
            x = on_device(values, 4)
            z = x.map_blocks(lambda block: block[::2]) @ x  # Dask declares all rows
            with pytest.warns(UserWarning, match="left a gang to Dask"):
                got = host(z.compute())
            rows = np.concatenate([values[:4:2], values[4:8:2], values[8:]])
            np.testing.assert_allclose(got, rows @ values)


@pytest.mark.filterwarnings("ignore:dask_dgpu left a graph to Dask on this cluster")
def test_a_cluster_without_the_plugin_computes_the_same(client, on_device):
    """Its scheduler opens the sent graph, and leaves it to Dask."""
    values = RNG.random((8, 8))
    x = on_device(values, 4)
    expected = host((x * 0.123456789).compute())
    options = {"n_workers": 2, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options) as other, Client(other, set_as_default=False) as bare:
        found = bare.compute(x * 0.123456789).result()
        np.testing.assert_array_equal(host(found), expected)
        product = (x @ x).rechunk((8, 2)) + 1
        np.testing.assert_allclose(host(bare.compute(product).result()), values @ values + 1)
