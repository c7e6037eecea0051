"""Bars that count the steps of gangs."""

from __future__ import annotations

import time
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, LocalCluster, wait

import dask_dgpu as dgpu
from dask_dgpu.observe.progress import _gangs, _under_way
from tests.cluster.observe import eventually, held_back, host

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

A = np.random.default_rng(3).random((24, 20))


def refuse(block: Any) -> Any:
    raise ArithmeticError("no")


def slow(block: Any) -> Any:
    time.sleep(0.4)
    return block


def test_each_gang_has_a_bar(client, on_device, capsys):
    x = on_device(A, (6, 20)).persist()
    y = da.fft.ifft2(da.fft.fft2(x).map_blocks(slow)).real.persist()
    dgpu.progress(y)
    lines = capsys.readouterr().out.splitlines()
    assert all(future.done() for future in y.dask.values())
    np.testing.assert_allclose(host(y.compute()), A, atol=1e-12)
    assert len(lines) == 2
    blocks, gang = lines
    count = y.npartitions
    assert blocks.startswith("blocks")
    assert f"{count}/{count}" in blocks
    assert gang.startswith("fft2-")
    assert "4/4" in gang


def test_steps_are_counted_while_a_gang_runs(client, on_device):
    x = on_device(A, (6, 20)).persist()
    spectrum = da.fft.fft2(x)
    held = spectrum.map_blocks(held_back, "go-on", meta=spectrum._meta)  # not called here
    y = da.fft.fft2(held).persist()
    gangs = eventually(lambda: client.run_on_scheduler(_gangs, keys=list(y.dask)))

    def looked() -> Any:
        (gang,) = client.run_on_scheduler(_under_way, gangs=gangs) or [{"done": 0}]
        return gang["done"] and gang

    gang = eventually(looked)
    assert (gang["done"], gang["steps"]) == (1, 3)
    Event("go-on", client=client).set()
    wait(y)
    assert client.run_on_scheduler(_under_way, gangs=gangs) == []


def test_a_failure_is_an_end(client, on_device, capsys):
    y = da.fft.fft2(on_device(A, (6, 20)).map_blocks(refuse, meta=A, dtype=float)).persist()
    dgpu.progress(y)
    count = y.npartitions
    assert f"{count}/{count}" in capsys.readouterr().out
    assert {future.status for future in y.dask.values()} == {"error"}


def test_what_is_refused():
    with pytest.raises(ValueError, match="expected futures of one client, got no future"):
        dgpu.progress(da.ones(3))
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        future = client.submit(abs, -1)
        with pytest.raises(dgpu.errors.DgpuError, match="not enabled on this cluster"):
            dgpu.progress(future)
