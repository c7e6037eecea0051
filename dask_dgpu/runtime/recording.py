"""What is recorded of computations: steps of gangs, totals by operation, and a timeline.

A gang is recorded when its last rank is done, from the spans that ranks report anyway. Events of
the timeline are bounded, totals count everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from threading import Lock
from typing import Any, NamedTuple

from dask_dgpu.algorithms.summa.wire import Sent
from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Node
from dask_dgpu.runtime.execute import Span
from dask_dgpu.runtime.program import Launch
from graph_opt.dask_graph.words import word_of
from graph_opt.model.cost import Machine

MOST_EVENTS = 100_000
"""Most events of a timeline."""

GANG, DASK = "gang", "Dask"
"""What computes an operation."""

TRANSFERS = "transfers"
"""The track of Dask's transfers, which no thread makes."""


class Event(NamedTuple):
    """Work on a ``track``, such as a thread, of a ``lane``: a worker, or a rank of this process.

    ``wait`` are the seconds in which it only waited for transfers, NaN if nobody knows.
    """

    lane: str
    track: str
    operation: str
    start: float
    stop: float
    wait: float
    sent_bytes: int


@dataclass
class Row:
    """The totals of an operation, NaN for those that are not known.

    Seconds of a gang's step are those of its slowest rank. ``compute`` are those without ``wait``,
    and ``transfer`` those of all transfers, hidden ones too. ``dense_bytes`` are what would have
    been sent in full. ``rank_bytes`` and ``rank_flops`` are the means of all ranks;
    ``network_seconds`` and ``product_seconds`` are what they take at the measured rates.
    """

    operation: str
    kind: str
    calls: int = 0
    seconds: float = 0.0
    compute: float = 0.0
    transfer: float = 0.0
    wait: float = 0.0
    sent_bytes: float = 0
    dense_bytes: float = 0
    rank_bytes: float = 0.0
    rank_flops: float = 0.0
    network_seconds: float = 0.0
    product_seconds: float = 0.0

    def add_transfers(self, step: Span, ranks: int, saved: int, machine: Machine) -> None:
        """Add the times and the bytes of a step."""
        hidden, exposed = (
            (0.0 if ranks == 1 else nan) if each is None else each
            for each in (step.hidden, step.exposed)
        )
        self.seconds += step.seconds
        self.compute += max(step.seconds - exposed, 0.0)  # NaN stays
        self.transfer += hidden + exposed
        self.wait += exposed
        self.sent_bytes += step.sent_bytes
        self.dense_bytes += step.sent_bytes + saved
        self.rank_bytes += step.sent_bytes / ranks
        bandwidth = machine.bandwidth if "bandwidth" in machine.measured else nan
        self.network_seconds += step.sent_bytes / ranks / bandwidth

    def add_flops(self, flops: float, dtype: str, machine: Machine) -> None:
        """Add the operations of a rank."""
        self.rank_flops += flops
        rates = dict(machine.products).get(dtype) if "products" in machine.measured else None
        complex_products = 4 if dtype.startswith("complex") else 1  # one is four of real numbers
        self.product_seconds += flops / (rates.square * complex_products) if rates else nan

    def add_task(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of each action of a Dask task."""
        self.seconds += sum(seconds.values())
        self.compute += seconds.get("compute", 0.0)
        self.transfer += seconds.get("transfer", 0.0)
        self.wait = self.sent_bytes = self.dense_bytes = nan


@dataclass(frozen=True)
class Profile:
    """What was recorded from ``start`` to ``stop``.

    ``lanes`` are the names of lanes, in order. ``dropped`` events were too many, and ``running``
    tasks and gangs had not ended.
    """

    start: float
    stop: float
    lanes: dict[str, str]
    rows: tuple[Row, ...]
    events: tuple[Event, ...]
    gangs: int
    tasks: int
    dropped: int = 0
    running: int = 0


@dataclass
class Recording:
    """Collects what gangs and tasks report, from any thread."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    gangs: int = 0
    tasks: int = 0
    dropped: int = 0
    lock: Lock = field(default_factory=Lock)

    def add_gang(
        self,
        launch: Launch,
        plans: Mapping[int, Any],
        spans: Mapping[str, Sequence[Span]],
        details: Mapping[str, Any],
    ) -> None:
        """Add a finished gang.

        ``plans`` are those of collectives, by the numbers of their results, ``details`` by the
        names; ``spans`` are those of the first steps of each rank, by its lane.
        """
        program = launch.program
        nodes = zip(program.numbered.items(), words_of(launch), strict=True)
        with self.lock:
            self.gangs += 1
            before = ""
            for ((number, node), word), each in zip(
                nodes, zip(*spans.values(), strict=True), strict=False
            ):
                row = self._row(word, GANG)
                row.calls += word != before or node.operation is not None
                flops = _flops(node, plans.get(number))
                if flops:
                    row.add_flops(flops / len(each), node.value.dtype, program.machine)
                saved = _saved(details.get(launch.names[number]))
                row.add_transfers(Span.joined(each), len(each), saved, program.machine)
                before = word
                for lane, span in zip(spans, each, strict=True):
                    self._add_event(lane, word, span)

    def add_task(
        self,
        lane: str,
        track: str,
        operation: str,
        startstops: Sequence[Mapping[str, Any]],
    ) -> None:
        """Add a finished task of Dask."""
        with self.lock:
            self.tasks += 1
            row = self._row(operation, DASK)
            row.calls += 1
            seconds: dict[str, float] = {}
            for each in startstops:
                action, start, stop = each["action"], each["start"], each["stop"]
                seconds[action] = seconds.get(action, 0.0) + stop - start
                if action in ("compute", "transfer"):
                    where = track if action == "compute" else TRANSFERS
                    self._keep(Event(lane, where, operation, start, stop, nan, 0))
            row.add_task(seconds)

    def profile(
        self, start: float, stop: float, lanes: Mapping[str, str], running: int = 0
    ) -> Profile:
        """Return what was recorded so far."""
        with self.lock:
            more = {event.lane: event.lane for event in self.events}
            return Profile(
                start,
                stop,
                {**lanes, **{lane: name for lane, name in more.items() if lane not in lanes}},
                tuple(replace(row) for row in self.rows.values()),
                tuple(self.events),
                self.gangs,
                self.tasks,
                self.dropped,
                running,
            )

    def _row(self, operation: str, kind: str) -> Row:
        return self.rows.setdefault((operation, kind), Row(operation, kind))

    def _add_event(self, lane: str, word: str, span: Span) -> None:
        wait = nan if span.exposed is None else span.exposed
        self._keep(Event(lane, GANG, word, span.start, span.stop, wait, span.sent_bytes))

    def _keep(self, event: Event) -> None:
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
        else:
            self.dropped += 1


def words_of(launch: Launch) -> list[str]:
    """Return the user's word for each node of a program."""
    titles = iter(launch.titles)
    return [
        word_of(launch.names[number] if node.operation is None else next(titles))
        for number, node in launch.program.numbered.items()
    ]


def _flops(node: Node, plan: Any) -> float:
    """Return the floating-point operations of a node on all ranks, 0 if nobody knows."""
    flops = None if node.operation is None else OPERATIONS[node.operation].flops
    return 0.0 if flops is None else flops(plan)


def _saved(detail: Any) -> int:
    """Return the bytes that a product did not send because of its form of messages."""
    return detail.exact_bytes - detail.nbytes if isinstance(detail, Sent) else 0
