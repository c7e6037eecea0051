"""Nodes after their arguments."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import TypeVar

Key = TypeVar("Key")


def after_arguments(
    root: Key, arguments: Callable[[Key], Sequence[Key]], known: Container[Key]
) -> Iterator[tuple[Key, Sequence[Key]]]:
    """Yield what ``root`` depends on and is not known, with its arguments, and ``root`` last.

    The caller adds each to ``known`` before it asks for the next. There is no recursion, because a
    chain of a few hundred steps would reach Python's limit.
    """
    if root in known:
        return
    found = arguments(root)
    waiting = [(root, found, iter(found))]
    while waiting:
        key, found, left = waiting[-1]
        for each in left:
            if each not in known:
                below = arguments(each)
                waiting.append((each, below, iter(below)))
                break
        else:
            waiting.pop()
            yield key, found
