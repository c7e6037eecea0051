"""The timeline of a profiler: HTML without scripts, SVG, and PNG.

::

    worker 0  gang      | matmul ...........| sum |
                        |======|                        the share of a step that waits
              thread 1        | random |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from dask_dgpu.arguments import expected
from dask_dgpu.cost.table import quantity
from dask_dgpu.errors import DgpuError
from dask_dgpu.runtime.recording import GANG, TRANSFERS, Event, Found
from graph_opt.model.layout import counted

MOST_DRAWN = 4000
"""Most events to draw; shorter ones are left out."""

COLOURS = (
    "#4e79a7",
    "#f28e2b",
    "#59a14f",
    "#b07aa1",
    "#76b7b2",
    "#edc948",
    "#9c755f",
    "#ff9da7",
    "#86bcb6",
    "#a0a0a0",
)
"""One for each operation, the last for all further ones; visible on light and on dark pages."""

FAILED = "#e15759"

LABELS, WIDTH, HEIGHT, GAP = 180, 800, 18, 4
"""Columns of pixels for the names of tracks and for the time; rows of a track, and between."""


@dataclass(frozen=True)
class Track:
    """The events of a track, in order; its name contains that of its lane."""

    name: str
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Timeline:
    """What each worker, or rank, did when. Displays in a notebook, without scripts.

    Parameters
    ----------
    found : Found
        The record.

    Notes
    -----
    Each worker has a track for the steps of gangs, one for each thread that ran tasks, and one for
    transfers between tasks. The dark bar below a step is the share of it that waited for
    transfers; it is not known when within the step. Hover over an event for its numbers.
    """

    found: Found

    @cached_property
    def tracks(self) -> tuple[Track, ...]:
        """The tracks with events, by worker: gangs, threads, transfers."""
        order = {GANG: (0, ""), TRANSFERS: (2, "")}
        lanes = {lane: at for at, lane in enumerate(self.found.lanes)}
        by_track: dict[tuple[str, str], list[Event]] = {}
        for event in self._drawn:
            by_track.setdefault((event.lane, event.track), []).append(event)
        names = sorted(
            by_track, key=lambda each: (lanes[each[0]], order.get(each[1], (1, each[1])))
        )
        threads: dict[str, int] = {}
        found = []
        for lane, track in names:
            if track not in order:  # the identifiers of threads are long numbers
                threads[lane] = threads.get(lane, 0) + 1
                shown = f"thread {threads[lane]}"
            else:
                shown = track
            events = tuple(sorted(by_track[lane, track], key=lambda event: event.start))
            found.append(Track(f"{self.found.lanes[lane]}, {shown}", events))
        return tuple(found)

    @cached_property
    def colours(self) -> dict[str, str]:
        """The colour of each operation, those with most time first."""
        seconds: dict[str, float] = {}
        for event in self.found.events:
            seconds[event.operation] = seconds.get(event.operation, 0) + event.stop - event.start
        names = sorted(seconds, key=lambda name: -seconds[name])
        return {name: COLOURS[min(at, len(COLOURS) - 1)] for at, name in enumerate(names)}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the timeline to a file.

        Parameters
        ----------
        path : path-like
            The file, which is overwritten. Its name ends in ``.html``, ``.svg`` or ``.png``.

        Raises
        ------
        ValueError
            If it has another ending.
        DgpuError
            If it is a PNG and matplotlib is not installed.
        """
        file = Path(path)
        if file.suffix == ".png":
            self._draw(file)
        elif file.suffix == ".svg":
            file.write_text(self.svg())
        elif file.suffix == ".html":
            page = f"<!doctype html><meta charset='utf-8'><title>Timeline</title>{self.html()}"
            file.write_text(page)
        else:
            expected("path", "a file named .html, .svg or .png", str(path))

    def html(self) -> str:
        """Return the timeline as HTML, without scripts.

        Returns
        -------
        str
            A figure with its legend.
        """
        legend = " ".join(
            f"<span style='white-space:nowrap'><span style='background:{colour};"
            f"display:inline-block;width:1em;height:0.8em'></span> {escape(name)}</span>"
            for name, colour in self.colours.items()
        )
        return (
            f"<figure style='overflow-x:auto;margin:0'>{self.svg()}"
            f"<figcaption>{legend}<br>{escape(self._caption)}</figcaption></figure>"
        )

    def svg(self) -> str:
        """Return the timeline as SVG.

        Returns
        -------
        str
            The drawing, without its legend.
        """
        height = len(self.tracks) * (HEIGHT + GAP) + HEIGHT
        parts = [
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{LABELS + WIDTH + 20}' "
            f"height='{height}' font-family='sans-serif' font-size='11' fill='currentColor'>"
        ]
        for at, track in enumerate(self.tracks):
            top = at * (HEIGHT + GAP)
            parts.append(f"<text x='0' y='{top + 13}'>{escape(track.name)}</text>")
            parts += [part for event in track.events for part in self._bars(event, top)]
        for at in range(5):
            seconds, x = at / 4 * self._seconds, LABELS + at / 4 * WIDTH
            anchor = ("start", "middle", "middle", "middle", "end")[at]
            text = quantity(seconds, "s")
            parts.append(f"<text x='{x:g}' y='{height - 4}' text-anchor='{anchor}'>{text}</text>")
        return "".join([*parts, "</svg>"])

    def _repr_html_(self) -> str:
        return self.html()

    def __str__(self) -> str:
        """Say what there is to see."""
        return f"timeline of {counted(len(self.found.events), 'event')}; save() writes it to a file"

    def __repr__(self) -> str:
        """Return the text, for a prompt shows this."""
        return str(self)

    @property
    def _seconds(self) -> float:
        return max(self.found.stop - self.found.start, 1e-9)

    @cached_property
    def _drawn(self) -> list[Event]:
        events = self.found.events
        return sorted(events, key=lambda event: event.start - event.stop)[:MOST_DRAWN]

    @property
    def _caption(self) -> str:
        left_out = len(self.found.events) - len(self._drawn) + self.found.dropped
        text = "Dark bars: the share of a step that waited for transfers."
        if left_out:
            text += f" {left_out} short or late events are not drawn."
        return text

    def _place(self, event: Event) -> tuple[float, float]:
        """Return the first column of an event, and its width."""
        scale = WIDTH / self._seconds
        first = LABELS + max(0.0, (event.start - self.found.start) * scale)
        return first, max(0.5, (event.stop - event.start) * scale)

    def _bars(self, event: Event, top: int) -> Iterator[str]:
        x, width = self._place(event)
        colour = FAILED if event.failed else self.colours[event.operation]
        yield (
            f"<rect x='{x:.1f}' y='{top}' width='{width:.1f}' height='{HEIGHT}' fill='{colour}'>"
            f"<title>{escape(_described(event))}</title></rect>"
        )
        if event.wait > 0:
            share = min(1.0, event.wait / (event.stop - event.start or 1.0))
            yield (
                f"<rect x='{x:.1f}' y='{top + HEIGHT - 4}' width='{share * width:.1f}' "
                "height='4' fill='#000' fill-opacity='0.6' pointer-events='none'/>"
            )

    def _draw(self, file: Path) -> None:
        """Write a PNG."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise DgpuError(
                "expected matplotlib to be installed to write a PNG: pip install matplotlib"
            ) from error
        rows = len(self.tracks) + len(self.colours) / 6
        figure: Any = Figure(figsize=(12, 1.5 + 0.3 * rows), layout="constrained")
        axes = figure.subplots()
        for at, track in enumerate(self.tracks):
            for event in track.events:
                begin, seconds = event.start - self.found.start, event.stop - event.start
                colour = FAILED if event.failed else self.colours[event.operation]
                axes.broken_barh([(begin, seconds)], (at - 0.4, 0.8), color=colour)
                if event.wait > 0:
                    wait = min(event.wait, seconds)
                    axes.broken_barh([(begin, wait)], (at + 0.25, 0.15), color="black", alpha=0.6)
        axes.set_yticks(range(len(self.tracks)), [track.name for track in self.tracks])
        axes.set(xlim=(0, self._seconds), xlabel="seconds")
        axes.invert_yaxis()
        handles = [axes.barh(0, 0, color=colour) for colour in self.colours.values()]
        if handles:
            place = {"loc": "outside lower center", "ncols": 6, "fontsize": "small"}
            figure.legend(handles, list(self.colours), **place)
        figure.savefig(file)


def _described(event: Event) -> str:
    text = f"{event.operation}: {quantity(event.stop - event.start, 's')}"
    if event.wait > 0:
        text += f", of these {quantity(event.wait, 's')} waiting for transfers"
    if event.sent_bytes:
        text += f", {quantity(event.sent_bytes, 'B')} sent"
    return text + (", failed" if event.failed else "")
