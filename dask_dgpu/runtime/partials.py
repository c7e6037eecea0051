"""Dask's aggregates of means and variances over several blocks, as one kernel on GPUs.

Dask concatenates the parts and reduces them by a dozen functions of CuPy's. Each goes through
memory, along a slow axis, and is compiled at its first use. For blocks of NumPy, and for all that
is unusual, Dask's own functions run.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np
from dask.core import flatten

from dask_dgpu.kernels.fused import called
from dask_dgpu.kernels.fused.reductions import State, merge_means, merge_moments, quotient
from graph_opt.dask_graph import internals

Array = Any
Options = Mapping[str, Any]

MOST_PARTS = 64
"""Most parts of one kernel, whose arguments are limited."""

KNOWN = {"axis", "dtype", "keepdims", "sum", "order", "ddof"}
"""Options of Dask's functions; others are a reason to call these."""


def _mean(state: State, ddof: float) -> Array:
    count, total = state
    return total / count


def _variance(state: State, ddof: float) -> Array:
    count, _, squares = state
    freedom = count - ddof
    return squares / np.where(freedom < 0, np.nan, freedom)


def _merge_moments(states: Sequence[State]) -> State:
    """Merge counts, sums, and sums of squares around the mean of each part."""
    moments = [(n, quotient(total, n), squares) for n, total, squares in states]
    count, _, squares = merge_moments(moments)
    return count, reduce(operator.add, [total for _, total, _ in states]), squares


@dataclass(frozen=True)
class Aggregate:
    """A function of Dask's that merges parts, each a dictionary of the arrays of a state.

    ``finish`` returns the result for the state of all parts; without it they become one part.
    """

    own: Callable[..., Any]
    merge: Callable[[Sequence[State]], State]
    finish: Callable[[State, float], Array] | None = None
    is_stateless: ClassVar[bool] = True

    def __call__(self, pairs: Any, **options: Any) -> Any:
        """Return what Dask's function returns."""
        states = _states(pairs, options)
        if states is None:
            return self.own(pairs, **options)
        arrays = [array for state in states for array in state]
        dtype, ddof = np.dtype(options.get("dtype", "f8")), options.get("ddof", 0)
        results = called(_merged, *arrays, by=self, parts=len(states), dtype=dtype, ddof=ddof)
        if self.finish is None:
            parts = dict(zip(("n", "total", "M"), results, strict=False))
            return parts | ({"M": parts["M"][..., None]} if "M" in parts else {})
        reduced = () if options.get("keepdims") else _axes(options)
        (value,) = results
        return value.reshape([n for axis, n in enumerate(value.shape) if axis not in reduced])


mean_combine = Aggregate(internals.mean_combine, merge_means)
mean_agg = Aggregate(internals.mean_agg, merge_means, _mean)
moment_combine = Aggregate(internals.moment_combine, _merge_moments)
moment_agg = Aggregate(internals.moment_agg, _merge_moments, _variance)

FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    each.own: each for each in (mean_combine, mean_agg, moment_combine, moment_agg)
}
"""What gangs call instead of these functions of Dask's."""


def _merged(*arrays: Array, by: Aggregate, parts: int, dtype: Any, ddof: float) -> Sequence[Array]:
    """Return the state of all parts, given the arrays of each, or the result."""
    each = len(arrays) // parts
    state = by.merge([arrays[i : i + each] for i in range(0, len(arrays), each)])
    return state if by.finish is None else [by.finish(state, ddof).astype(dtype)]


def _states(pairs: Any, options: Options) -> list[State] | None:
    """Return the states of parts in order, ``None`` if Dask's function has to take them."""
    cupy = sys.modules.get("cupy")
    usual = options.get("order", 2) == 2 and options.get("sum", np.sum) is np.sum
    if cupy is None or not usual or not options.keys() <= KNOWN:
        return None
    parts = list(flatten([pairs]))  # in lists, one level for each reduced axis
    if not 0 < len(parts) <= MOST_PARTS or any(type(part) is not dict for part in parts):
        return None
    if any(type(array) is not cupy.ndarray for part in parts for array in part.values()):
        return None
    states = [
        (part["n"], part["total"], *([part["M"][..., 0]] if "M" in part else ())) for part in parts
    ]
    shape, *others = {array.shape for state in states for array in state}
    lengths = dict(enumerate(shape))
    known = not others and all(lengths.get(axis) == 1 for axis in _axes(options))
    return states if known and all(total.dtype.kind != "c" for _, total, *_ in states) else None


def _axes(options: Options) -> tuple[Any, ...]:
    axes = options.get("axis")
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)
