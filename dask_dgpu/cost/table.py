"""Tables as text and as HTML."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from textwrap import wrap
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100
"""Columns of text."""

PREFIXES = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}

UNITS = {"PiB": 50, "TiB": 40, "GiB": 30, "MiB": 20, "kiB": 10}
"""Units of bytes, and the binary logarithm of each."""


@dataclass(frozen=True)
class Rows:
    """A table: its title, headings and rows, and the columns of its text.

    The first ``texts`` columns are text, which wraps; the others are numbers. If ``total``, a line
    separates the last row from the others. A ``dense`` table has less space between columns.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    width: int = WIDTH
    texts: int = 1
    total: bool = False
    dense: bool = False

    def text(self) -> str:
        """Return the table as text."""
        form: dict[str, Any] = {"padding": (0, 0, 0, 1), "pad_edge": False} if self.dense else {}
        table = Table(box=SIMPLE_HEAD, **form)
        for at, heading in enumerate(self.headings):
            is_text = at < self.texts
            table.add_column(
                heading, justify="left" if is_text else "right", no_wrap=self.dense and not is_text
            )
        for at, row in enumerate(self.rows):
            if self.total and at == len(self.rows) - 1:
                table.add_section()
            table.add_row(*map(Text, row))
        console = Console(width=self.width, color_system=None, force_jupyter=False)
        with console.capture() as capture:
            console.print(table, markup=False)
        lines = [line.rstrip() for line in capture.get().rstrip().splitlines()]
        title = [part for line in self.title.splitlines() for part in wrap(line, self.width)]
        return "\n".join([*title, *lines])

    def html(self) -> str:
        """Return the table as HTML."""
        lines = [("th", self.headings), *(("td", row) for row in self.rows)]
        rows = "".join(
            f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
            for tag, cells in lines
        )
        return f"<table><caption>{escape(self.title)}</caption>{rows}</table>"


class Shown(ABC):
    """Prints as a table, and displays as one in a notebook."""

    @abstractmethod
    def _rows(self) -> Rows:
        """Return the table."""

    def __str__(self) -> str:
        """Return the table as text."""
        return self._rows().text()

    def _repr_html_(self) -> str:
        return self._rows().html()


def quantity(value: float, unit: str) -> str:
    """Return a number with three digits, a prefix and its unit: ``"28.1 Gflop/s"``."""
    if not value:
        return f"0 {unit}"
    power = min(max(PREFIXES), max(min(PREFIXES), 3 * floor(log10(abs(value)) / 3)))
    return f"{value / 10**power:.3g} {PREFIXES[power]}{unit}"


def at_least(nbytes: float) -> str:
    """Return bytes as a text for a setting, rounded up: it is read as at least as many."""
    needed = ceil(nbytes)
    unit = next((unit for unit in UNITS if needed >= 1 << UNITS[unit]), None)
    if unit is None:
        return f"{needed} B"
    hundredths = -(-needed * 100 >> UNITS[unit])
    return f"{hundredths // 100}.{hundredths % 100:02} {unit}"
