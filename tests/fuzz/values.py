"""What trees are made of: values, steps, and how far two ways to compute a value may differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np

NAME = re.compile(r"\bv\d+\b")

ROUNDINGS = 8
"""Roundings of a result for each number that goes into it, at most."""


class Unfit(Exception):
    """No value of the tree is fit for an operation, or its result is not fit to go on with."""


@dataclass(frozen=True)
class Value:
    """A value of a tree.

    Parameters
    ----------
    name : str
        The variable in the source.
    array : numpy.ndarray
        What NumPy computes.
    lazy : dask.array.Array
        What plain Dask has built; it may not compute.
    error : float
        The largest difference of an element that rounding explains, between any two ways.
    """

    name: str
    array: Any
    lazy: da.Array
    error: float

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.array.dtype)

    @property
    def kind(self) -> str:
        return self.dtype.kind

    @property
    def rechunked(self) -> str:
        """The source of the value in the chunks of plain Dask.

        Those of a transform differ, and some of Dask's operations go wrong, or raise, where there
        are empty chunks.
        """
        return f"{self.name}.rechunk({self.lazy.chunks})" if self.known else self.name

    @property
    def exact(self) -> bool:
        return self.error == 0

    @property
    def known(self) -> bool:
        return not any(np.isnan(n) for sizes in self.lazy.chunks for n in sizes)

    @cached_property
    def finite(self) -> bool:
        return self.kind in "biu" or bool(np.isfinite(self.array).all())

    @cached_property
    def largest(self) -> float:
        """The largest absolute value that is finite."""
        return largest(self.array)

    @cached_property
    def integral(self) -> bool:
        return integral(self.array)


def largest(array: Any) -> float:
    values = abs(np.asarray(array).astype("c16" if np.iscomplexobj(array) else "f8"))
    values = values[np.isfinite(values)]
    return float(values.max()) if values.size else 0.0


def integral(array: Any) -> bool:
    """Whether all finite numbers are integers, so that sums of a few are exact."""
    array = np.asarray(array)
    parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    with np.errstate(all="ignore"):
        return array.dtype.kind in "biu" or all(
            bool((np.floor(part) == part)[np.isfinite(part)].all()) for part in parts
        )


def eps(*dtypes: np.dtype[Any]) -> float:
    """Return the largest unit of rounding among the dtypes that round."""
    return max((float(np.finfo(each).eps) for each in dtypes if each.kind in "fc"), default=0.0)


@dataclass(frozen=True)
class Step:
    """How a value is made of others, as expressions.

    Parameters
    ----------
    numpy, plain, ours : str
        The expression for NumPy, for plain Dask, and for Dask with the plugin.
    carried : float
        What the errors of the operands can make of the result's.
    work : float
        The largest sum of absolute values that goes into one element. With zero, all ways
        round alike: elements are moved, or computed by one operation that IEEE 754 defines.
    adds : bool
        Whether the work is sums and products alone, which are exact for small integers.
    """

    numpy: str
    plain: str
    ours: str
    carried: float = 0.0
    work: float = 0.0
    adds: bool = False

    @property
    def operands(self) -> list[str]:
        return NAME.findall(self.plain)

    def error(self, operands: Sequence[Value], result: Any) -> float:
        """Return how far two ways to compute the result may differ."""
        unit = eps(result.dtype, *(each.dtype for each in operands))
        if result.dtype.kind in "iu":
            if self.work > np.iinfo(result.dtype).max:
                raise Unfit("integers may overflow")
            return 0.0
        integers = all(each.integral and each.exact for each in operands) and integral(result)
        if self.adds and integers and self.work < 0.5 / (unit or 1):
            return self.carried
        return self.carried + ROUNDINGS * unit * self.work


def both(text: str, carried: float = 0.0, work: float = 0.0, adds: bool = False) -> Step:
    """Return a step whose expression is that of NumPy but for the module, ``xp``."""
    numpy, dask = (re.sub(r"\bxp\.", f"{module}.", text) for module in ("np", "da"))
    return Step(numpy, dask, dask, carried, work, adds)


def dask_only(
    numpy: str, dask: str, carried: float = 0.0, work: float = 0.0, adds: bool = False
) -> Step:
    """Return a step that is written in one way for Dask and another for NumPy."""
    return Step(numpy, dask, dask, carried, work, adds)


def in_plain_chunks(a: Value, text: str, carried: float = 0.0, work: float = 0.0) -> Step:
    """Return a step of one operand, ``{a}``, whose result depends on chunks in plain Dask."""
    numpy = text.replace("xp.", "np.").format(a=a.name)
    return dask_only(numpy, text.replace("xp.", "da.").format(a=a.rechunked), carried, work)


Fits = Callable[[Value], bool]
