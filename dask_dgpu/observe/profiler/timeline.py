"""The timeline of a profiler: a trace that Perfetto opens, and a drawing by Matplotlib."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from io import StringIO
from itertools import count, groupby, zip_longest
from math import isnan
from os import PathLike
from pathlib import Path
from typing import Any

from dask_dgpu.arguments import expected
from dask_dgpu.errors import DgpuError
from dask_dgpu.runtime.recording import GANG, TRANSFERS, Event, Profile
from graph_opt.model.layout import counted

COLOURS = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7"),
    *("#86bcb6",),
)
"""One for each operation; visible on light and on dark pages, as these are:"""

OTHERS, TEXT, WAIT = "#a0a0a0", "#808080", "#00000099"


@dataclass(frozen=True)
class Timeline:
    """What each worker, or rank, did when. Displays in a notebook, without scripts.

    Parameters
    ----------
    profile : Profile
        The record.

    Notes
    -----
    Matplotlib draws it. Each worker has a track for the steps of gangs, one for each thread that
    ran tasks, and one for transfers between tasks. The dark bar below a step is the share of it
    that waited for transfers; it is not known when within the step.
    """

    profile: Profile

    def save(self, path: str | PathLike[str]) -> None:
        """Write the timeline to a page.

        Parameters
        ----------
        path : path-like
            The file, which is overwritten. Its name ends in ``.html``.

        Raises
        ------
        ValueError
            If it has another ending.
        DgpuError
            If matplotlib is not installed.
        """
        file = Path(path)
        if file.suffix != ".html":
            expected("path", "a file named .html", str(path))
        file.write_text(
            f"<!doctype html><meta charset='utf-8'><title>Timeline</title>{self.html()}"
        )

    def html(self) -> str:
        """Return the timeline as HTML, without scripts; the same for the same record.

        Returns
        -------
        str
            A figure.

        Raises
        ------
        DgpuError
            If matplotlib is not installed.
        """
        figure, text = self._figure(), StringIO()
        from matplotlib import rc_context

        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "timeline"}):
            figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        _, svg, rest = text.getvalue().partition("<svg")
        return f"<figure style='overflow-x:auto;margin:0'>{svg}{rest}</figure>"

    def _repr_html_(self) -> str:
        try:
            return self.html()
        except DgpuError as error:
            return f"<p>{escape(str(error))}</p>"

    def __str__(self) -> str:
        """Say what there is to see."""
        return (
            f"timeline of {counted(len(self.profile.events), 'event')}; save() writes it to a file"
        )

    def __repr__(self) -> str:
        """Return the text, for a prompt shows this."""
        return str(self)

    def _colours(self) -> dict[str, str]:
        """Return the colour of each operation, those with most time first."""
        seconds = Counter[str]()
        for event in self.profile.events:
            seconds[event.operation] += event.stop - event.start  # type: ignore[assignment]
        names = [name for name, _ in seconds.most_common()]
        return dict(zip_longest(names, COLOURS[: len(names)], fillvalue=OTHERS))

    def _figure(self) -> Any:
        """Return the drawing; its bars are one image, as there may be many."""
        try:
            from matplotlib.figure import Figure
            from matplotlib.patches import Patch
        except ImportError as error:
            raise DgpuError(
                "expected matplotlib to be installed to draw a timeline: pip install matplotlib"
            ) from error
        tracks, colours, begin = list(_tracks(self.profile)), self._colours(), self.profile.start
        figure = Figure(figsize=(12, 1.4 + 0.3 * len(tracks)), dpi=150, layout="constrained")
        axes = figure.subplots()
        for row, (_, _, events) in enumerate(tracks):
            bars = [(event.start - begin, event.stop - event.start) for event in events]
            shades = [colours[event.operation] for event in events]
            axes.broken_barh(bars, (row - 0.4, 0.8), color=shades, rasterized=True)
            waits = [
                (start, min(event.wait, seconds))
                for event, (start, seconds) in zip(events, bars, strict=True)
                if event.wait > 0
            ]
            axes.broken_barh(waits, (row + 0.25, 0.15), facecolor=WAIT, rasterized=True)
        axes.set(xlim=(0, max(self.profile.stop - begin, 1e-9)), ylim=(len(tracks) - 0.5, -0.5))
        names = [f"{self.profile.lanes[lane]}, {name}" for lane, name, _ in tracks]
        axes.set_yticks(range(len(tracks)), names)
        caption = "seconds; dark bars: the share of a step that waited for transfers"
        if self.profile.dropped:
            caption += f"; {self.profile.dropped} late events are not drawn"
        axes.set_xlabel(caption, color=TEXT)
        axes.tick_params(colors=TEXT)
        axes.spines[:].set_visible(False)
        handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
        place: Any = {"loc": "outside lower center", "ncols": 6, "frameon": False}
        figure.legend(handles=handles, labelcolor=TEXT, **place)
        return figure


def write_trace(profile: Profile, path: str | PathLike[str]) -> None:
    """Write a record in Chrome's trace format, which Perfetto opens; times are microseconds."""
    trace = {"traceEvents": list(_entries(profile)), "displayTimeUnit": "ms"}
    Path(path).write_text(json.dumps(trace))


def _entries(profile: Profile) -> Iterator[dict[str, Any]]:
    """Yield entries: a process is a worker, and a thread a track."""
    processes, numbers = {lane: i for i, lane in enumerate(profile.lanes)}, count()
    for lane, process in processes.items():
        yield _named("process_name", process, 0, profile.lanes[lane])
    for thread, (lane, name, events) in enumerate(_tracks(profile), 1):
        yield _named("thread_name", processes[lane], thread, name)
        for event in events:
            kind = event.track if event.track in (GANG, TRANSFERS) else "task"
            entry = {"pid": processes[lane], "tid": thread, "name": event.operation, "cat": kind}
            begin, stop = ((at - profile.start) * 1e6 for at in (event.start, event.stop))
            if event.track == TRANSFERS:  # they overlap, and events of a thread must not
                number = next(numbers)
                yield entry | {"ph": "b", "ts": begin, "id": number}
                yield entry | {"ph": "e", "ts": stop, "id": number}
                continue
            facts: dict[str, Any] = {"sent_bytes": event.sent_bytes}
            if not isnan(event.wait):
                facts["wait_seconds"] = event.wait
            yield entry | {"ph": "X", "ts": begin, "dur": stop - begin, "args": facts}


def _tracks(profile: Profile) -> Iterator[tuple[str, str, list[Event]]]:
    """Yield each track's lane, name and events; of a lane those of gangs first, transfers last."""
    lanes, kinds, threads = list(profile.lanes), {GANG: 0, TRANSFERS: 2}, Counter[str]()

    def place(event: Event) -> tuple[int, int, str]:
        return lanes.index(event.lane), kinds.get(event.track, 1), event.track

    for (at, kind, track), events in groupby(sorted(profile.events, key=place), place):
        threads[lanes[at]] += kind == 1  # their identifiers are long numbers
        yield lanes[at], f"thread {threads[lanes[at]]}" if kind == 1 else track, list(events)


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
