"""Bars that count the steps of gangs."""

from __future__ import annotations

import io
import re
import sys
import time
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, LocalCluster

import dask_dgpu as dgpu
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
    assert len(lines) == 3
    tasks, gang, end = lines
    count = y.npartitions
    assert tasks.startswith("tasks")
    assert f"{count}/{count}" in tasks
    assert gang.startswith("fft2-")
    assert "4/4" in gang
    assert re.fullmatch(rf"{count} tasks, 1 gang of 4 steps in [\d.]+ m?s", end)
    dgpu.progress(y)
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{count} tasks in ")


@pytest.mark.slow
def test_a_closed_output_gets_no_bars(client, on_device, monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    y = on_device(A, (6, 20)).map_blocks(slow).persist()
    dgpu.progress(y)
    assert all(future.done() for future in y.dask.values())


@pytest.mark.slow
def test_plain_tasks_are_counted(client, on_device, capsys):
    y = on_device(A, (6, 20)).map_blocks(slow)
    with dask.config.set({"optimization.fuse.active": False}), dask.annotate(dgpu=False):
        y = (y.map_blocks(abs).map_blocks(abs)).persist()
    dgpu.progress(y)
    tasks, end = capsys.readouterr().out.splitlines()
    total = int(re.search(r"(\d+)/\1 ", tasks)[1])
    assert total >= y.npartitions
    assert end.startswith(f"{total} tasks in ")


class Place:
    """Below a cell of a notebook."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def update(self, html: Any) -> None:
        self.drawn.append(html.data)


@pytest.mark.slow
def test_it_does_not_block_a_notebook(client, on_device, monkeypatch):
    place = Place()
    monkeypatch.setattr("distributed.utils.is_kernel", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: place)
    x = on_device(A, (6, 20))
    y = da.fft.fft2(x.map_blocks(held_back, "notebook", meta=x._meta)).map_blocks(slow).persist()
    dgpu.progress(y)
    assert not all(future.done() for future in y.dask.values())
    eventually(lambda: place.drawn)
    assert ">tasks<" in place.drawn[-1]
    Event("notebook", client=client).set()
    eventually(lambda: "<div>" in place.drawn[-1])
    assert re.search(r"<div>\d+ tasks, 1 gang of \d+ steps in ", place.drawn[-1])
    assert "<script" not in place.drawn[-1]


def test_a_failure_is_an_end(client, on_device, capsys):
    y = da.fft.fft2(on_device(A, (6, 20)).map_blocks(refuse, meta=A, dtype=float)).persist()
    dgpu.progress(y)
    tasks, end = capsys.readouterr().out.splitlines()
    assert re.search(r"(\d+)/\1 ", tasks)
    assert f", {y.npartitions} failed in " in end
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
