"""Whoever looks on while a rank runs its program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import time
from typing import Any, Protocol

TOPIC = "dgpu"
"""Topic of the scheduler's events: one for each run of a gang that has ended."""

MOST_SPANS = 1000
"""Steps of one run that are recorded one by one; the rest of a long loop is one span."""


@dataclass
class Span:
    """When a rank was at a step, as its host saw it: on a GPU work may go on after it.

    Parameters
    ----------
    name : str
        The layer that the step stands for, as a user is told.
    action : {"compute", "transfer"}
        What it does in the main, in the words of Dask's task stream.
    start, stop : float
        Seconds since the epoch.
    nbytes : int
        Bytes of what the rank has made.
    """

    name: str
    action: str
    start: float
    stop: float = 0.0
    nbytes: int = 0


@dataclass(frozen=True)
class Step:
    """One step of a gang's run, all ranks together.

    Parameters
    ----------
    name : str
        The layer that it stands for.
    seconds : float
        Of the rank that took longest.
    nbytes : int
        Bytes that all ranks have made.
    """

    name: str
    seconds: float
    nbytes: int


def record(spans: list[Span], span: Span) -> None:
    """Append a step to those of a run, or add it to the last if there are too many."""
    if len(spans) < MOST_SPANS:
        spans.append(span)
        return
    last = spans[-1]
    last.name = "all further steps"
    last.stop = span.stop
    last.nbytes += span.nbytes


class Observer(Protocol):
    """What a program tells while it runs; any method may raise to give it up."""

    def progress(self, step: str, done: int, steps: int) -> None:
        """Hear that so much of a step is done."""

    def calling(self) -> AbstractContextManager[Any]:
        """Surround the call of a block function, which may be a user's."""

    def step(self, name: str, action: str) -> AbstractContextManager[Span]:
        """Surround a step."""


class Nobody:
    """An observer that does not look."""

    def progress(self, step: str, done: int, steps: int) -> None:
        """Ignore it."""

    def calling(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing."""
        return nullcontext()

    @contextmanager
    def step(self, name: str, action: str) -> Iterator[Span]:
        """Time a step for nobody.

        Yields
        ------
        Span
            The step's.
        """
        yield Span(name, action, time())
