"""Observers of a running program, and the steps that they record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import time
from typing import Any

TOPIC = "dgpu"
"""Topic of the scheduler's events: one for each finished run of a gang."""

MOST_SPANS = 1000
"""Number of steps of a run that are recorded separately; one span covers all further steps."""


@dataclass
class Span:
    """The time of a step on a rank's host; on a GPU the work may continue after it.

    Parameters
    ----------
    name : str
        The layer of the step, in the user's words.
    action : {"compute", "transfer"}
        The main action, in the words of Dask's task stream.
    start, stop : float
        Seconds since the epoch.
    nbytes : int
        Bytes that the rank has produced.
    """

    name: str
    action: str
    start: float
    stop: float = 0.0
    nbytes: int = 0


@dataclass(frozen=True)
class Step:
    """One step of a gang's run on all ranks.

    Parameters
    ----------
    name : str
        The layer of the step.
    seconds : float
        Time of the slowest rank.
    nbytes : int
        Bytes that all ranks have produced.
    """

    name: str
    seconds: float
    nbytes: int


def record(spans: list[Span], span: Span) -> None:
    """Append a step to those of a run, or extend the last span if there are too many."""
    if len(spans) < MOST_SPANS:
        spans.append(span)
        return
    last = spans[-1]
    last.name = "all further steps"
    last.stop = span.stop
    last.nbytes += span.nbytes


class Observer:
    """Receives the progress of a program; any method may raise to stop it. This one ignores it."""

    def progress(self, step: str, done: int, steps: int) -> None:
        """Receive the progress within a step."""

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
        yield Span(name, action, time())
