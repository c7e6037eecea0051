"""The plan of a call: its batches, its bytes on each device, and its time, before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isinf
from typing import Any

from dask.utils import format_bytes

from dask_dgpu.batches.notation import Lengths
from dask_dgpu.cost.table import Rows, Shown, quantity


@dataclass(frozen=True)
class Part:
    """What a device holds at the peak.

    Parameters
    ----------
    name : str
        An operand, the result, or workspace.
    shape : tuple of int
        The shape of the largest part of it in a batch.
    copies : int
        How many parts are held: two if one is transferred while another is used.
    nbytes : int
        The bytes of all copies on the device with the most.
    """

    name: str
    shape: tuple[int, ...]
    copies: int
    nbytes: int


@dataclass(frozen=True)
class Plan(Shown):
    """How :func:`run` computes a call. Prints and displays as a table.

    Parameters
    ----------
    title : str
        The operation, and the shapes and dtypes of its operands.
    feasible : bool
        Whether it fits.
    batches : int
        Number of batches, 0 if it does not fit.
    rows : int
        The longest part of the axis that is cut first; the whole length if there is one batch.
    cuts : mapping of str to int
        For each axis that is cut the longest part, as ``{"axis 0 of the result": 512}``.
    devices : int
        Number of devices, or of workers on CPUs, that share a batch.
    room : int or None
        Bytes of a device that may be used, None for no limit.
    parts : tuple of Part
        What a device holds at the peak.
    host_bytes : int
        Bytes transferred between the host arrays and the devices, both ways, in all batches and
        passes; in this process those that are read and written.
    rank_bytes : int
        Bytes that the busiest rank receives from other ranks in gangs, in all batches.
    seconds : float or None
        Predicted time, None if it is unknown.
    advice : str
        What to change, if it does not fit.
    whole : bool
        Whether the call is left to one Dask graph, which computes block by block.
    lengths : mapping of int to int
        The longest part of each label of the call's index notation.
    pass_plans : tuple of Plan
        The plan of each pass over the host arrays, if there are several. ``rows``, ``cuts`` and
        ``parts`` are then those of the pass with the highest peak.
    temporary_bytes : int
        Bytes of host arrays between passes, beside a result in a NumPy array of its own dtype.
    """

    title: str
    feasible: bool
    batches: int
    rows: int
    cuts: Mapping[str, int]
    devices: int
    room: int | None
    parts: tuple[Part, ...]
    host_bytes: int
    rank_bytes: int
    seconds: float | None
    advice: str = ""
    whole: bool = False
    lengths: Lengths = field(default_factory=dict, repr=False)
    pass_plans: tuple[Plan, ...] = field(default=(), repr=False)
    temporary_bytes: int = 0

    @classmethod
    def of(cls, title: str, devices: int, room: float, parts: Sequence[Part]) -> Plan:
        """Return the plan of a call that does not fit."""
        limit = None if isinf(room) else int(room)
        return cls(title, False, 0, 1, {}, devices, limit, tuple(parts), 0, 0, None)

    @property
    def passes(self) -> int:
        """The number of passes over the host arrays."""
        return max(1, len(self.pass_plans))

    @property
    def peak_bytes(self) -> int:
        """The bytes of all parts on the device with the most."""
        return sum(part.nbytes for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            The parameters by name, with ``"parts"`` and ``"pass_plans"`` as lists of dicts, without
            ``lengths``; and ``"peak_bytes"`` and ``"passes"``.
        """
        values = asdict(self) | {"peak_bytes": self.peak_bytes, "passes": self.passes}
        values |= {"cuts": dict(self.cuts), "parts": list(values["parts"])}
        values["pass_plans"] = [pass_plan.to_dict() for pass_plan in self.pass_plans]
        del values["lengths"]
        return values

    def _rows(self) -> Rows:
        rows = []
        for part in self.parts:
            shape = " x ".join(map(str, part.shape))
            rows.append((part.name, shape, str(part.copies), format_bytes(part.nbytes)))
        values = {
            "peak": format_bytes(self.peak_bytes),
            "may be used": "no limit" if self.room is None else format_bytes(self.room),
            "from and to the host": format_bytes(self.host_bytes),
            "between passes, on the host": format_bytes(self.temporary_bytes),
            "between ranks": format_bytes(self.rank_bytes),
            "time": "unknown" if self.seconds is None else quantity(self.seconds, "s"),
        }
        if not self.temporary_bytes:
            del values["between passes, on the host"]
        rows += [(name, "", "", value) for name, value in values.items()]
        title = f"{self.title}: {self._outcome()}"
        return Rows(title, ("on each device", "largest part", "copies", "bytes"), rows)

    def __str__(self) -> str:
        """Return a line about the batches, and the table."""
        rows = self._rows()
        lines = replace(rows, title="").text().strip("\n")
        return f"{rows.title}\n\n{lines}"

    def _outcome(self) -> str:
        if not self.feasible:
            return f"does not fit: {self.advice}"
        if self.whole:
            return f"block by block in Dask, {self.batches} blocks"
        if self.pass_plans:
            each = "; ".join(plan._outcome() for plan in self.pass_plans)
            return f"{self.passes} passes: {each}"
        cuts = ", ".join(f"{longest} along {name}" for name, longest in self.cuts.items())
        return f"{self.batches} batches, at most {cuts}" if cuts else "one batch"
