"""Fewer lines for what repeats: equal lines, and loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

MOST_ALIKE = 2
"""Most lines with the same text, or iterations of a loop, to show one by one."""

LONGEST_BODY = 8
"""Most steps in the body of a loop that is recognised."""


def folded(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield lines; more than ``MOST_ALIKE`` of the same text in a row become one."""
    for text, alike in groupby(lines, key=lambda line: line[1]):
        names = [name for name, _ in alike]
        if len(names) > MOST_ALIKE:
            yield f"{names[0]} and {len(names) - 1} alike", text
        else:
            yield from ((name, text) for name in names)


def repeated(names: list[str]) -> list[str]:
    """Return names; those of a loop become one."""
    found, at = [], 0
    while at < len(names):
        for length in range(1, LONGEST_BODY + 1):
            body, times = names[at : at + length], 1
            while body == names[at + times * length : at + (times + 1) * length]:
                times += 1
            if times > MOST_ALIKE:
                found.append(f"{times} x ({' -> '.join(body)})")
                at += times * length
                break
        else:
            found.append(names[at])
            at += 1
    return found
