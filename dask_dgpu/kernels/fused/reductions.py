"""The table of reductions: the state of a part of an array, of several parts, and the result.

The code is for NumPy, CuPy and traces alike. Tiles of a block and Dask's parts of means and
variances use it; ``states`` has the same states in CUDA C++.

Sums are merged in pairs, with the error of NumPy's pairwise summation. Variances are merged by
Chan's formula ([1]_), from the parts' own means: there is no difference of large sums of squares.

References
----------
.. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for
   computing sample variances", COMPSTAT (1982).
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from functools import reduce
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

    def count(self, axes: tuple[int, ...]) -> int:
        """Return the number of elements along axes."""
        return math.prod(self.array.shape[axis] for axis in axes)


def _by_numpy(node: Reduce, part: Part) -> State:
    reduction = getattr(np, node.function)
    return (reduction(part.array, axis=node.axes, keepdims=True, **dict(node.options)),)


def _first(node: Reduce, dtype: np.dtype[Any], state: State) -> Array:
    return state[0]


class Reduction(NamedTuple):
    """The state of a part, the state of several parts, and the value for an array of a dtype.

    All arrays keep the reduced axes, with length 1.
    """

    merge: Callable[[Sequence[State]], State]
    begin: Callable[[Reduce, Part], State] = _by_numpy
    finish: Callable[[Reduce, np.dtype[Any], State], Array] = _first


def _merged_by(ufunc: np.ufunc) -> Callable[[Sequence[State]], State]:
    return lambda states: (reduce(ufunc, [each for (each,) in states]),)


def _ignoring_nan(ufunc: np.ufunc) -> Reduction:
    """Return ``nanmin`` or ``nanmax``: NaN only if all are NaN, and then a warning."""

    def begin(node: Reduce, part: Part) -> State:
        return (ufunc.reduce(part.array, axis=node.axes, keepdims=True),)

    def finish(node: Reduce, dtype: np.dtype[Any], state: State) -> Array:
        if np.isnan(state[0]).any():
            warnings.warn("All-NaN axis encountered", RuntimeWarning, stacklevel=2)
        return state[0]

    return Reduction(_merged_by(ufunc), begin, finish)


def _adds_in(node: Reduce, dtype: np.dtype[Any]) -> Any:
    """Return the dtype in which NumPy adds for ``mean``, ``var`` and ``std``; None is its own."""
    given = dict(node.options).get("dtype")
    if given is not None or (dtype.kind in "fc" and dtype.itemsize > 2):
        return given
    return np.dtype("float32" if dtype.kind == "f" else "float64")


def _as_given(node: Reduce, dtype: np.dtype[Any], value: Array) -> Array:
    """Return a value as float16 if its elements are, unless another dtype is wanted."""
    half = dtype == np.float16 and dict(node.options).get("dtype") is None
    return value.astype(dtype) if half else value


def _begin_mean(node: Reduce, part: Part) -> State:
    return part.count(node.axes), part.total(node.axes, _adds_in(node, part.array.dtype))


def merge_means(states: Sequence[State]) -> State:
    """Merge counts and sums."""
    return tuple(_added(each) for each in zip(*states, strict=True))


def _added(arrays: Sequence[Array]) -> Array:
    return reduce(operator.add, arrays)


def _finish_mean(node: Reduce, dtype: np.dtype[Any], state: State) -> Array:
    count, total = state
    mean = np.true_divide(total, count).astype(total.dtype, copy=False)
    return _as_given(node, dtype, mean)


def _begin_moments(node: Reduce, part: Part) -> State:
    count, total = _begin_mean(node, part)
    mean = np.true_divide(total, count)
    squares = _square(np.subtract(part.array, mean))
    dtype = _adds_in(node, part.array.dtype)
    real = None if dtype is None else np.empty(0, dtype).real.dtype
    return count, mean, np.add.reduce(squares, axis=node.axes, dtype=real, keepdims=True)


def _square(change: Array) -> Array:
    """Return squares of absolute values, if possible in the same memory."""
    if change.dtype.kind != "c":
        return np.square(change, out=change if isinstance(change, np.ndarray) else None)
    squares = np.square(change.real)
    squares += np.square(change.imag)
    return squares


def merge_moments(states: Sequence[State]) -> State:
    """Merge counts, means, and sums of squares around the mean of each part, which may be empty."""
    counts, (first, *others), squares = zip(*states, strict=True)
    with np.errstate(all="ignore"):  # of infinities, which the parts have reported
        count = _added(counts)
        apart = [
            first - first,
            *(other - first for other in others),
        ]  # a large mean costs no digits
        weighted = [n * each for n, each in zip(counts, apart, strict=True)]
        shift = quotient(_added(weighted), count)
        between = [n * _square(each - shift) for n, each in zip(counts, apart, strict=True)]
        return count, first + shift, _added(squares) + _added(between)


def quotient(total: Array, count: Any) -> Array:
    """Return a mean, 0 for a part without elements."""
    return total / (count if isinstance(count, int) else np.maximum(count, 1))


def _finish_moments(node: Reduce, dtype: np.dtype[Any], state: State) -> Array:
    count, _, squares = state
    variance = np.true_divide(squares, count - dict(node.options).get("ddof", 0))
    variance = variance.astype(squares.dtype, copy=False)
    return _as_given(node, dtype, np.sqrt(variance) if node.function == "std" else variance)


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

    return Reduction(lambda s: reduce(merge, s), _begin_place, lambda node, dtype, state: state[1])


_SUM, _PRODUCT = (Reduction(_merged_by(ufunc)) for ufunc in (np.add, np.multiply))
_MEAN = Reduction(merge_means, _begin_mean, _finish_mean)
_MOMENTS = Reduction(merge_moments, _begin_moments, _finish_moments)

REDUCTIONS: dict[str, Reduction] = {
    "sum": _SUM,
    "nansum": _SUM,
    "count_nonzero": _SUM,
    "prod": _PRODUCT,
    "nanprod": _PRODUCT,
    "min": Reduction(_merged_by(np.minimum)),
    "max": Reduction(_merged_by(np.maximum)),
    "any": Reduction(_merged_by(np.logical_or)),
    "all": Reduction(_merged_by(np.logical_and)),
    "nanmin": _ignoring_nan(np.fmin),
    "nanmax": _ignoring_nan(np.fmax),
    "mean": _MEAN,
    "var": _MOMENTS,
    "std": _MOMENTS,
    "argmin": _first_by(np.less),
    "argmax": _first_by(np.greater),
}
"""Of a ``Reduce``, by NumPy's names."""


def divisible(node: Reduce, shape: tuple[int, ...]) -> bool:
    """Whether a reduction of an array of this shape may be composed of its parts."""
    options = dict(node.options)
    if node.function in ("var", "std"):
        count = math.prod(shape[axis] for axis in node.axes)
        return options.get("ddof", 0) < count and options.keys() <= {"dtype", "ddof"}
    if node.function in ("argmin", "argmax"):
        return not options and len(node.axes) in (1, len(shape))
    return node.function in REDUCTIONS and options.keys() <= {"dtype"}
