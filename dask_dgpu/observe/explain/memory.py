"""The memory that gangs need, before they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.utils import format_bytes

from dask_dgpu.cost.table import Rows, Shown, at_least, quantity
from dask_dgpu.observe.explain.operations import Operation
from dask_dgpu.planner.decisions import Rewriting
from dask_dgpu.planner.predict import Lack, Prediction
from graph_opt.model.names import label
from graph_opt.model.piece import Region

HEADINGS = ("gang", "parts", "inputs", "steps", "workspace", "peak", "received")
HOST = "host"
SECONDS = "predicted"
LEFT = "left to Dask"


@dataclass(frozen=True)
class GangMemory:
    """The memory of a gang, on the rank that needs most, and what it transfers.

    Parameters
    ----------
    operations : str
        The operations of the gang.
    prediction : Prediction
        What is predicted of it, or of its smallest part if it is left to Dask.
    pass_number, passes : int
        An operation that goes in passes has a gang for each of them.
    """

    operations: str
    prediction: Prediction
    pass_number: int = 1
    passes: int = 1

    @property
    def peak_bytes(self) -> int:
        """All bytes at the peak."""
        return self.prediction.peak_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            ``"operations"``; ``"input_bytes"``, ``"step_bytes"`` of results that later steps need,
            and ``"workspace_bytes"``, which make up ``"peak_bytes"``; ``"received_bytes"`` of the
            busiest rank, and ``"host_bytes"`` that all ranks copy to GPUs and back; ``"parts"``,
            the ``"shape"`` of the largest, its ``"rows"`` along the first axis that is cut, and the
            ``"terms"`` of each block; ``"pass_number"`` and ``"passes"``; ``"seconds"``. Bytes are
            those of the part that needs most, transfers and seconds are sums.
        """
        prediction, names = (
            self.prediction,
            ("parts", "host_bytes", "shape", "rows", "terms", "seconds"),
        )
        inputs, steps, workspace = prediction.peak
        return {name: getattr(prediction, name) for name in names} | {
            "operations": self.operations,
            "input_bytes": inputs,
            "step_bytes": steps,
            "workspace_bytes": workspace,
            "peak_bytes": self.peak_bytes,
            "received_bytes": prediction.moved_bytes,
            "pass_number": self.pass_number,
            "passes": self.passes,
        }


