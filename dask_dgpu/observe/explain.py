"""An explanation of what runs as gangs, and why the rest does not: text, HTML or a dict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import dask
from dask.base import is_dask_collection
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from dask.utils import format_bytes

from dask_dgpu.arguments import check_flag, expected
from dask_dgpu.environment.facts import current_client
from dask_dgpu.observe.folding import folded, repeated
from dask_dgpu.observe.runs import last_runs, sent_of, transfers
from dask_dgpu.planner.fallbacks import arrays_of, fallbacks_of, reason_of
from dask_dgpu.planner.optimizer import GraphOptimizer
from dask_dgpu.planner.predict import Prediction, present_on
from graph_opt.model.cost import FIGURES
from graph_opt.model.layout import Declined, label
from graph_opt.model.piece import Piece, Region

if TYPE_CHECKING:
    from dask_dgpu.runtime.observer import Step

MOST_SHOWN = 40
"""Most steps of a region to name; of a longer one the first and the last are named."""


@dataclass(frozen=True)
class Explanation:
    """What dask_dgpu does with an array.

    Parameters
    ----------
    enabled : bool
        Whether dask_dgpu is enabled.
    rewritten : tuple of (Piece, Prediction)
        The pieces that run in a gang, each predicted on its own.
    regions : tuple of (Region, Prediction)
        The gangs. Each runs pieces, and Dask's work between them, as one program.
    runs : tuple of tuple of Step
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

    Notes
    -----
    It prints one line per piece, or one for the same steps of a loop. Notebooks display it
    as a table.
    """

    enabled: bool
    rewritten: tuple[tuple[Piece, Prediction], ...] = ()
    regions: tuple[tuple[Region, Prediction], ...] = ()
    runs: tuple[tuple[Step, ...], ...] = ()
    declined: tuple[Declined, ...] = ()
    failures: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    seconds: float | None = None
    dask_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            ``"enabled"``; ``"rewritten"``, a list of dicts with name, shape, dtype, values of
            the kind of piece (``"inner"``, the length of a product's contraction), and the
            prediction: tasks, bytes, seconds, and the choices of the algorithm;
            ``"regions"``, a list of dicts with the names of the ``"steps"``, the seconds
            ``"predicted"`` and ``"measured"`` for each, the measured seconds of its transfers
            that were ``"hidden"`` behind other work and those that were ``"exposed"``, each
            ``None`` on GPUs without NCCL, the ``"sent_bytes"`` of all ranks, what products in half
            precision or without zeros have ``"sent"``, and the prediction of the whole;
            ``"declined"``, a list of dicts with ``"name"`` and ``"reason"``; ``"failures"``,
            a list of reasons; ``"measured"``, the names of the measured rates; ``"seconds"`` and
            ``"dask_seconds"`` of the whole graph.
        """
        return {
            "enabled": self.enabled,
            "rewritten": [piece.facts | _plain(prediction) for piece, prediction in self.rewritten],
            "regions": [
                _plain(prediction)
                | {
                    "steps": [name for name, _ in prediction.steps],
                    "predicted": [seconds for _, seconds in prediction.steps],
                    "measured": [step.seconds for step in run],
                    "hidden": [step.hidden for step in run],
                    "exposed": [step.exposed for step in run],
                    "sent_bytes": [step.sent_bytes for step in run],
                    "sent": [None if (x := sent_of(step)) is None else asdict(x) for step in run],
                }
                for (_, prediction), run in zip(self.regions, self._runs, strict=True)
            ],
            "declined": [asdict(piece) for piece in self.declined],
            "failures": list(self.failures),
            "measured": list(self.measured),
            "seconds": self.seconds,
            "dask_seconds": self.dask_seconds,
        }

    @property
    def _runs(self) -> tuple[tuple[Step, ...], ...]:
        return self.runs or ((),) * len(self.regions)

    def _rates(self) -> str:
        if not self.measured:
            return "defaults, not measured"
        others = [name for name in FIGURES if name not in self.measured]
        return "measured on this cluster" + (f", except {', '.join(others)}" if others else "")

    def _lines(self) -> list[tuple[str, str]]:
        """Return heading and text of each line."""
        lines = [("the whole graph", f"left to Dask: {reason}") for reason in self.failures]
        for piece, predicted in self.rewritten:
            lines.append(
                (
                    piece.label,
                    f"{piece.summary} runs as a gang: {predicted.text}, "
                    f"{predicted.tasks} tasks instead of about {predicted.dask_tasks}, "
                    f"about {format_bytes(predicted.moved_bytes)} received and "
                    f"{format_bytes(predicted.peak_bytes)} held at most per rank, "
                    f"about {predicted.seconds:.3g} s instead of {predicted.dask_seconds:.3g} s",
                )
            )
        for region, predicted in self.regions:
            if len(region.members) > 1 or not region.pieces:
                steps = "1 step" if len(region.members) == 1 else f"{len(region.members)} steps"
                lines.append((f"region of {steps}", _region(region, predicted)))
        for (_, predicted), run in zip(self.regions, self._runs, strict=True):
            for (name, seconds), step in zip(predicted.steps, run, strict=False):
                nbytes = format_bytes(step.nbytes)
                text = f"{step.seconds:.3g} s measured, {nbytes} made"
                if step.name == name:  # else it is the sum of many steps
                    text += f", {seconds:.3g} s predicted"
                lines.append((step.name, text + transfers(step)))
        if any(step.exposed is None for run in self._runs for step in run):
            lines.append(("transfers", "not measured on GPUs without NCCL"))
        lines += [(label(piece.name), f"left to Dask: {piece.reason}") for piece in self.declined]
        if self.regions and self.seconds is not None and self.dask_seconds is not None:
            text = f"about {self.seconds:.3g} s instead of {self.dask_seconds:.3g} s"
            lines.append(("in all", text))
        if self.regions or self.declined:
            lines.append(("rates", self._rates()))
        return list(folded(lines))

    def __str__(self) -> str:
        """One line per piece, or for several of the same text."""
        if not self.enabled:
            return "dask_dgpu is not enabled: everything is left to Dask"
        return "\n".join(f"{name}: {text}" for name, text in self._lines()) or (
            "nothing here that dask_dgpu knows how to rewrite: everything is left to Dask"
        )

    def __repr__(self) -> str:
        """Return the text, for a prompt shows this instead of :meth:`__str__`."""
        return str(self)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><code>{escape(name)}</code></td><td>{escape(text)}</td></tr>"
            for name, text in self._lines()
        )
        return f"<table>{rows}</table>" if rows else f"<p>{escape(str(self))}</p>"


