"""A worker's device, which its program thread shares with whoever examines it; and its jobs."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from dask_dgpu.comm import bootstrap
from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.store import Store, meet
from dask_dgpu.errors import CommAbortedError, CommError
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.runtime.worker import member
from dask_dgpu.runtime.worker.member import Member, Programs
from dask_dgpu.runtime.worker.plugin import GangWorkerPlugin

WARM_UP: dict[str, Any] = {
    "epoch": "epoch",
    "rank": 0,
    "size": 2,
    "transport": "tcp",
    "timeout": 60.0,
}


def member_alone() -> Member:
    """Return a member that hears of no other."""
    return Member("cpu", "127.0.0.1", 1, lambda epoch, key, value: None)


def test_there_is_one_device_whoever_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(HostDevice):
        def __init__(self, threads: int) -> None:
            super().__init__(threads)
            time.sleep(0.1)

    monkeypatch.setattr(member, "HostDevice", Slow)
    one = member_alone()
    with ThreadPoolExecutor(4) as pool:
        devices = set(pool.map(lambda _: one.device, range(4)))
    assert len(devices) == 1


def test_examining_a_device_leaves_its_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(HostDevice):
        def synchronize(self) -> None:
            raise AssertionError("a program may be at work on the other lane")

    monkeypatch.setattr(member, "HostDevice", Busy)
    assert member_alone().examine() == "ok"


@pytest.mark.parametrize(("phase", "left"), [("queued", 0), ("program (sum, 1 of 2)", 1)])
def test_blocks_of_a_running_job_stay_when_it_is_given_up(
    phase: str, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The program thread lets go of them, once the device is no longer at work there."""
    caplog.set_level("INFO", "dask_dgpu")
    plugin = GangWorkerPlugin("cpu")
    blocks: dict[str, Any] = {"x": {}}
    given_up = threading.Event()
    job: Any = SimpleNamespace(give_up=given_up.set, phase=phase, blocks=blocks)
    plugin.jobs, plugin.results, plugin.stored = {("gang", 1): job}, {}, {}
    plugin.member = member_alone()
    plugin._give_up("gang", 1, "epoch", "a member is lost")
    assert given_up.is_set()
    assert len(blocks) == left
    assert ("a member is lost; this rank is at" in caplog.text) == bool(left)


def plugin_of_worker() -> tuple[Any, list[dict[str, Any]]]:
    """Return a plugin whose program thread runs, and the messages that it sends."""
    plugin, sent = GangWorkerPlugin("cpu"), []
    plugin.jobs, plugin.results, plugin.stored, plugin.staged = {}, {}, {}, {}
    plugin.callers, plugin.serving = {}, None
    plugin.programs = Programs()
    plugin.last_seconds = 0.0
    plugin.member = member_alone()
    plugin.queue = queue.SimpleQueue()
    loop = SimpleNamespace(add_callback=lambda send, message: send(message))
    plugin.worker = SimpleNamespace(loop=loop, batched_stream=SimpleNamespace(send=sent.append))
    plugin.thread = threading.Thread(target=plugin._run_jobs)
    plugin.thread.start()
    return plugin, sent


def test_a_report_while_jobs_come_and_go() -> None:
    plugin, _ = plugin_of_worker()

    class Leaving:
        @property
        def report(self) -> str:
            plugin.jobs.popitem()
            return "here"

    plugin.jobs.update({i: Leaving() for i in range(3)})
    assert plugin._report() == ["here"] * 3
    asyncio.run(plugin.teardown(plugin.worker))


def connect_until_aborted(*args: Any, lifetime: Any, **kwargs: Any) -> Any:
    lifetime.wait_for(lambda: False)


@pytest.mark.parametrize("how", ["closed", "left"])
def test_a_warm_up_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    monkeypatch.setattr(bootstrap, "connect", connect_until_aborted)
    plugin, sent = plugin_of_worker()
    plugin._warm_up(**WARM_UP)
    while not plugin.member._joining:
        time.sleep(0.001)
    begin = time.monotonic()
    with caplog.at_level(logging.INFO):
        if how == "left":
            plugin.member.leave("epoch", "a member is lost")
        asyncio.run(plugin.teardown(plugin.worker))
    assert time.monotonic() - begin < 5
    assert not plugin.thread.is_alive()
    assert not caplog.records
    assert not sent


def test_a_closed_member_joins_nothing_more() -> None:
    one = member_alone()
    one.close("the worker closes")
    with pytest.raises(CommAbortedError, match="is over"):
        one.join("epoch", 0, 1, "tcp", 1.0)
    one.receive("epoch", "connect/1", b"")
    assert not one._stores


def test_the_scheduler_hears_of_a_warm_up_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its store knows the attempt, so no rank may try again under this name."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise CommError("ranks [1] did not come")

    monkeypatch.setattr(bootstrap, "connect", fail)
    plugin, sent = plugin_of_worker()
    plugin._warm_up(**WARM_UP)
    while not sent:
        time.sleep(0.001)
    assert sent == [{"op": "dgpu-broken", "epoch": "epoch", "reason": "ranks [1] did not come"}]
    with pytest.raises(CommAbortedError, match="is over"):
        plugin.member.join("epoch", 0, 2, "tcp", 1.0)
    asyncio.run(plugin.teardown(plugin.worker))


def test_a_store_lives_as_long_as_its_epoch() -> None:
    one = member_alone()
    for i in range(12):
        one.receive(f"epoch-{i}", "connect/1", b"")  # another rank is ready first
    assert len(one._stores) == 12
    one.leave("epoch-0", "it is not used any more")
    one.receive("epoch-0", "connect/2", b"")  # late
    assert "epoch-0" not in one._stores
    one.close("the worker closes")
    assert not one._stores


@pytest.mark.parametrize("first", [0, 1])
def test_members_meet_over_their_shared_values(first: int) -> None:
    """Whichever member comes first, the values of the other reach it."""
    members: list[Member] = []

    def sharing(rank: int) -> Any:
        return lambda **value: members[1 - rank].receive(**value)

    members += [Member("cpu", "127.0.0.1", 1, sharing(rank)) for rank in range(2)]

    def connect(kind: str, *, store: Store, rank: int, lifetime: Lifetime, **more: Any) -> Any:
        given = {"rank": rank, "size": 2, "limit": 9.0, "lifetime": lifetime}
        return meet(store, "connect", f"rank {rank}", **given)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(bootstrap, "connect", connect)
        early = pool.submit(members[first].join, "epoch", first, 2, "tcp", 9.0)
        while not members[first]._stores:
            time.sleep(0.001)
        late = pool.submit(members[1 - first].join, "epoch", 1 - first, 2, "tcp", 9.0)
        assert early.result(9) == late.result(9) == ["rank 0", "rank 1"]
