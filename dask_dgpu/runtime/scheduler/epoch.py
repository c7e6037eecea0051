"""Epochs: the sets of workers that share a communicator."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_dgpu.runtime.scheduler.messages import send

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.comm.bootstrap import Transport
    from dask_dgpu.runtime.scheduler.run import Run

logger = logging.getLogger(__name__)

KEPT_EPOCHS = 4
"""Number of communicators that a worker keeps, besides those that runs use."""

Terms = tuple[tuple[str, ...], str, float]
"""What identifies a communicator: members, transport, seconds to connect."""


@dataclass(frozen=True)
class Epoch:
    """A set of workers that share a communicator: its name, and host and port of its store."""

    name: str
    store: tuple[str, int]


class _Kept(NamedTuple):
    name: str
    formed: asyncio.Future[Epoch]


class Epochs:
    """The most recently used epochs of a cluster whose members are all alive.

    An epoch's name is never used twice, so members of an abandoned epoch and of its successor
    cannot connect. When an epoch is discarded, its members leave it. ``runs`` are the current and
    the finished ones.
    """

    def __init__(self, scheduler: Scheduler, runs: Mapping[Any, Run]) -> None:
        self.scheduler = scheduler
        self._runs = runs
        self._kept: dict[Terms, _Kept] = {}  # the most recently used comes last
        self._names = count()

    async def get(self, members: tuple[str, ...], transport: Transport, timeout: float) -> Epoch:
        """Return the epoch on these terms; rank 0 serves the store of a new one.

        Raises
        ------
        OSError
            If a member is lost.
        """
        terms = members, transport, timeout
        while True:
            kept = self._kept.pop(terms, None)
            if kept is None:
                name = f"{self.scheduler.id}-{next(self._names)}"
                kept = _Kept(name, asyncio.ensure_future(self._form(name, members)))
            self._kept[terms] = kept
            self._discard_idle()
            try:
                epoch = await asyncio.shield(kept.formed)
            except Exception as error:
                self.discard(kept.name, f"it could not be formed: {error}")
                raise
            if self._kept.get(terms) is kept:  # else it was discarded meanwhile
                return epoch

    async def _form(self, name: str, members: tuple[str, ...]) -> Epoch:
        if any(member not in self.scheduler.workers for member in members):
            raise OSError("a member is lost")
        host, port = "", 0
        if len(members) > 1:
            host, port = await self.scheduler.rpc(members[0]).dgpu_serve_store(epoch=name)
        return Epoch(name, (host, port))

    async def warm_up(self, members: tuple[str, ...], transport: Transport, timeout: float) -> None:
        """Make the members of an epoch connect now, if they can."""
        try:
            await self.connect(members, transport, timeout)
        except Exception as error:  # a member is lost, or the cluster closes
            logger.info("workers do not connect before their first gang: %s", error)

    async def connect(
        self, members: tuple[str, ...], transport: Transport, timeout: float, **more: Any
    ) -> None:
        """Make the members of an epoch connect now; the message to each has ``more`` fields.

        Raises
        ------
        OSError
            If a member is lost.
        """
        epoch = await self.get(members, transport, timeout)
        for rank, member in enumerate(members):
            message: dict[str, Any] = {
                "op": "dgpu-warm-up",
                "epoch": epoch.name,
                "store": epoch.store,
                "rank": rank,
                "size": len(members),
                "transport": transport,
                "timeout": timeout,
                **more,
            }
            send(self.scheduler, [member], message)

    def discard(self, name: str, reason: str) -> None:
        """Discard an epoch."""
        for terms in [terms for terms, kept in self._kept.items() if kept.name == name]:
            self._discard(terms, reason)

    def remove_worker(self, worker: str) -> None:
        """Discard all epochs of a lost worker."""
        for terms in [terms for terms in self._kept if worker in terms[0]]:
            self._discard(terms, "a member is lost")

    def clear(self) -> None:
        """Discard all epochs."""
        for terms in list(self._kept):
            self._discard(terms, "the cluster restarts")

    def _discard(self, terms: Terms, reason: str) -> None:
        name = self._kept.pop(terms).name
        message = {"op": "dgpu-leave", "epoch": name, "reason": reason}
        send(self.scheduler, terms[0], message)

    def _discard_idle(self) -> None:
        """Discard the least recently used epochs of workers that keep too many."""
        counts = Counter(member for members, *_ in self._kept for member in members)
        used = {run.epoch for run in self._runs.values() if not run.outcome.done()}
        *older, _ = self._kept.items()
        for terms, kept in older:
            members = terms[0]
            crowded = any(counts[member] > KEPT_EPOCHS for member in members)
            if crowded and kept.name not in used:
                counts.subtract(members)
                self._discard(terms, "others were used more recently")
