"""Which operations are accelerated: the examples of the README, tried when the site is built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import dask_dgpu as dgpu
from dask_dgpu.operations import OPERATIONS

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<what>[^|]+) \| (?P<examples>`[^|]+`) \| (?P<who>gang|Dask) \|$", re.M)


@dataclass(frozen=True)
class Example:
    """An expression, and what `explain` says of it.

    Parameters
    ----------
    what : str
        Its row in the README.
    code : str
        The expression.
    promised : bool
        Whether the README says that it runs as a gang.
    gang : bool
        Whether it does.
    operations : tuple of str
        The operations that gangs run, none if it is Dask's own work on blocks.
    reason : str
        What `explain` says in the row of its result.
    """

    what: str
    code: str
    promised: bool
    gang: bool
    operations: tuple[str, ...]
    reason: str


def names() -> dict[str, Any]:
    """Return the names in the examples."""
    x, t = (da.ones((8, 8), chunks=each).persist(scheduler="sync") for each in (4, (4, 8)))
    return {
        "da": da,
        "dgpu": dgpu,
        "x": x,
        "y": x + 1,
        "z": da.ones((4, 8, 8), chunks=4),
        "t": t,
        "images": da.ones((4, 3, 8, 8), chunks=(1, 3, 4, 8)),
        "kernels": da.ones((2, 3, 3, 3)),
    }


def examples() -> list[Example]:
    """Try every example of the README."""
    return list(_tried((ROOT / "README.md").read_text()))


def _tried(readme: str) -> Iterator[Example]:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        known = names()
        for row in ROW.finditer(readme):
            for code in re.findall(r"`([^`]+)`", row["examples"]):
                found = dgpu.explain(eval(code, known))
                operations = tuple(
                    dict.fromkeys(
                        name
                        for piece, _ in found.rewritten
                        for name in OPERATIONS
                        if name == piece.operation
                    )
                )
                reason = found.operations[-1].why
                promised, gang = row["who"] == "gang", bool(found.regions)
                yield Example(row["what"], code, promised, gang, operations, reason)


def calls(found: list[Example]) -> dict[str, list[str]]:
    """Return the calls of users that become each operation.

    An operation that computes at once, like `jacobi`, has no example; it has its function.
    """
    table = {
        name: [example.code for example in found if example.operations[-1:] == (name,)]
        for name in OPERATIONS
    }
    for name, codes in table.items():
        if not codes:
            codes.append(f"dgpu.{getattr(dgpu, name).__name__}(u0, rhs)")
    return table


def tables() -> str:
    """Return both tables as Markdown."""
    found = examples()
    lines = ["| operation | your code |", "|---|---|"]
    for name, codes in calls(found).items():
        lines.append(f"| `{name}` | {', '.join(f'`{code}`' for code in codes)} |")
    lines += ["", "Dask's own work on blocks that meet:", "", "| work | your code |", "|---|---|"]
    work = [each for each in found if each.gang and not each.operations]
    for what in dict.fromkeys(each.what for each in work):
        codes = ", ".join(f"`{each.code}`" for each in work if each.what == what)
        lines.append(f"| {what} | {codes} |")
    lines += ["", "Always left to Dask:", "", "| your code | what `explain` says |", "|---|---|"]
    lines += [f"| `{each.code}` | {each.reason} |" for each in found if not each.gang]
    return "\n".join(lines)


class OperationsDirective(SphinxDirective):
    """Shows both tables."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(ROOT / "README.md"))
        return self.parse_text_to_nodes(tables())


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("operations", OperationsDirective)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
