"""Epochs: on which terms they are shared, and when their members leave them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from dask_dgpu.runtime.scheduler.epoch import KEPT_EPOCHS, Epochs

MEMBERS = ("tcp://a", "tcp://b", "tcp://c")


class Scheduler:
    """A scheduler whose workers take their time to serve a store."""

    id = "Scheduler-1"

    def __init__(self, members: tuple[str, ...] = MEMBERS) -> None:
        self.workers = dict.fromkeys(members)
        self.served = asyncio.Event()
        self.sent: list[tuple[str, str]] = []
        self.left: list[str] = []

    def rpc(self, address: str) -> Any:
        return self

    async def dgpu_serve_store(self, epoch: str) -> tuple[str, int]:
        await self.served.wait()
        return "host", 1

    def worker_send(self, worker: str, message: dict[str, Any]) -> None:
        self.sent.append((worker, message["op"]))
        if message["op"] == "dgpu-leave" and message["epoch"] not in self.left:
            self.left.append(message["epoch"])


def run(
    program: Callable[[Any, Epochs, dict[str, Any]], Coroutine[Any, Any, None]],
    members: tuple[str, ...] = MEMBERS,
) -> Any:
    """Run a program on a scheduler, whose stores are served at once, its epochs and its runs."""

    async def main() -> Any:
        scheduler: Any = Scheduler(members)
        scheduler.served.set()
        runs: dict[str, Any] = {}
        await program(scheduler, Epochs(scheduler, runs), runs)
        return scheduler

    return asyncio.run(main())


@pytest.mark.parametrize("lost", [None, "tcp://c"])
def test_nobody_waits_for_a_member_that_is_lost_meanwhile(lost: str | None) -> None:
    async def main() -> list[tuple[str, str]]:
        scheduler: Any = Scheduler()
        epochs = Epochs(scheduler, {})
        warming = asyncio.ensure_future(epochs.warm_up(MEMBERS, "gloo", 1.0))
        await asyncio.sleep(0)
        if lost is not None:
            del scheduler.workers[lost]
            epochs.remove_worker(lost)
        scheduler.served.set()
        await warming
        return [sent for sent in scheduler.sent if sent[1] == "dgpu-warm-up"]

    sent = asyncio.run(main())
    assert sent == ([] if lost else [(member, "dgpu-warm-up") for member in MEMBERS])


def test_other_terms_are_another_epoch() -> None:
    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        first = await epochs.get(MEMBERS, "gloo", 300.0)
        assert await epochs.get(MEMBERS, "gloo", 300.0) == first
        others = [
            await epochs.get(MEMBERS, "ucx", 300.0),
            await epochs.get(MEMBERS, "gloo", 120.0),
            await epochs.get(MEMBERS[:2], "gloo", 300.0),
        ]
        assert len({first.name, *(epoch.name for epoch in others)}) == 4

    run(program)


def test_epochs_that_were_not_used_for_long_are_left() -> None:
    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        made = [await epochs.get(MEMBERS, "gloo", float(i)) for i in range(KEPT_EPOCHS)]
        await epochs.get(MEMBERS, "gloo", 0.0)  # used again, so the second goes first
        runs["busy"] = SimpleNamespace(epoch=made[2].name, outcome=asyncio.Future())
        for more in (100.0, 101.0):
            await epochs.get(MEMBERS, "gloo", more)
        assert scheduler.left == [made[1].name, made[3].name]
        assert [sent[0] for sent in scheduler.sent] == [*MEMBERS, *MEMBERS]
        runs["busy"].outcome.set_result(None)
        await epochs.get(MEMBERS, "gloo", 200.0)
        assert scheduler.left[2:] == [made[2].name]

    run(program)


def test_epochs_of_other_workers_do_not_count() -> None:
    members = tuple(f"tcp://{i}" for i in range(4 * KEPT_EPOCHS))

    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        for first in range(0, len(members), 2):
            await epochs.get(members[first : first + 2], "gloo", 1.0)
        assert not scheduler.sent

    run(program, members)


@pytest.mark.parametrize("how", ["discarded", "lost", "cleared"])
def test_members_leave_what_is_forgotten(how: str) -> None:
    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        epoch = await epochs.get(MEMBERS, "gloo", 1.0)
        if how == "discarded":
            epochs.discard(epoch.name, "it was given up")
        elif how == "lost":
            del scheduler.workers[MEMBERS[0]]
            epochs.remove_worker(MEMBERS[0])
        else:
            epochs.clear()
        there = [member for member in MEMBERS if member in scheduler.workers]
        assert scheduler.sent == [(member, "dgpu-leave") for member in there]
        assert how == "lost" or (await epochs.get(MEMBERS, "gloo", 1.0)).name != epoch.name

    run(program)


def test_a_lost_member_is_not_asked_for_an_epoch() -> None:
    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        del scheduler.workers[MEMBERS[1]]
        with pytest.raises(OSError, match="a member is lost"):
            await epochs.get(MEMBERS, "gloo", 1.0)

    run(program)
