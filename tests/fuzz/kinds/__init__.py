"""Kinds of operations; importing this registers all of them."""

from tests.fuzz.kinds import (
    blocks,
    elementwise,
    factors,
    movement,
    products,
    reductions,
    transforms,
)
from tests.fuzz.kinds.registry import KINDS

__all__ = [
    "KINDS",
    "blocks",
    "elementwise",
    "factors",
    "movement",
    "products",
    "reductions",
    "transforms",
]
