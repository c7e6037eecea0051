"""Epochs that are formed while a member is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dask_dgpu.runtime.epoch import Epochs

MEMBERS = ("tcp://a", "tcp://b", "tcp://c")


class Scheduler:
    """A scheduler whose workers take their time to serve a store."""

    id = "Scheduler-1"

    def __init__(self) -> None:
        self.workers = dict.fromkeys(MEMBERS)
        self.served = asyncio.Event()
        self.sent: list[tuple[str, str]] = []

    def rpc(self, address: str) -> Any:
        return self

    async def dgpu_serve_store(self) -> tuple[str, int]:
        await self.served.wait()
        return "host", 1

    def worker_send(self, worker: str, message: dict[str, Any]) -> None:
        self.sent.append((worker, message["op"]))


@pytest.mark.parametrize("lost", [None, "tcp://c"])
def test_nobody_waits_for_a_member_that_is_lost_meanwhile(lost: str | None) -> None:
    async def run() -> list[tuple[str, str]]:
        scheduler: Any = Scheduler()
        epochs = Epochs(scheduler)
        warming = asyncio.ensure_future(epochs.warm_up(MEMBERS, "gloo", 1.0))
        await asyncio.sleep(0)
        if lost is not None:
            del scheduler.workers[lost]
            epochs.remove_worker(lost)
        scheduler.served.set()
        await warming
        return list(scheduler.sent)

    sent = asyncio.run(run())
    assert sent == ([] if lost else [(member, "dgpu-warm-up") for member in MEMBERS])
