"""The jobs of a worker's program thread."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from time import time
from typing import TYPE_CHECKING, Any

from distributed.utils import set_thread_state
from distributed.worker import _worker_cvar

from dask_dgpu.errors import DgpuError
from dask_dgpu.operations.value import Blocks, Facts
from dask_dgpu.runtime.observer import Observer, Span
from dask_dgpu.runtime.package import Package

if TYPE_CHECKING:
    from distributed.worker import Worker

    from dask_dgpu.runtime.worker.facts import BlockFacts

Key = Any

MOST_SPANS = 1000
"""Number of steps of a run that are recorded separately; one span covers all further steps."""


class GaveUpError(DgpuError):
    """The scheduler gave up a run while this rank was running it."""


@dataclass
class Job(Observer):
    """One program to run as one rank; it observes the run.

    ``blocks`` are the inputs, taken ``in_memory`` of the worker or from ``stage`` tasks. ``outs``
    are blocks of the result, with the keys of their ``out`` tasks. A worker that ``holds`` the
    ``gang`` task stores its result. Somebody may have the run ``profiled``. Its values have
    these ``names``, and its text these ``tokens``; the scheduler sends its ``text`` and ``plans``,
    each if the worker may lack it, or once it has asked for them. A program out of memory is
    ``tried`` again.
    """

    worker: Worker
    known: BlockFacts
    key: Key
    run_id: int
    rank: int
    size: int
    epoch: str
    program: bytes
    digest: bytes
    tokens: bytes
    names: Sequence[str]
    blocks: list[Blocks]
    outs: list[tuple[Key, Key]]
    in_memory: bool
    holds: bool
    profiled: bool = False
    tried: tuple[str, int, int] | None = None
    text: bytes = b""
    plans: bytes = b""
    given_up: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)
    phase: str = "queued"
    done: int = 0
    calls: set[int] = field(default_factory=set)
    spans: list[Span] = field(default_factory=list)
    details: dict[str, bytes] = field(default_factory=dict)
    steps: int = 0

    @property
    def package(self) -> Package:
        """The program, as far as it is sent."""
        return Package(self.program, self.digest, self.text, self.plans)

    def free_package(self) -> None:
        """Forget the program, which is opened."""
        self.text = self.plans = b""

    @property
    def report(self) -> dict[str, Any]:
        """The progress, and whether a user's function is running."""
        return {
            "key": self.key,
            "run_id": self.run_id,
            "phase": self.phase,
            "done": self.done,
            "calling": bool(self.calls),
            "steps": self.steps,
        }

    def now(self) -> float:
        """Return the time, by the scheduler's clock."""
        return time() + self._delay

    @cached_property
    def _delay(self) -> float:
        """The delay of the scheduler's clock, one for the whole run: estimates of it change."""
        return self.worker.scheduler_delay

    def give_up(self) -> None:
        """Let the run end soon."""
        self.given_up.set()
        self.arrived.set()

    def receive(self, text: bytes, plans: bytes) -> None:
        """Take the program that this worker has asked for."""
        self.text, self.plans = text, plans
        self.arrived.set()

    def progress(self, step: str, done: int, steps: int) -> None:
        """Note the progress; raise if the run was given up."""
        self.done += 1
        self.phase = f"program ({step}, {done} of {steps})"
        if self.given_up.is_set():
            raise GaveUpError("the run was given up")

    def facts(self, block: Any) -> Facts:
        """Return the facts about a block in the worker's memory."""
        return self.known.of(block)

    def detail(self, output: str, detail: Any) -> None:
        """Keep a detail for the scheduler, which may lack its package."""
        if self.rank == 0:
            self.details[output] = pickle.dumps(detail)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Let a block function find its worker as in a task, and run without a time limit."""
        thread = threading.get_ident()
        state = {"worker": self.worker, "stimulus_id": f"dgpu-run-{self.run_id}"}
        token = _worker_cvar.set(self.worker)
        self.calls.add(thread)
        try:
            with set_thread_state(execution_state=state):
                yield
        finally:
            self.calls.discard(thread)
            _worker_cvar.reset(token)

    @contextmanager
    def step(self, name: str, action: str) -> Iterator[Span]:
        """Time a step, also one that fails.

        Yields
        ------
        Span
            The step's.
        """
        span = Span(name, action, self.now())
        self.spans.append(span)
        try:
            yield span
        finally:
            span.stop = self.now()
        self.steps += 1


def reported(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of a run; one covers all that are too many."""
    kept = list(spans[:MOST_SPANS])
    for span in spans[MOST_SPANS:]:
        last = kept[-1]
        last.name = "all further steps"
        last.stop = span.stop
        last.nbytes += span.nbytes
        last.sent_bytes += span.sent_bytes
        last.hidden = _sum(last.hidden, span.hidden)
        last.exposed = _sum(last.exposed, span.exposed)
    return kept


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second
