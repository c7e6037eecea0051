"""Tables as text, and as HTML without scripts, which light and dark pages show alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

BLUE, ORANGE, GREEN, RED, GREY = "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#a0a0a0"
"""Colours that are visible on light and on dark pages."""

LETTERS, BAR = "#x", 20
"""A bar as text: the letter of each of its parts, and the number of all letters."""


@dataclass(frozen=True)
class Cell:
    """A cell with a bar in HTML, below its text: the share of its width in each colour.

    Text shows the bar if there is nothing else in the cell. The tip shows over the bar, or over a
    cell without one.
    """

    text: str = ""
    bar: Mapping[str, float] = field(default_factory=dict)
    tip: str = ""

    def __str__(self) -> str:
        """Return the text, or the bar as letters."""
        if self.text or not self.bar:
            return self.text
        drawn = ""
        for letter, end in zip(LETTERS, self._ends(), strict=False):
            drawn += letter * (round(end * BAR) - len(drawn))
        return drawn + "░" * (BAR - len(drawn))

    def html(self) -> str:
        """Return the cell as HTML."""
        tip = _title(self.tip)
        if not self.bar:
            return f"<td{tip}>{escape(self.text)}</td>"
        parts, done = "", 0.0
        for colour, end in zip(self.bar, self._ends(), strict=True):
            width, done = 100 * (end - done), end
            parts += (
                f"<span style='display:block;height:100%;width:{width:.3g}%;"
                f"background:{colour}'></span>"
            )
        return (
            f"<td>{escape(self.text)}<span class='dgpu-bar'{tip} style='display:flex;height:5px;"
            f"min-width:{5 if self.text else 15}em;background:{GREY}44;margin-top:2px'>{parts}"
            "</span></td>"
        )

    def _ends(self) -> list[float]:
        """Return where each part ends, within the bar."""
        ends = [0.0]
        for share in self.bar.values():
            ends.append(min(1.0, ends[-1] + max(0.0, share)))
        return ends[1:]


@dataclass(frozen=True)
class Rows:
    """A table: its title, headings and rows, and the columns of its text.

    The first ``texts`` columns are text, which wraps; the others are numbers. If ``total``, a line
    separates the last row from the others. A ``dense`` table has less space between columns. In
    HTML headings have ``tips``, and tables of one class ``name`` have as many columns of text.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    width: int = WIDTH
    texts: int = 1
    total: bool = False
    dense: bool = False
    tips: Mapping[str, str] = field(default_factory=dict)
    name: str = "dgpu-table"

    def text(self) -> str:
        """Return the table as text."""
        form: dict[str, Any] = {"padding": (0, 0, 0, 1), "pad_edge": False} if self.dense else {}
        table = Table(box=SIMPLE_HEAD, **form)
        for i, heading in enumerate(self.headings):
            is_text = i < self.texts
            table.add_column(
                heading, justify="left" if is_text else "right", no_wrap=self.dense and not is_text
            )
        for i, row in enumerate(self.rows):
            if self.total and i == len(self.rows) - 1:
                table.add_section()
            table.add_row(*(Text(str(cell)) for cell in row))
        console = Console(width=self.width, color_system=None, force_jupyter=False)
        with console.capture() as capture:
            console.print(table, markup=False)
        lines = [line.rstrip() for line in capture.get().rstrip().splitlines()]
        title = [part for line in self.title.splitlines() for part in wrap(line, self.width)]
        return "\n".join([*title, *lines]).lstrip("\n")

    def html(self) -> str:
        """Return the table as HTML."""
        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        heads = "".join(
            f"<th{_title(self.tips.get(heading, ''))}>{escape(heading)}</th>"
            for heading in self.headings
        )
        head = f"<thead><tr>{heads}</tr></thead>" if heads else ""
        cells = ((each if isinstance(each, Cell) else Cell(each) for each in r) for r in self.rows)
        body = "".join(f"<tr>{''.join(map(Cell.html, row))}</tr>" for row in cells)
        texts = f"td:nth-child(-n+{self.texts})"
        return (
            f"<table class='{self.name}'>{caption}{head}<tbody>{body}</tbody></table>"
            f"<style>.{self.name} td{{text-align:right}} "
            f".{self.name} {texts}{{text-align:left;white-space:pre-wrap}}</style>"
        )


class Shown(ABC):
    """Prints as a table, and displays as one in a notebook."""

    @abstractmethod
    def _rows(self) -> Rows:
        """Return the table."""

    def __str__(self) -> str:
        """Return the table as text."""
        return self._rows().text()

    def __repr__(self) -> str:
        """Return the text, for a prompt shows this; dataclasses have another one by default."""
        return str(self)

    def _repr_html_(self) -> str:
        return self._rows().html()


def _title(tip: str) -> str:
    """Return the attribute of HTML that shows a tip, if there is one."""
    return f" title='{escape(tip, quote=True)}'" if tip else ""


def quantity(value: float | None, unit: str) -> str:
    """Return a number with three digits, a prefix and its unit: ``"28.1 Gflop/s"``.

    It is empty if the value is not known.
    """
    if value is None:
        return ""
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