@dataclass(frozen=True)
class Memory(Shown):
    """What the gangs of an explanation need on a rank. Prints and displays as a table.

    Parameters
    ----------
    gangs : tuple of GangMemory
        Each gang; they run one after the other.
    room : float or None
        The bytes of a rank that a gang may use, ``None`` for no limit.
    declined : tuple of str
        The operations that are left to Dask for other reasons than memory, with these.
    left : tuple of GangMemory
        The collectives that Dask computes although they do not fit, with what their smallest part
        needs.
    advice : str
        What to change if something does not fit.
    seconds : float or None
        The predicted time of the whole graph, with Dask's own work.

    Notes
    -----
    A collective on Dask arrays that does not fit runs in parts. For host arrays that do not fit,
    :func:`plan` says in how many batches :func:`run` computes.
    """

    gangs: tuple[GangMemory, ...]
    room: float | None
    declined: tuple[str, ...] = ()
    left: tuple[GangMemory, ...] = ()
    advice: str = ""
    seconds: float | None = None

    @property
    def peak_bytes(self) -> int:
        """The bytes of the gang that needs most, or would if there was one."""
        return max((gang.peak_bytes for gang in (*self.gangs, *self.left)), default=0)

    @property
    def feasible(self) -> bool:
        """Whether all fits, so nothing is left to Dask for lack of memory."""
        return not self.left and (self.room is None or self.peak_bytes <= self.room)

    @property
    def received_bytes(self) -> int:
        """What the busiest ranks receive from others in all gangs."""
        return sum(gang.prediction.moved_bytes for gang in self.gangs)

    @property
    def host_bytes(self) -> int:
        """What all gangs copy from the host to GPUs and back."""
        return sum(gang.prediction.host_bytes for gang in self.gangs)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            The parameters by name, with ``"gangs"`` and ``"left"`` as lists of dicts;
            ``"peak_bytes"`` of all and of each, ``"received_bytes"`` and ``"host_bytes"`` of all,
            and ``"feasible"``.
        """
        return {
            "room": self.room,
            "advice": self.advice,
            "seconds": self.seconds,
            "gangs": [gang.to_dict() for gang in self.gangs],
            "declined": list(self.declined),
            "left": [gang.to_dict() for gang in self.left],
            "peak_bytes": self.peak_bytes,
            "received_bytes": self.received_bytes,
            "host_bytes": self.host_bytes,
            "feasible": self.feasible,
        }

    def _rows(self) -> Rows:
        copies = bool(self.host_bytes)
        headings = (*HEADINGS, *(HOST,) * copies, SECONDS)
        rows = []
        for gang in self.gangs:
            prediction = gang.prediction
            moved = [prediction.moved_bytes, *[prediction.host_bytes] * copies]
            more = [*map(format_bytes, moved), quantity(prediction.seconds, "s")]
            rows.append([*_names(gang), *_peak(gang), *more])
        empty = [""] * (2 + copies)
        rows += [[gang.operations, LEFT, *_peak(gang), *empty] for gang in self.left]
        title = "; ".join(filter(None, [self._outcome(), self.advice, *self.declined]))
        return Rows(title, headings, rows, texts=2, dense=True, name="dgpu-memory")

    def _outcome(self) -> str:
        room = "no limit" if self.room is None else f"{format_bytes(int(self.room))} may be used"
        if self.left:
            most = max(self.left, key=lambda gang: gang.peak_bytes)
            needed = at_least(most.peak_bytes)
            return f"does not fit: {most.operations} needs at least {needed} on a rank and {room}"
        if not self.gangs:
            return "no gang runs"
        outcome = "fits" if self.feasible else "does not fit"
        return f"on the rank that needs most: {outcome}, {room}"


def _names(gang: GangMemory) -> Sequence[str]:
    """Return the operations of a gang, and its parts."""
    name, prediction = gang.operations, gang.prediction
    if gang.passes > 1:
        name += f", pass {gang.pass_number} of {gang.passes}"
    parts = f"{prediction.parts} of {' x '.join(map(str, prediction.shape)) or '1'}"
    return name, f"{parts}, {prediction.terms} terms each" if prediction.terms > 1 else parts


def _peak(gang: GangMemory) -> Sequence[str]:
    return [format_bytes(nbytes) for nbytes in (*gang.prediction.peak, gang.peak_bytes)]


def memory_of(
    rewriting: Rewriting[Any],
    operations: Sequence[Operation],
    passes: Mapping[str, str],
    lacks: Mapping[str, Lack],
    advice: str,
    room: float | None,
    seconds: float,
) -> Memory:
    """Return the memory of gangs and of operations that lack some, in the user's words.

    ``passes`` has the layers of operations that go in passes, and these operations.
    """
    words = {operation.name: operation.operation for operation in operations}

    def word(name: str) -> str:
        return words.get(name, label(name))

    reasons = {each.name: each.reason for each in rewriting.declined if each.name not in lacks}
    left = (GangMemory(word(name), lack.prediction) for name, lack in lacks.items())
    return Memory(
        tuple(_gangs(rewriting.regions, operations, passes)),
        min((lack.room for lack in lacks.values()), default=room),
        tuple(f"{word(name)} is left to Dask: {why}" for name, why in reasons.items()),
        tuple(left),
        advice,
        seconds,
    )


def _gangs(
    regions: Sequence[tuple[Region, Prediction]],
    operations: Sequence[Operation],
    passes: Mapping[str, str],
) -> Iterator[GangMemory]:
    owners = []
    for region, _ in regions:
        of = {passes.get(piece.output.name) for piece in region.pieces}
        owners.append(of.pop() if len(of) == 1 else None)
    total, number = Counter(owners), Counter[str | None]()
    for i, ((_, prediction), owner) in enumerate(zip(regions, owners, strict=True)):
        counts = Counter(operation.operation for operation in operations if operation.gang == i)
        names = [f"{n} x {name}" if n > 1 else name for name, n in counts.items()]
        number[owner] += 1
        place = (1, 1) if owner is None else (number[owner], total[owner])
        yield GangMemory(", ".join(names), prediction, *place)