def _region(region: Region, predicted: Prediction) -> str:
    names = repeated([member.output.name.rpartition("-")[0] for member in region.members])
    if len(names) > MOST_SHOWN:
        names[MOST_SHOWN // 2 : -MOST_SHOWN // 2] = ["..."]
    steps = " -> ".join(names)
    return (
        f"{steps} runs as one program: "
        f"{predicted.tasks} tasks instead of about {predicted.dask_tasks}, "
        f"{format_bytes(predicted.peak_bytes)} held at most per rank, "
        f"about {predicted.seconds:.3g} s instead of {predicted.dask_seconds:.3g} s"
    )


def _plain(prediction: Prediction) -> dict[str, Any]:
    values = asdict(prediction)
    del values["text"]
    return dict(values.pop("details")) | values


def explain(array: Any, *, measured: bool = False) -> Explanation:
    """Show how dask_dgpu would compute an array.

    Parameters
    ----------
    array : dask.array.Array
        The array, or any collection with a high-level graph.
    measured : bool, optional
        Whether to add the measured seconds of each step, and of its transfers, from the last
        computation of this array on the current client's cluster.

    Returns
    -------
    Explanation
        Prints as text, displays as HTML, and has :meth:`Explanation.to_dict`. It also says
        whether dask_dgpu is enabled.

    Raises
    ------
    TypeError
        If ``array`` is no Dask collection.
    ValueError
        If ``measured`` is true and there is no client.

    Notes
    -----
    Nothing is computed. Bytes, memory and times are predictions for blocks in even shares,
    in their order, on the workers that :func:`enable` found.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x = da.ones((4, 6), chunks=2)
    >>> print(dgpu.explain(x @ x.T))
    dask_dgpu is not enabled: everything is left to Dask
    """
    if not is_dask_collection(array):
        expected("array", "a Dask collection", array, TypeError)
    check_flag("measured", measured)
    optimizer = dask.config.get("array_optimize", None)
    if not isinstance(optimizer, GraphOptimizer):
        return Explanation(enabled=False)
    graph = array.__dask_graph__()
    if not isinstance(graph, HighLevelGraph):
        return Explanation(enabled=True)
    client, keys = current_client(), array.__dask_keys__()
    names = arrays_of(graph, set(flatten(keys)))
    reported = fallbacks_of(client, names) if optimizer.facts.scheduler else ()
    present = present_on(optimizer.facts.scheduler, client)
    optimizer = optimizer.calibrated(client)
    try:
        rewriting = optimizer.rewrite(graph, keys, present)
    except Exception as error:
        if optimizer.settings.on_error == "raise":
            raise
        failures = dict.fromkeys([reason_of(error), *reported])
        return Explanation(enabled=True, failures=tuple(failures))
    alone = [(piece, Region.of(piece)) for piece in rewriting.pieces]
    rewritten = tuple(
        (piece, optimizer.predict(region, rewriting.arrays, present)) for piece, region in alone
    )
    runs = last_runs(region for region, _ in rewriting.regions) if measured else ()
    return Explanation(
        True,
        rewritten,
        rewriting.regions,
        runs,
        rewriting.declined,
        reported,
        optimizer.facts.machine.measured,
        *optimizer.totals(graph, keys, rewriting, present),
    )
