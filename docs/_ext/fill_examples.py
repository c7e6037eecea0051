"""Write the outputs of the `>>>` examples into the pages: run it after a change of `explain`."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
from pathlib import Path
from typing import Any

import dask_dgpu as dgpu

DIFFERS = (
    (r"\b[\d.]+(e[+-]\d+)? [num]?s\b", "T s"),
    (r"─+", "─"),
)
"""What depends on the machine: predicted seconds, and the width of their column."""

BLOCK = re.compile(r"^```pycon\n(.*?)^```", re.M | re.S)


def filled(text: str, name: str) -> str:
    """Return a page with the outputs of its examples, which share their names."""
    names: dict[str, Any] = {}

    def fill(block: re.Match[str]) -> str:
        lines = []
        for example in doctest.DocTestParser().get_examples(block[1]):
            first, *more = example.source.rstrip("\n").split("\n")
            lines += [f">>> {first}", *(f"... {line}".rstrip() for line in more)]
            old, new = example.want.splitlines(), printed(example.source, name, names)
            lines += old if plain("\n".join(old)) == plain("\n".join(new)) else new
        return "\n".join(["```pycon", *lines, "```"])

    return BLOCK.sub(fill, text)


def plain(text: str) -> str:
    """Return an output without what depends on the machine."""
    for pattern, same in DIFFERS:
        text = re.sub(pattern, same, text)
    return text


def printed(source: str, name: str, names: dict[str, Any]) -> list[str]:
    """Return what an example prints, an error as doctest expects it."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            exec(compile(source, name, "single"), names)
        except Exception as error:
            print("Traceback (most recent call last):\n    ...")
            print(f"{type(error).__name__}: {error}")
    return [line or "<BLANKLINE>" for line in output.getvalue().splitlines()]


def main() -> None:
    """Fill the pages given, by default all of the guide."""
    docs = Path(__file__).parents[1]
    pages = [Path(page) for page in sys.argv[1:]] or [
        *docs.glob("getting-started/*.md"),
        *docs.glob("guide/*.md"),
    ]
    for page in pages:
        page.write_text(filled(page.read_text(), page.name))
        dgpu.disable()


if __name__ == "__main__":
    main()
