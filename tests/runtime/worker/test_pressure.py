"""When a worker frees what it keeps for later gangs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.runtime.worker import plugin
from dask_dgpu.runtime.worker.plugin import (
    REST_SECONDS,
    Pressure,
    watch_memory,
)


def worker(limit: int | None, spill: float | bool, pause: float | bool) -> Any:
    manager = SimpleNamespace(
        memory_limit=limit,
        memory_spill_fraction=spill,
        memory_pause_fraction=pause,
        memory_target_fraction=0.6,
        memory_monitor_interval=0.1,
    )
    found = SimpleNamespace(memory_manager=manager, periodic_callbacks={}, nbytes=0)
    found.monitor = SimpleNamespace(get_process_memory=lambda: found.nbytes)
    return found


@pytest.mark.parametrize(
    ("limit", "spill", "pause", "expected"),
    [
        (1000, 0.7, 0.8, 700),
        (1000, False, 0.8, 800),
        (1000, 0.7, False, 700),
        (1000, False, False, None),
        (None, 0.7, 0.8, None),
    ],
)
def test_the_threshold_is_dasks(limit, spill, pause, expected):
    watched = Pressure(worker(limit, spill, pause), lambda: None)
    assert watched.limit == (None if expected is None else pytest.approx(expected))


def test_memory_is_released_once_in_a_while(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(plugin, "monotonic", lambda: now[0])
    released: list[float] = []
    busy = worker(1000, 0.7, 0.8)
    watched = Pressure(busy, lambda: released.append(now[0]))
    for seconds, nbytes in [(0, 700), (1, 701), (2, 900), (1 + REST_SECONDS, 900), (60, 100)]:
        now[0], busy.nbytes = float(seconds), nbytes
        watched.check()
    assert released == [1.0, 1 + REST_SECONDS]


@pytest.mark.parametrize(
    ("target", "expected"), [(0.6, [800, 750, 650, 701]), (False, [800, 750, 701])]
)
def test_freed_memory_is_returned_while_dask_spills(monkeypatch, target, expected):
    returned: list[int] = []
    busy = worker(1000, 0.7, 0.8)
    busy.memory_manager.memory_target_fraction = target
    monkeypatch.setattr(plugin, "return_memory", lambda: returned.append(busy.nbytes))
    watched = Pressure(busy, lambda: None)
    for busy.nbytes in (650, 800, 750, 650, 600, 650, 701, 100):
        watched.check()
    assert returned == expected


@pytest.mark.parametrize(("limit", "watched"), [(1000, {"dgpu-pressure"}), (None, set())])
def test_pressure_is_watched_with_a_limit(monkeypatch, limit, watched):
    monkeypatch.setattr(plugin, "PeriodicCallback", Callback)
    of = worker(limit, 0.7, 0.8)
    watch_memory(of, lambda: None)
    assert set(of.periodic_callbacks) == watched
    assert all(each.started for each in of.periodic_callbacks.values())


class Callback:
    def __init__(self, function: Any, milliseconds: float) -> None:
        self.started = False

    def start(self) -> None:
        self.started = True


def test_a_device_frees_its_workspaces():
    device = HostDevice()
    kept = device.workspace("send", 1000, "float64")
    kept[:] = 1
    assert device.workspace("send", 1000, "float64").base is kept.base
    device.release()
    assert not device._kept
    assert device.workspace("send", 10, "float64").base is not kept.base
