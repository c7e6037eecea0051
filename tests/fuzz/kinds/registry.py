"""The kinds of operations, and how likely each is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tests.fuzz.draw import Draw
from tests.fuzz.values import Step

Kind: TypeAlias = Callable[[Draw], Step]

KINDS: dict[str, tuple[Kind, float]] = {}


def kind(weight: float = 1.0) -> Callable[[Kind], Kind]:
    """Register a function that draws a step of one kind."""

    def register(function: Kind) -> Kind:
        KINDS[function.__name__] = function, weight
        return function

    return register
