"""Whoever looks on while a rank runs its program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import time
from typing import Any, Protocol

TOPIC = "dgpu"
"""Topic of the scheduler's events: one a rank and run, with the gang's key and the spans."""


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
