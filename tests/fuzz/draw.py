"""Random choices, all from one generator, so that a seed gives one tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from tests.fuzz.values import Fits, Unfit, Value

T = TypeVar("T")

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17)
DTYPES = ("f8",) * 8 + ("f4",) * 3 + ("c16",) * 3 + ("c8", "i8", "i8", "i4", "i2", "u1", "?", "f2")


class Draw:
    """The choices of one tree.

    Parameters
    ----------
    rng : numpy.random.Generator
        What all is drawn from.
    values : list of Value
        What the tree has so far.
    """

    def __init__(self, rng: np.random.Generator, values: list[Value]) -> None:
        self.rng = rng
        self.values = values
        self.sizes = [self.choice(SIZES) for _ in range(3)]
        if self.chance(0.06):
            self.sizes[0] = 0

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """An integer between these two, both possible."""
        return int(self.rng.integers(low, high + 1))

    def choice(self, of: Sequence[T]) -> T:
        if not of:
            raise Unfit("there is nothing to choose from")
        return of[self.integer(0, len(of) - 1)]

    def value(self, *fits: Fits) -> Value:
        """A value that fits; later ones are more likely."""
        fit = [each for each in self.values if all(condition(each) for condition in fits)]
        if not fit:
            raise Unfit("no value fits")
        weights = np.arange(1, len(fit) + 1) ** 3.0
        return fit[int(self.rng.choice(len(fit), p=weights / weights.sum()))]

    def shape(self) -> tuple[int, ...]:
        axes = self.choice((1, 2, 2, 2, 2, 3, 3))
        return tuple(self.choice(self.sizes) for _ in range(axes))

    def axis(self, value: Value) -> int:
        return self.choice(range(value.ndim))

    def some_axes(self, value: Value) -> tuple[int, ...]:
        """One axis or more, in any order, some counted from the end."""
        axes = self.rng.permutation(value.ndim)[: self.integer(1, max(1, value.ndim))]
        return tuple(int(axis) - value.ndim * self.chance(0.3) for axis in axes)

    def reduction_axis(self, value: Value) -> int | tuple[int, ...] | None:
        if not value.ndim or self.chance(0.25):
            return None
        return self.axis(value) if self.chance(0.6) else self.some_axes(value)

    def chunks(self, shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Chunks of one style: whole, even, uneven, or with empty ones among them."""
        style = self.choice(("whole", "even", "even", "uneven", "uneven", "uneven", "empty"))
        return tuple(self._cut(n, style) for n in shape)

    def _cut(self, n: int, style: str) -> tuple[int, ...]:
        if style == "whole" or n < 2 or self.chance(0.1):
            sizes = [n]
        elif style == "even":
            size = self.integer(1, n) if n < 5 else self.integer(max(1, n // 5), n)
            sizes = [size] * (n // size) + [n % size] * (n % size > 0)
        else:
            cuts = self.rng.choice(n - 1, self.integer(1, min(4, n - 1)), replace=False) + 1
            sizes = np.diff([0, *sorted(int(cut) for cut in cuts), n]).tolist()
        if style == "empty" and self.chance(0.4):
            sizes.insert(self.integer(0, len(sizes)), 0)
        return tuple(int(size) for size in sizes)

    def special(self, dtype: str) -> tuple[float, ...]:
        if dtype[0] not in "fc" or self.chance(0.75):
            return ()
        nan, inf = float("nan"), float("inf")
        return self.choice(((nan,), (nan,), (inf,), (-inf, inf), (nan, inf)))

    def input(self) -> tuple[str, tuple[tuple[int, ...], ...]]:
        """The source of an array, and chunks for it."""
        shape, dtype = self.shape(), self.choice(DTYPES)
        special = self.special(dtype)
        seed = self.integer(0, 10**6)
        values = f", {list(special)}" if special else ""
        return f"numbers({seed}, {shape}, {dtype!r}{values})", self.chunks(shape)


def fitting_last(a: Value, b: Value) -> bool:
    """Whether two shapes broadcast."""
    try:
        shape: Any = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return False
    return len(shape) < 5
