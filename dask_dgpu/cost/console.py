"""Consoles for progress, which matters less than the work."""

from __future__ import annotations

from contextlib import suppress
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def unfailing_console(*, stderr: bool = False) -> Console:
    """Return a console of the standard output, or error; what it cannot write is lost."""
    console = Console(stderr=stderr)
    console.file = cast(IO[str], _Unfailing(console.file))
    return console


def counting_bars(*, stderr: bool = False) -> Progress:
    """Return bars with a text, the number of steps, and the time."""
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=unfailing_console(stderr=stderr))


class _Unfailing:
    """A stream that may be closed, or have nobody who reads it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, or nothing."""
        with suppress(Exception):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or nothing."""
        with suppress(Exception):
            self._stream.flush()
