"""Epochs: the sets of workers that share a communicator."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


@dataclass(frozen=True)
class Epoch:
    """A set of workers, in the order of their ranks, and where they meet."""

    name: str
    members: tuple[str, ...]
    store: tuple[str, int]


class Epochs:
    """The epochs of a cluster, kept as long as all their members live.

    An epoch's name is never used twice, so that members of an abandoned one and
    of its successor can not meet.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._forming: dict[tuple[str, ...], asyncio.Future[Epoch]] = {}
        self._names = count()

    async def get(self, members: tuple[str, ...]) -> Epoch:
        """Return the epoch of these members; rank 0 serves the store of a new one."""
        forming = self._forming.get(members)
        if forming is None:
            forming = asyncio.ensure_future(self._form(members))
            self._forming[members] = forming
        try:
            return await asyncio.shield(forming)
        except Exception:
            self._forming.pop(members, None)
            raise

    def holds(self, epoch: Epoch) -> bool:
        """Whether an epoch was not forgotten since it was formed."""
        forming = self._forming.get(epoch.members)
        return forming is not None and _name(forming) == epoch.name

    async def _form(self, members: tuple[str, ...]) -> Epoch:
        host, port = "", 0
        if len(members) > 1:
            host, port = await self.scheduler.rpc(members[0]).dgpu_serve_store()
        return Epoch(f"{self.scheduler.id}-{next(self._names)}", members, (host, port))

    async def warm_up(self, members: tuple[str, ...], transport: str, timeout: float) -> None:
        """Have the members of an epoch make its communicator now."""
        try:
            epoch = await self.get(members)
        except OSError:
            return  # a member is lost; the gang that comes will have other members
        if not self.holds(epoch):
            return  # lost while it was formed: the others would wait for it
        for rank, member in enumerate(members):
            if member in self.scheduler.workers:
                message: dict[str, Any] = {
                    "op": "dgpu-warm-up",
                    "epoch": epoch.name,
                    "store": epoch.store,
                    "rank": rank,
                    "size": len(members),
                    "transport": transport,
                    "timeout": timeout,
                }
                self.scheduler.worker_send(member, message)

    def discard(self, members: tuple[str, ...], name: str) -> None:
        """Forget an epoch whose communicator was aborted, unless it has a successor."""
        forming = self._forming.get(members)
        if forming is not None and _name(forming) == name:
            del self._forming[members]

    def remove_worker(self, worker: str) -> None:
        """Forget all epochs of a lost worker, and have their members leave."""
        for members in [members for members in self._forming if worker in members]:
            forming = self._forming.pop(members)
            name = _name(forming)
            if name is None:
                continue
            message = {"op": "dgpu-leave", "epoch": name}
            for member in members:
                if member in self.scheduler.workers:
                    self.scheduler.worker_send(member, message)

    def clear(self) -> None:
        """Forget all epochs."""
        self._forming.clear()


def _name(forming: asyncio.Future[Epoch]) -> str | None:
    """Return the name of an epoch that has been formed."""
    if not forming.done() or forming.cancelled() or forming.exception() is not None:
        return None
    return forming.result().name
