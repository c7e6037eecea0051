"""Reductions from the parts of an array: a state of each part, merged in pairs.

States of sums are sums, so that merging in pairs has the error of NumPy's pairwise summation.
Variances are merged by Chan's formulas ([1]_), from the parts' own means: there is no difference of
large sums of squares.

References
----------
.. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for
   computing sample variances", COMPSTAT (1982).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from graph_opt.model.expression import Reduce

Array = Any
State = tuple[Any, ...]


class Part(NamedTuple):
    """A part of an array: its elements, its first position, and the shape of the array.

    ``sums`` are known sums of the part, by axes and dtype: reductions of one part share them.
    """

    array: Array
    starts: tuple[int, ...]
    whole: tuple[int, ...]
    sums: dict[Any, Array]

    def total(self, axes: tuple[int, ...], dtype: Any) -> Array:
        """Return the sum along axes, added once."""
        key = axes, dtype
        if key not in self.sums:
            self.sums[key] = np.add.reduce(self.array, axis=axes, dtype=dtype, keepdims=True)
        return self.sums[key]


class Reduction(NamedTuple):
    """The state of a part, the state of two parts together, and the value of a state.

    All arrays keep the reduced axes, with length 1.
    """

    begin: Callable[[Reduce, Part], State]
    merge: Callable[[State, State], State]
    finish: Callable[[Reduce, State], Array]


def _by_numpy(node: Reduce, part: Part) -> State:
    reduction = getattr(np, node.function)
    return (reduction(part.array, axis=node.axes, keepdims=True, **dict(node.options)),)


def _only(node: Reduce, state: State) -> Array:
    return state[0]


def _merged_by(ufunc: np.ufunc) -> Reduction:
    """Return a reduction whose states are what NumPy gives for the parts."""
    return Reduction(_by_numpy, lambda one, two: (ufunc(one[0], two[0]),), _only)


def _ignoring_nan(ufunc: np.ufunc) -> Reduction:
    """Return ``nanmin`` or ``nanmax``: NaN only if all are NaN, and then a warning."""

    def begin(node: Reduce, part: Part) -> State:
        return (ufunc.reduce(part.array, axis=node.axes, keepdims=True),)

    def finish(node: Reduce, state: State) -> Array:
        if np.isnan(state[0]).any():
            warnings.warn("All-NaN axis encountered", RuntimeWarning, stacklevel=2)
        return state[0]

    return Reduction(begin, lambda one, two: (ufunc(one[0], two[0]),), finish)


def _moment_dtype(node: Reduce, array: Array) -> Any:
    """Return the dtype in which NumPy adds for ``mean``, ``var`` and ``std``; None is its own."""
    given = dict(node.options).get("dtype")
    if given is not None or (array.dtype.kind in "fc" and array.dtype.itemsize > 2):
        return given
    return np.dtype("float32" if array.dtype.kind == "f" else "float64")


def _result_dtype(node: Reduce, array: Array) -> Any:
    """Return float16 if the result is rounded to it, else None."""
    half = array.dtype == np.float16 and dict(node.options).get("dtype") is None
    return array.dtype if half else None


def _count(node: Reduce, array: Array) -> int:
    return math.prod(array.shape[axis] for axis in node.axes)


def _begin_mean(node: Reduce, part: Part) -> State:
    dtype = _moment_dtype(node, part.array)
    total = part.total(node.axes, dtype)
    return total, _count(node, part.array), _result_dtype(node, part.array)


def _merge_means(one: State, two: State) -> State:
    return one[0] + two[0], one[1] + two[1], one[2]


def _finish_mean(node: Reduce, state: State) -> Array:
    total, count, dtype = state
    mean = np.true_divide(total, count).astype(total.dtype, copy=False)
    return mean if dtype is None else mean.astype(dtype)


def _begin_var(node: Reduce, part: Part) -> State:
    array = part.array
    dtype = _moment_dtype(node, array)
    total = part.total(node.axes, dtype)
    count = _count(node, array)
    mean = np.true_divide(total, count)
    change = np.subtract(array, mean)
    if change.dtype.kind == "c":
        squares = np.square(change.real)
        squares += np.square(change.imag)
    else:
        squares = np.square(change, out=change)
    real = None if dtype is None else np.empty(0, dtype).real.dtype
    moment = np.add.reduce(squares, axis=node.axes, dtype=real, keepdims=True)
    return mean, moment, count, _result_dtype(node, array)


def _merge_vars(one: State, two: State) -> State:
    count = one[2] + two[2]
    with np.errstate(all="ignore"):  # of infinities, which the parts have reported
        change = two[0] - one[0]
        mean = one[0] + change * (two[2] / count)
        between = change.real**2 + change.imag**2 if change.dtype.kind == "c" else change**2
        moment = one[1] + two[1] + between * (one[2] * (two[2] / count))
    return mean, moment, count, one[3]


def _finish_var(node: Reduce, state: State) -> Array:
    _, moment, count, dtype = state
    variance = np.true_divide(moment, count - dict(node.options).get("ddof", 0))
    variance = variance.astype(moment.dtype, copy=False)
    if node.function == "std":
        variance = np.sqrt(variance)
    return variance if dtype is None else variance.astype(dtype)


def _begin_place(node: Reduce, part: Part) -> State:
    """Return extreme values and their positions, in row-major order of the reduced axes."""
    array, search = part.array, getattr(np, node.function)
    if len(node.axes) == 1:
        (axis,) = node.axes
        at = search(array, axis=axis, keepdims=True)
        return np.take_along_axis(array, at, axis), at + part.starts[axis]
    place = np.unravel_index(search(array), array.shape)
    moved = tuple(at + start for at, start in zip(place, part.starts, strict=True))
    shape = (1,) * array.ndim
    flat = np.ravel_multi_index(moved, part.whole)
    return array[place].reshape(shape), np.asarray(flat).reshape(shape)


def _first_by(better: np.ufunc) -> Reduction:
    """Return ``argmin`` or ``argmax``: the first NaN, or else the first best value."""

    def merge(one: State, two: State) -> State:
        (value, at), (other, other_at) = one, two
        earlier = other_at < at
        with np.errstate(invalid="ignore"):
            chosen = better(other, value) | ((other == value) & earlier)
            missing, other_missing = value != value, other != other
        chosen = np.where(other_missing, ~missing | earlier, chosen & ~missing)
        return np.where(chosen, other, value), np.where(chosen, other_at, at)

    return Reduction(_begin_place, merge, lambda node, state: state[1])


_SUM, _PRODUCT = _merged_by(np.add), _merged_by(np.multiply)
_MEAN = Reduction(_begin_mean, _merge_means, _finish_mean)
_VAR = Reduction(_begin_var, _merge_vars, _finish_var)

PARTIAL: dict[str, Reduction] = {
    "sum": _SUM,
    "nansum": _SUM,
    "count_nonzero": _SUM,
    "prod": _PRODUCT,
    "nanprod": _PRODUCT,
    "min": _merged_by(np.minimum),
    "max": _merged_by(np.maximum),
    "any": _merged_by(np.logical_or),
    "all": _merged_by(np.logical_and),
    "nanmin": _ignoring_nan(np.fmin),
    "nanmax": _ignoring_nan(np.fmax),
    "mean": _MEAN,
    "var": _VAR,
    "std": _VAR,
    "argmin": _first_by(np.less),
    "argmax": _first_by(np.greater),
}
"""By the names of ``REDUCTIONS``."""


def divisible(node: Reduce, shape: tuple[int, ...]) -> bool:
    """Whether a reduction of an array of this shape may be composed of its parts."""
    options = dict(node.options)
    if node.function in ("var", "std"):
        count = math.prod(shape[axis] for axis in node.axes)
        return options.get("ddof", 0) < count and options.keys() <= {"dtype", "ddof"}
    if node.function in ("argmin", "argmax"):
        return not options and len(node.axes) in (1, len(shape))
    return node.function in PARTIAL and options.keys() <= {"dtype"}
