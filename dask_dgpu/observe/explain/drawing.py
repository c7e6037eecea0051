"""A drawing of operations: what computes each one, its layout, and what is exchanged."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from dask_dgpu.arguments import expected
from dask_dgpu.cost.table import BLUE, GREEN, GREY, quantity
from dask_dgpu.errors import DgpuError
from dask_dgpu.observe.explain.operations import DASK, FUSED, GANG, Operation

COLOURS = {GANG: BLUE, FUSED: GREEN, DASK: GREY}
LIMIT = 60.0
"""Seconds for Graphviz."""


@dataclass(frozen=True)
class Drawing:
    """A drawing as SVG. Displays in a notebook.

    Parameters
    ----------
    source : str
        The graph in Graphviz's language.
    svg : str
        The drawing.
    """

    source: str
    svg: str

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> Drawing:
        """Draw a box for each operation, and a frame around those of a gang, with Graphviz."""
        program = shutil.which("dot")
        if program is None:
            raise DgpuError(
                "expected Graphviz to be installed to draw a program, found no command `dot`: "
                "install your system's package graphviz"
            )
        source = "\n".join(_lines(operations))
        done = subprocess.run(
            [program, "-Tsvg"],
            input=source,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=True,
        )
        return cls(source, done.stdout[done.stdout.index("<svg") :])

    def save(self, path: str | PathLike[str]) -> None:
        """Write the drawing to a file.

        Parameters
        ----------
        path : path-like
            The file, which is overwritten. Its name ends in ``.svg``.

        Raises
        ------
        ValueError
            If the name has another ending.
        """
        svg_path("path", path).write_text(self.svg)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        """Say what it is: the drawing is long."""
        return "drawing of a program; save() writes it to a file"


def svg_path(name: str, value: str | PathLike[str]) -> Path:
    """Return an argument as a path; raise unless it ends in ``.svg``."""
    path = Path(value)
    if path.suffix.lower() != ".svg":
        expected(name, "a name that ends in .svg", str(value))
    return path


def _lines(operations: Sequence[Operation]) -> Iterable[str]:
    numbers = {each.name: at for at, each in enumerate(operations)}
    yield "digraph {"
    yield 'bgcolor="transparent"'
    # colours that are visible on light and on dark pages
    yield f'node [shape=box style="rounded" fontname="sans-serif" fontsize=11 fontcolor="{GREY}"]'
    yield f'edge [fontname="sans-serif" fontsize=10 fontcolor="{GREY}" color="{GREY}"]'
    gangs = sorted({each.gang for each in operations if each.gang is not None})
    for gang in gangs:
        yield f'subgraph cluster_{gang} {{ label="gang {gang + 1}" color="{BLUE}"'
        yield f'fontname="sans-serif" fontsize=11 fontcolor="{BLUE}"'
        yield from (_node(numbers[each.name], each) for each in operations if each.gang == gang)
        yield "}"
    yield from (_node(numbers[each.name], each) for each in operations if each.gang is None)
    for each in operations:
        moved = f' [label="{quantity(each.moved_bytes, "B")}"]' if each.moved_bytes else ""
        for name in each.inputs:
            if name in numbers:
                yield f"{numbers[name]} -> {numbers[each.name]}{moved}"
    yield "}"


def _node(number: int, each: Operation) -> str:
    text = "\\n".join(_quoted(part) for part in (each.operation, each.summary, each.why) if part)
    return f'{number} [label="{text}" color="{COLOURS[each.by]}"]'


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
