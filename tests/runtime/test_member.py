"""A worker's device, which its program thread shares with whoever examines it; and its jobs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.runtime import member
from dask_dgpu.runtime.member import Member
from dask_dgpu.runtime.worker import GangWorkerPlugin


def test_there_is_one_device_whoever_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(HostDevice):
        def __init__(self, threads: int) -> None:
            super().__init__(threads)
            time.sleep(0.1)

    monkeypatch.setattr(member, "HostDevice", Slow)
    one = Member("cpu", "127.0.0.1", 1)
    with ThreadPoolExecutor(4) as pool:
        devices = set(pool.map(lambda _: one.device, range(4)))
    assert len(devices) == 1


def test_examining_a_device_leaves_its_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(HostDevice):
        def synchronize(self) -> None:
            raise AssertionError("a program may be at work on the other lane")

    monkeypatch.setattr(member, "HostDevice", Busy)
    assert Member("cpu", "127.0.0.1", 1).examine() == "ok"


@pytest.mark.parametrize(("phase", "left"), [("queued", 0), ("program (sum, 1 of 2)", 1)])
def test_blocks_of_a_running_job_stay_when_it_is_given_up(phase: str, left: int) -> None:
    """The program thread lets go of them, once the device is no longer at work there."""
    plugin = GangWorkerPlugin("cpu")
    blocks: dict[str, Any] = {"x": {}}
    job: Any = SimpleNamespace(given_up=threading.Event(), phase=phase, blocks=blocks)
    plugin.jobs, plugin.results = {("gang", 1): job}, {}
    plugin.member = Member("cpu", "127.0.0.1", 1)
    plugin._give_up("gang", 1, "epoch", "a member is lost")
    assert job.given_up.is_set()
    assert len(blocks) == left
