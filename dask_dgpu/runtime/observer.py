"""Observers of a program on one rank, and the times and bytes of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from time import time
from typing import Any

from dask_dgpu.operations.value import Facts

Array = Any


@dataclass
class Span:
    """The time of a step on a rank's host, and the produced bytes.

    On a GPU the work may continue after it; if the observer profiles, the times are the device's.
    ``hidden`` and ``exposed`` are the seconds of its transfers, and ``sent_bytes`` their bytes, as
    :class:`~dask_dgpu.comm.timed.TimedComm` counts them; ``None`` if the seconds are not known, as
    on a GPU without NCCL.
    """

    name: str
    action: str  # "compute" or "transfer", as in Dask's task stream
    start: float
    stop: float = 0.0
    nbytes: int = 0
    hidden: float | None = None
    exposed: float | None = None
    sent_bytes: int = 0

    @property
    def seconds(self) -> float:
        """How long the step took."""
        return self.stop - self.start

    def values(self) -> tuple[Any, ...]:
        """Return all fields in order, in a thirtieth of the time of ``astuple``."""
        return tuple(vars(self).values())


@dataclass(frozen=True)
class Step:
    """One step of a gang's run: the times of the slowest rank, and the bytes of all ranks.

    ``nbytes`` are those of the result, ``sent_bytes`` those that ranks sent to each other.
    ``hidden`` and ``exposed`` are the seconds of this rank's transfers, ``None`` if they are not
    known. ``detail`` is that of the operation, pickled.
    """

    name: str
    seconds: float
    nbytes: int
    hidden: float | None = None
    exposed: float | None = None
    detail: bytes | None = None
    sent_bytes: int = 0

    @classmethod
    def of(cls, span: Span) -> Step:
        """Return the step of one rank."""
        facts = span.nbytes, span.hidden, span.exposed
        return cls(span.name, span.seconds, *facts, sent_bytes=span.sent_bytes)

    def joined(self, other: Step) -> Step:
        """Return the same step of several ranks."""
        slower = self if self.seconds >= other.seconds else other
        nbytes, sent_bytes = self.nbytes + other.nbytes, self.sent_bytes + other.sent_bytes
        return replace(slower, nbytes=nbytes, sent_bytes=sent_bytes)


class Observer:
    """Receives the progress of a program; any method may raise to stop it. This one ignores it.

    If it is ``profiled``, steps have the times of the device.
    """

    profiled = False

    def now(self) -> float:
        """Return the time, by the clock of spans."""
        return time()

    def progress(self, step: str, done: int, steps: int) -> None:
        """Receive the progress within a step."""

    def detail(self, output: str, detail: Any) -> None:
        """Receive what the operation of a value returned besides its blocks."""

    def facts(self, block: Array) -> Facts:
        """Return the facts about a block that no program writes; they live as long as it."""
        return {}

    def calling(self) -> AbstractContextManager[Any]:
        """Return a context for the call of a block function, which may be a user's."""
        return nullcontext()

    @contextmanager
    def step(self, name: str, action: str) -> Iterator[Span]:
        """Surround a step.

        Yields
        ------
        Span
            The step's.
        """
        yield Span(name, action, self.now())


IGNORE = Observer()
