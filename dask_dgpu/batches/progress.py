"""A bar that counts batches, if they take longer than a moment."""

from __future__ import annotations

from threading import Lock, Timer
from time import monotonic
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dask_dgpu.cost.console import unfailing_console

MOMENT = 2.0
"""Seconds without a bar."""


class Batches:
    """A context manager that draws a bar of ``total`` steps after a moment, also before the first.

    Nothing is drawn unless ``shown``.
    """

    def __init__(self, title: str, total: int, shown: bool = True) -> None:
        self.title = title
        self.total = total
        self.shown = shown
        self.done = 0
        self._begun = monotonic()
        self._bars: Progress | None = None
        self._lock = Lock()
        self._timer = Timer(MOMENT, self._draw)
        self._timer.daemon = True

    def __enter__(self) -> Batches:
        """Return itself."""
        if self.shown:
            self._timer.start()
        return self

    def advance(self) -> None:
        """Count a step."""
        with self._lock:
            self.done += 1
            if self._bars is not None:
                self._bars.update(self._bars.task_ids[0], completed=self.done)

    def _draw(self) -> None:
        """Begin to draw, unless the last step is done."""
        with self._lock:
            if self.done >= self.total or self._timer.finished.is_set():
                return
            text = TextColumn("{task.description}", markup=False)
            columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Progress(*columns, console=unfailing_console(stderr=True))
            task = self._bars.add_task(self.title, total=self.total, completed=self.done)
            self._bars.tasks[task].start_time = self._begun
            self._bars.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop drawing."""
        with self._lock:
            self._timer.cancel()
            if self._bars is not None:
                self._bars.stop()
