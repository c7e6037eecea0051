"""Epochs: the sets of workers that share a communicator."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.comm.bootstrap import Transport
    from dask_dgpu.runtime.scheduler.run import Run

logger = logging.getLogger(__name__)

KEPT_EPOCHS = 4
"""A worker keeps this many communicators. One that a run uses is kept in any case."""

Terms = tuple[tuple[str, ...], str, float]
"""What a communicator depends on: members, transport, seconds to connect."""


@dataclass(frozen=True)
class Epoch:
    """A set of workers, in the order of their ranks, and where they meet."""

    name: str
    members: tuple[str, ...]
    store: tuple[str, int]


@dataclass(frozen=True)
class _Kept:
    name: str
    members: tuple[str, ...]
    formed: asyncio.Future[Epoch]


class Epochs:
    """The epochs of a cluster, kept while all their members live and one of the last few.

    An epoch's name is never used twice, so that members of an abandoned one and
    of its successor can not meet. Whenever one is forgotten, its members leave it.

    Parameters
    ----------
    scheduler : Scheduler
        Where the members are known.
    runs : mapping of key to Run
        Those under way, and others that have ended.
    """

    def __init__(self, scheduler: Scheduler, runs: Mapping[Any, Run]) -> None:
        self.scheduler = scheduler
        self._runs = runs
        self._kept: dict[Terms, _Kept] = {}  # the last one used comes last
        self._names = count()

    async def get(self, members: tuple[str, ...], transport: Transport, timeout: float) -> Epoch:
        """Return the epoch on these terms; rank 0 serves the store of a new one.

        Raises
        ------
        OSError
            When a member is lost.
        """
        terms = members, transport, timeout
        while True:
            kept = self._kept.pop(terms, None)
            if kept is None:
                name = f"{self.scheduler.id}-{next(self._names)}"
                kept = _Kept(name, members, asyncio.ensure_future(self._form(name, members)))
            self._kept[terms] = kept
            self._forget_idle()
            try:
                epoch = await asyncio.shield(kept.formed)
            except Exception as error:
                self.discard(kept.name, f"it could not be formed: {error}")
                raise
            if self._kept.get(terms) is kept:  # else it was forgotten meanwhile
                return epoch

    async def _form(self, name: str, members: tuple[str, ...]) -> Epoch:
        if any(member not in self.scheduler.workers for member in members):
            raise OSError("a member is lost")
        host, port = "", 0
        if len(members) > 1:
            host, port = await self.scheduler.rpc(members[0]).dgpu_serve_store(epoch=name)
        return Epoch(name, members, (host, port))

    async def warm_up(self, members: tuple[str, ...], transport: Transport, timeout: float) -> None:
        """Have the members of an epoch make its communicator now."""
        try:
            epoch = await self.get(members, transport, timeout)
        except Exception as error:  # a member is lost, or the cluster closes
            logger.info("workers are not connected ahead of their first gang: %s", error)
            return
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

    def discard(self, name: str, reason: str) -> None:
        """Forget an epoch."""
        for terms in [terms for terms, kept in self._kept.items() if kept.name == name]:
            self._forget(terms, reason)

    def remove_worker(self, worker: str) -> None:
        """Forget all epochs of a lost worker."""
        for terms in [terms for terms, kept in self._kept.items() if worker in kept.members]:
            self._forget(terms, "a member is lost")

    def clear(self) -> None:
        """Forget all epochs."""
        for terms in list(self._kept):
            self._forget(terms, "the cluster starts afresh")

    def _forget(self, terms: Terms, reason: str) -> None:
        kept = self._kept.pop(terms)
        for member in kept.members:
            if member in self.scheduler.workers:
                message = {"op": "dgpu-leave", "epoch": kept.name, "reason": reason}
                self.scheduler.worker_send(member, message)

    def _forget_idle(self) -> None:
        """Forget epochs of workers that keep too many, those first that were not used for long."""
        counts = Counter(member for kept in self._kept.values() for member in kept.members)
        used = {run.epoch for run in self._runs.values() if not run.outcome.done()}
        *older, _ = self._kept.items()
        for terms, kept in older:
            crowded = any(counts[member] > KEPT_EPOCHS for member in kept.members)
            if crowded and kept.name not in used:
                counts.subtract(kept.members)
                self._forget(terms, "others were used since")
