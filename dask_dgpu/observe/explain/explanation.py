"""An explanation as a value: text, HTML, a dict, a drawing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_dgpu.cost.table import Rows, Shown
from dask_dgpu.observe.explain.drawing import drawn
from dask_dgpu.observe.explain.memory import Memory
from dask_dgpu.observe.explain.operations import Operation
from dask_dgpu.observe.explain.runs import sent_of
from dask_dgpu.observe.explain.table import Totals, table_of
from dask_dgpu.planner.predict import Prediction
from graph_opt.model.cost import FIGURES
from graph_opt.model.layout import Declined
from graph_opt.model.piece import Piece, Region

if TYPE_CHECKING:
    from dask_dgpu.runtime.execute import Span

DISABLED = "dask_dgpu is not enabled: everything is left to Dask"
NO_OPERATION = "no operations of arrays to compute: blocks exist, or nothing here is an array"

NO_GANGS = Memory((), None)


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """What dask_dgpu does with arrays.

    Parameters
    ----------
    enabled : bool
        Whether dask_dgpu is enabled.
    rewritten : tuple of (Piece, Prediction)
        The pieces that run in a gang, each predicted on its own.
    regions : tuple of (Region, Prediction)
        The gangs. Each runs pieces, and Dask's work between them, as one program.
    runs : tuple of tuple of Span
        For each gang the steps of its last run, with ``measured=True``.
    declined : tuple of Declined
        The recognised pieces that are left to Dask, each with one reason.
    failures : tuple of str
        Why the whole graph is left to Dask: errors of dask_dgpu here, or on the scheduler
        when this array was computed.
    measured : tuple of str
        The rates in the predictions that were measured on this cluster; others are defaults.
    seconds : float or None
        The predicted seconds of the whole graph as it will run, ``None`` if unknown.
    dask_seconds : float or None
        Those of plain Dask.
    operations : tuple of Operation
        Every operation of the graph, with its verdict, the reason and its costs.
    totals : Totals or None
        The whole graph as it will run, and in plain Dask, ``None`` if unknown.
    room : float or None
        The bytes of a rank that a gang may use, ``None`` for no limit.
    timed : bool
        Whether measured seconds were requested.
    memory : Memory
        The memory that each gang needs on a rank, what makes it up, and what it transfers.

    Notes
    -----
    It prints as a table with one row per operation; the iterations of a loop share their rows.
    Notebooks display it with bars.
    """

    enabled: bool
    rewritten: tuple[tuple[Piece, Prediction], ...] = ()
    regions: tuple[tuple[Region, Prediction], ...] = ()
    runs: tuple[tuple[Span, ...], ...] = ()
    declined: tuple[Declined, ...] = ()
    failures: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    seconds: float | None = None
    dask_seconds: float | None = None
    operations: tuple[Operation, ...] = ()
    totals: Totals | None = None
    room: float | None = None
    timed: bool = False
    memory: Memory = NO_GANGS

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            ``"enabled"``; ``"operations"``, a list of dicts with the fields of each operation;
            ``"total"``, tasks and seconds of the whole graph and of plain Dask, or ``None``;
            ``"rewritten"``, a list of dicts with name, shape, dtype, values of
            the kind of piece (``"inner"``, the length of a product's contraction), and the
            prediction: tasks, bytes, seconds, and the choices of the algorithm;
            ``"regions"``, a list of dicts with the names of the ``"steps"``, the seconds
            ``"predicted"`` and ``"measured"`` for each, the measured seconds of its transfers
            that were ``"hidden"`` behind other work and those that were ``"exposed"``, each
            ``None`` on GPUs without NCCL, the ``"sent_bytes"`` of all ranks, what products in half
            precision or without zeros have ``"sent"``, and the prediction of the whole;
            ``"declined"``, a list of dicts with ``"name"`` and ``"reason"``; ``"failures"``,
            a list of reasons; ``"measured"``, the names of the measured rates; ``"seconds"`` and
            ``"dask_seconds"`` of the whole graph; ``"room"``, the bytes that a gang may use on a
            rank.
        """
        return {
            "enabled": self.enabled,
            "operations": [dict(vars(operation)) for operation in self.operations],
            "total": None if self.totals is None else asdict(self.totals),
            "rewritten": [piece.facts | _plain(prediction) for piece, prediction in self.rewritten],
            "regions": [
                _plain(prediction)
                | {
                    "steps": [step.name for step in prediction.steps],
                    "predicted": [step.seconds for step in prediction.steps],
                    "measured": [step.seconds for step in run],
                    "hidden": [step.hidden for step in run],
                    "exposed": [step.exposed for step in run],
                    "sent_bytes": [step.sent_bytes for step in run],
                    "sent": [None if (x := sent_of(step)) is None else asdict(x) for step in run],
                }
                for (_, prediction), run in zip(self.regions, self.runs, strict=True)
            ],
            "declined": [asdict(piece) for piece in self.declined],
            "failures": list(self.failures),
            "measured": list(self.measured),
            "seconds": self.seconds,
            "dask_seconds": self.dask_seconds,
            "room": self.room,
        }

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON.

        Returns
        -------
        str
            One object; values that JSON does not know are texts.
        """
        return json.dumps(self.to_dict(), default=str)

    def visualize(self, filename: str | PathLike[str] | None = None) -> Any:
        """Draw the program: operations, layouts, exchanges.

        Parameters
        ----------
        filename : path-like, optional
            A file for the drawing, which is overwritten. Its ending is the format, as ``.svg``.

        Returns
        -------
        graphviz.Digraph
            Displays in a notebook.

        Raises
        ------
        DgpuError
            If the package graphviz is not installed.
        ValueError
            If Graphviz does not know the format.
        """
        drawing = drawn(self.operations)
        if filename is not None:
            path = Path(filename)
            path.write_bytes(drawing.pipe(path.suffix[1:]))
        return drawing

    def _rows(self) -> Rows:
        predictions = [prediction for _, prediction in self.regions]
        return table_of(self.operations, predictions, self.totals, self.room, self.timed)

    @property
    def _warnings(self) -> list[str]:
        """The lines before the table."""
        return [f"the whole graph: left to Dask: {reason}" for reason in self.failures]

    @property
    def _notes(self) -> list[str]:
        """The lines after the table, or instead of it."""
        if not self.enabled:
            return [DISABLED]
        if not self.operations:
            return [] if self.failures else [NO_OPERATION]
        lines = []
        if self.totals is None or self.totals.dask_tasks:
            lines.append(f"rates: {self._rates()}")
        steps = [step for run in self.runs for step in run]
        if any(step.exposed is None and step.recorded is None for step in steps):
            lines.append("transfers: not measured on GPUs without NCCL")
        if self.timed and all(operation.measured is None for operation in self.operations):
            lines.append("measured: no gang has computed this lately")
        return lines

    def _rates(self) -> str:
        if not self.measured:
            return "defaults, not measured"
        others = [name for name in FIGURES if name not in self.measured]
        return "measured on this cluster" + (f", except {', '.join(others)}" if others else "")

    def __str__(self) -> str:
        """Return the table as text."""
        table = [super().__str__()] if self.operations else []
        return "\n".join([*self._warnings, *table, *self._notes])

    def _repr_html_(self) -> str:
        before, after = (
            "".join(f"<div>{escape(line)}</div>" for line in lines)
            for lines in (self._warnings, self._notes)
        )
        return before + (super()._repr_html_() if self.operations else "") + after


def _plain(prediction: Prediction) -> dict[str, Any]:
    values = asdict(prediction)
    del values["text"]
    return dict(values.pop("details")) | values
