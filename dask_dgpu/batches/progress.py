"""A bar that counts batches, if they take longer than a moment."""

from __future__ import annotations

from threading import Timer

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dask_dgpu.cost.console import unfailing_console

MOMENT = 2.0
"""Seconds without a bar."""


class Batches:
    """A context manager that draws a bar of ``total`` steps after a moment, also before the first.

    Nothing is drawn unless ``shown``.
    """

    def __init__(self, title: str, total: int, shown: bool = True) -> None:
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=unfailing_console(stderr=True))
        self._task = self._bars.add_task(title, total=total)
        self._timer = Timer(MOMENT, self._bars.start)
        self._timer.daemon = True
        self._shown = shown

    def __enter__(self) -> Batches:
        """Return itself."""
        if self._shown:
            self._timer.start()
        return self

    def advance(self) -> None:
        """Count a step."""
        self._bars.advance(self._task)

    def __exit__(self, *error: object) -> None:
        """Stop drawing."""
        if self._shown:
            self._timer.cancel()
            self._timer.join()  # it may be about to draw
        if self._bars.live.is_started:
            self._bars.stop()
