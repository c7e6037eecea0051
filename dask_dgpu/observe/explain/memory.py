"""The memory that gangs need, before they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dask.utils import format_bytes

from dask_dgpu.cost.table import Rows, Shown
from dask_dgpu.planner.predict import Prediction

HEADINGS = ("gang", "inputs", "steps", "workspace", "peak", "received")


@dataclass(frozen=True)
class GangMemory:
    """The bytes on the rank of a gang that needs most, at its peak.

    Parameters
    ----------
    operations : str
        The operations of the gang.
    input_bytes : int
        The inputs, which stay to the end.
    step_bytes : int
        The results of steps that are still needed.
    workspace_bytes : int
        Message buffers, panels and temporaries of the step with the peak.
    received_bytes : int
        What the busiest rank receives from others in the whole program; no memory of its own.
    parts : int
        The number of gangs, one after another, that compute parts of the result. The other bytes
        are those of the part that needs most.
    """

    operations: str
    input_bytes: int
    step_bytes: int
    workspace_bytes: int
    received_bytes: int
    parts: int = 1

    @classmethod
    def of(cls, operations: str, prediction: Prediction) -> GangMemory:
        """Return the memory of a predicted gang."""
        return cls(operations, *prediction.peak, prediction.moved_bytes, prediction.parts)

    @property
    def peak_bytes(self) -> int:
        """All bytes at the peak."""
        return self.input_bytes + self.step_bytes + self.workspace_bytes


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
        The pieces that are left to Dask, with the reasons.

    Notes
    -----
    A collective on Dask arrays that does not fit runs in parts. For host arrays that do not fit,
    :func:`plan` says in how many batches :func:`run` computes.
    """

    gangs: tuple[GangMemory, ...]
    room: float | None
    declined: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The bytes of the gang that needs most."""
        return max((gang.peak_bytes for gang in self.gangs), default=0)

    @property
    def feasible(self) -> bool:
        """Whether each gang fits."""
        return self.room is None or self.peak_bytes <= self.room

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            The parameters by name, with ``"gangs"`` as a list of dicts; ``"peak_bytes"`` of all
            and of each gang, and ``"feasible"``.
        """
        gangs = [asdict(gang) | {"peak_bytes": gang.peak_bytes} for gang in self.gangs]
        return {
            "gangs": gangs,
            "room": self.room,
            "declined": list(self.declined),
            "peak_bytes": self.peak_bytes,
            "feasible": self.feasible,
        }

    def _rows(self) -> Rows:
        room = "no limit" if self.room is None else f"{format_bytes(int(self.room))} may be used"
        outcome = "fits" if self.feasible else "does not fit"
        title = f"on the rank that needs most: {outcome}, {room}" if self.gangs else "no gang runs"
        return Rows("; ".join([title, *self.declined]), HEADINGS, list(map(_row, self.gangs)))


def _row(gang: GangMemory) -> Sequence[str]:
    parts = gang.input_bytes, gang.step_bytes, gang.workspace_bytes
    every = (*parts, gang.peak_bytes, gang.received_bytes)
    name = gang.operations + (f", in {gang.parts} parts" if gang.parts > 1 else "")
    return (name, *map(format_bytes, every))
