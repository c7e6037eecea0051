"""Epochs: the sets of workers that share a communicator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from dask_dgpu.runtime.scheduler.messages import send

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.comm.bootstrap import Transport
    from dask_dgpu.runtime.scheduler.run import Run

KEPT_EPOCHS = 4
"""Number of communicators that a worker keeps, besides those that runs use."""

Ports = tuple[int, int] | None
"""The first and the last port on which ranks may listen, ``None`` for any."""

Terms = tuple[tuple[str, ...], str, float, Ports]
"""What identifies a communicator: members, transport, seconds to connect, ports."""


class Epochs:
    """The most recently used epochs of a cluster whose members are all alive.

    An epoch's name is never used twice, so members of an abandoned epoch and of its successor
    cannot connect. Members meet at their stores, whose values travel over the scheduler: over
    Dask's own connections, and without the help of a member that may be lost. When an epoch is
    discarded, its members leave it. ``runs`` are the current and the finished ones.
    """

    def __init__(self, scheduler: Scheduler, runs: Mapping[Any, Run]) -> None:
        self.scheduler = scheduler
        self._runs = runs
        self._kept: dict[Terms, str] = {}  # names; the most recently used comes last
        self._names = count()

    def get(
        self,
        members: tuple[str, ...],
        transport: Transport,
        timeout: float,
        ports: Ports = None,
    ) -> str:
        """Return the name of the epoch on these terms.

        Raises
        ------
        OSError
            If a member is lost.
        """
        if any(member not in self.scheduler.workers for member in members):
            raise OSError("a member is lost")
        terms = members, transport, timeout, ports
        name = self._kept.pop(terms, None) or f"{self.scheduler.id}-{next(self._names)}"
        self._kept[terms] = name
        self._discard_idle()
        return name

    def share(self, epoch: str, key: str, value: bytes, worker: str) -> None:
        """Pass a value that a member has set on to the stores of the others.

        Nobody misses one: the epoch is announced to all members before any of them sets a value.
        """
        for terms, name in self._kept.items():
            if name == epoch and worker in terms[0]:
                message = {"op": "dgpu-shared", "epoch": epoch, "key": key, "value": value}
                send(self.scheduler, [each for each in terms[0] if each != worker], message)

    def connect(
        self,
        members: tuple[str, ...],
        transport: Transport,
        timeout: float,
        ports: Ports = None,
        **more: Any,
    ) -> None:
        """Make the members of an epoch connect now; the message to each has ``more`` fields.

        Raises
        ------
        OSError
            If a member is lost.
        """
        epoch = self.get(members, transport, timeout, ports)
        for rank, member in enumerate(members):
            message: dict[str, Any] = {
                "op": "dgpu-warm-up",
                "epoch": epoch,
                "rank": rank,
                "size": len(members),
                "transport": transport,
                "timeout": timeout,
                "ports": ports,
                **more,
            }
            send(self.scheduler, [member], message)

    def discard(self, name: str, reason: str) -> None:
        """Discard an epoch."""
        for terms in [terms for terms, kept in self._kept.items() if kept == name]:
            self._discard(terms, reason)

    def remove_worker(self, worker: str) -> None:
        """Discard all epochs of a lost worker."""
        for terms in [terms for terms in self._kept if worker in terms[0]]:
            self._discard(terms, "a member is lost")

    def relieve(self, worker: str) -> None:
        """Discard the idle epochs of a worker that is short of memory, but the last one used."""
        used = self._used()
        own = [(terms, name) for terms, name in self._kept.items() if worker in terms[0]]
        for terms, name in own[:-1]:
            if name not in used:
                self._discard(terms, "a member is short of memory")

    def clear(self) -> None:
        """Discard all epochs."""
        for terms in list(self._kept):
            self._discard(terms, "the cluster restarts")

    def _discard(self, terms: Terms, reason: str) -> None:
        name = self._kept.pop(terms)
        message = {"op": "dgpu-leave", "epoch": name, "reason": reason}
        send(self.scheduler, terms[0], message)

    def _used(self) -> set[str | None]:
        """Return the names of the epochs in which runs have not ended."""
        return {run.epoch for run in self._runs.values() if not run.outcome.done()}

    def _discard_idle(self) -> None:
        """Discard the least recently used epochs of workers that keep too many."""
        counts = Counter(member for members, *_ in self._kept for member in members)
        used = self._used()
        *older, _ = self._kept.items()
        for terms, name in older:
            members = terms[0]
            crowded = any(counts[member] > KEPT_EPOCHS for member in members)
            if crowded and name not in used:
                counts.subtract(members)
                self._discard(terms, "others were used more recently")
