"""A bar that counts batches, if they take longer than a moment."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

MOMENT = 2.0
"""Seconds without a bar."""


class Batches:
    """A context manager that draws a bar of ``total`` steps after a moment."""

    def __init__(self, title: str, total: int, shown: bool = True) -> None:
        self.title = title
        self.total = total
        self.shown = shown
        self.done = 0
        self._begun = time.monotonic()
        self._bars: Progress | None = None

    def __enter__(self) -> Batches:
        """Return itself."""
        return self

    def advance(self) -> None:
        """Count a step."""
        self.done += 1
        late = time.monotonic() - self._begun >= MOMENT
        if self._bars is None and self.shown and late and self.done < self.total:
            text = TextColumn("{task.description}", markup=False)
            columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Progress(*columns, console=Console(stderr=True))
            self._bars.add_task(self.title, total=self.total)
            self._bars.start()
        if self._bars is not None:
            self._bars.update(self._bars.task_ids[0], completed=self.done)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the bar."""
        if self._bars is not None:
            self._bars.stop()
