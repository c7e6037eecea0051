"""The names of a program that runs under other names than its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from graph_opt.dask_graph.renaming import TOKEN_LENGTH

TOKEN = re.compile(rf"(?<![0-9a-f])[0-9a-f]{{{TOKEN_LENGTH}}}(?![0-9a-f])")
"""A token in a name."""

DIGITS = 8
"""Digits of a token that messages show."""


class Names:
    """The real names of values, for those in a program: tokens take the place of its own."""

    def __init__(self, own: Sequence[bytes] = (), real: Sequence[bytes] = ()) -> None:
        pairs = zip(own, real, strict=True)
        self._real = {a.decode(): b.decode() for a, b in pairs} if own != real else {}

    def __call__(self, name: str) -> str:
        """Return the real name of a value."""
        if not self._real:
            return name
        return TOKEN.sub(lambda match: self._real.get(match[0], match[0]), name)

    def note(self, note: str) -> str:
        """Return a note on an error; if it ends with the name of a task, with its real name."""
        for own, real in self._real.items():
            if note.endswith(f"-{own[:DIGITS]}"):
                return note[:-DIGITS] + real[:DIGITS]
        return note

    def show(self, error: BaseException) -> None:
        """Change the notes on an error of a task to real names."""
        if self._real and hasattr(error, "__notes__"):
            error.__notes__ = [self.note(note) for note in error.__notes__]


OWN = Names()
"""Names that are real."""
