"""Epochs: on which terms they are shared, and when their members leave them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from dask_dgpu.runtime.scheduler.run import KEPT_EPOCHS, Epochs

MEMBERS = ("tcp://a", "tcp://b", "tcp://c")


class Scheduler:
    """A scheduler that notes what it sends."""

    id = "Scheduler-1"

    def __init__(self, members: tuple[str, ...] = MEMBERS) -> None:
        self.workers = dict.fromkeys(members)
        self.values: list[tuple[str, str, bytes]] = []
        self.sent: list[tuple[str, str]] = []
        self.left: list[str] = []

    def worker_send(self, worker: str, message: dict[str, Any]) -> None:
        self.sent.append((worker, message["op"]))
        if message["op"] == "dgpu-shared":
            self.values.append((worker, message["key"], message["value"]))
        if message["op"] == "dgpu-leave" and message["epoch"] not in self.left:
            self.left.append(message["epoch"])


def run(
    program: Callable[[Any, Epochs, dict[str, Any]], Coroutine[Any, Any, None]],
    members: tuple[str, ...] = MEMBERS,
) -> Any:
    """Run a program on a scheduler, its epochs and its runs."""

    async def main() -> Any:
        scheduler: Any = Scheduler(members)
        runs: dict[str, Any] = {}
        await program(scheduler, Epochs(scheduler, runs), runs)
        return scheduler

    return asyncio.run(main())


def test_values_of_a_member_go_to_the_others_of_its_epoch() -> None:
    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        name = epochs.get(MEMBERS[:2], "tcp", 1.0)
        epochs.get(MEMBERS, "tcp", 1.0)
        epochs.share(name, "connect/0", b"here", worker=MEMBERS[0])
        assert scheduler.values == [(MEMBERS[1], "connect/0", b"here")]
        epochs.share(name, "connect/2", b"a stranger", worker=MEMBERS[2])
        epochs.share("unknown", "connect/0", b"here", worker=MEMBERS[0])
        epochs.discard(name, "it was given up")
        epochs.share(name, "connect/1", b"late", worker=MEMBERS[1])
        assert len(scheduler.values) == 1

    run(program)


def test_other_terms_are_another_epoch() -> None:
    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        first = epochs.get(MEMBERS, "tcp", 300.0)
        assert epochs.get(MEMBERS, "tcp", 300.0) == first
        others = [
            epochs.get(MEMBERS, "ucx", 300.0),
            epochs.get(MEMBERS, "tcp", 120.0),
            epochs.get(MEMBERS[:2], "tcp", 300.0),
        ]
        assert len({first, *others}) == 4

    run(program)


def test_epochs_that_were_not_used_for_long_are_left() -> None:
    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        made = [epochs.get(MEMBERS, "tcp", float(i)) for i in range(KEPT_EPOCHS)]
        epochs.get(MEMBERS, "tcp", 0.0)  # used again, so the second goes first
        runs["busy"] = SimpleNamespace(epoch=made[2], outcome=asyncio.Future())
        for more in (100.0, 101.0):
            epochs.get(MEMBERS, "tcp", more)
        assert scheduler.left == [made[1], made[3]]
        assert [sent[0] for sent in scheduler.sent] == [*MEMBERS, *MEMBERS]
        runs["busy"].outcome.set_result(None)
        epochs.get(MEMBERS, "tcp", 200.0)
        assert scheduler.left[2:] == [made[2]]

    run(program)


def test_a_worker_short_of_memory_keeps_what_is_in_use_and_the_last_epoch() -> None:
    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        made = [epochs.get(MEMBERS, "tcp", float(i)) for i in range(3)]
        others = epochs.get(MEMBERS[1:], "tcp", 0.0)
        runs["busy"] = SimpleNamespace(epoch=made[0], outcome=asyncio.Future())
        epochs.relieve(MEMBERS[0])
        assert scheduler.left == [made[1]]
        epochs.relieve("tcp://unknown")
        epochs.relieve(MEMBERS[1])
        assert scheduler.left == [made[1], made[2]]
        assert epochs.get(MEMBERS[1:], "tcp", 0.0) == others

    run(program)


def test_epochs_of_other_workers_do_not_count() -> None:
    members = tuple(f"tcp://{i}" for i in range(4 * KEPT_EPOCHS))

    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        for first in range(0, len(members), 2):
            epochs.get(members[first : first + 2], "tcp", 1.0)
        assert not scheduler.sent

    run(program, members)


@pytest.mark.parametrize("how", ["discarded", "lost", "cleared"])
def test_members_leave_what_is_forgotten(how: str) -> None:
    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        epoch = epochs.get(MEMBERS, "tcp", 1.0)
        if how == "discarded":
            epochs.discard(epoch, "it was given up")
        elif how == "lost":
            del scheduler.workers[MEMBERS[0]]
            epochs.remove_worker(MEMBERS[0])
        else:
            epochs.clear()
        there = [member for member in MEMBERS if member in scheduler.workers]
        assert scheduler.sent == [(member, "dgpu-leave") for member in there]
        assert how == "lost" or epochs.get(MEMBERS, "tcp", 1.0) != epoch

    run(program)


def test_a_lost_member_is_not_asked_for_an_epoch() -> None:
    async def program(scheduler: Any, epochs: Epochs, runs: dict[str, Any]) -> None:
        del scheduler.workers[MEMBERS[1]]
        with pytest.raises(OSError, match="a member is lost"):
            epochs.get(MEMBERS, "tcp", 1.0)

    run(program)
