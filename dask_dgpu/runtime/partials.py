"""Dask's aggregates of means and variances over several blocks, as one kernel on GPUs.

Dask concatenates the parts and reduces them by a dozen functions of CuPy's. Each goes through
memory, along a slow axis, and is compiled at its first use. For blocks of NumPy, and for all that
is unusual, Dask's own functions run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from dask.core import flatten

from dask_dgpu.kernels.fused import evaluate
from graph_opt.dask_graph import internals
from graph_opt.dask_graph.calls import Nodes, Operand
from graph_opt.model.expression import Cast, Expression, Input

Array = Any
Parts = Sequence[Mapping[str, Array]]
Options = Mapping[str, Any]

MOST_PARTS = 64
"""Most parts of one kernel, whose arguments are limited."""

KNOWN = {"axis", "dtype", "keepdims", "sum", "order", "ddof"}
"""Options of Dask's functions; others are a reason to call these."""


def mean_combine(pairs: Any, **options: Any) -> Any:
    """Add the parts of a mean."""
    parts = _parts(pairs, options)
    if parts is None:
        return internals.mean_combine(pairs, **options)
    n, total = evaluate(_mean(len(parts), None), _inputs(parts, ("n", "total")))
    return {"n": n, "total": total}


def mean_agg(pairs: Any, **options: Any) -> Any:
    """Return the mean of all parts."""
    parts = _parts(pairs, options)
    if parts is None:
        return internals.mean_agg(pairs, **options)
    expression = _mean(len(parts), np.dtype(options.get("dtype", "f8")).name)
    (found,) = evaluate(expression, _inputs(parts, ("n", "total")))
    return _without_axes(found, options)


def moment_combine(pairs: Any, **options: Any) -> Any:
    """Add the parts of a variance."""
    parts = _parts(pairs, options)
    if parts is None:
        return internals.moment_combine(pairs, **options)
    n, total, squares = evaluate(_variance(len(parts), None, 0), _moments(parts))
    return {"n": n, "total": total, "M": squares[..., None]}


def moment_agg(pairs: Any, **options: Any) -> Any:
    """Return the variance of all parts."""
    parts = _parts(pairs, options)
    if parts is None:
        return internals.moment_agg(pairs, **options)
    dtype = np.dtype(options.get("dtype", "f8")).name
    (found,) = evaluate(_variance(len(parts), dtype, options.get("ddof", 0)), _moments(parts))
    return _without_axes(found, options)


FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    internals.mean_combine: mean_combine,
    internals.mean_agg: mean_agg,
    internals.moment_combine: moment_combine,
    internals.moment_agg: moment_agg,
}
"""What gangs call instead of these functions of Dask's."""


def _parts(pairs: Any, options: Options) -> Parts | None:
    """Return the parts in order, ``None`` if Dask's function has to take them."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not options.keys() <= KNOWN:
        return None
    parts = list(flatten([pairs]))  # in lists, one level for each reduced axis
    if not 0 < len(parts) <= MOST_PARTS or any(type(each) is not dict for each in parts):
        return None
    shapes = set()
    for each in parts:
        if any(type(array) is not cupy.ndarray for array in each.values()):
            return None
        squares = [each["M"].shape[:-1]] if "M" in each else []
        shapes |= {each["n"].shape, each["total"].shape, *squares}
    real = all(each["total"].dtype.kind != "c" for each in parts)
    usual = options.get("order", 2) == 2 and options.get("sum", np.sum) is np.sum
    shape, *others = shapes
    if others or not (real and usual) or {*_axes(options)} - {*range(len(shape))}:
        return None
    return parts if all(shape[axis] == 1 for axis in _axes(options)) else None


def _axes(options: Options) -> tuple[Any, ...]:
    axes = options.get("axis")
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)


def _inputs(parts: Parts, names: Sequence[str]) -> list[Array]:
    return [each[name] for name in names for each in parts]


def _moments(parts: Parts) -> list[Array]:
    return [*_inputs(parts, ("n", "total")), *(each["M"][..., 0] for each in parts)]


def _without_axes(found: Array, options: Options) -> Array:
    """Return a result without the reduced axes, unless they are kept."""
    if options.get("keepdims"):
        return found
    reduced = {*_axes(options)}
    return found.reshape([n for axis, n in enumerate(found.shape) if axis not in reduced])


class _Sums:
    """The inputs of an expression, and sums of them."""

    def __init__(self) -> None:
        self.nodes = Nodes()

    def inputs(self, first: int, count: int) -> list[Operand]:
        """Add some inputs."""
        return [Operand(self.nodes.add(Input(first + at)), "", 0) for at in range(count)]

    def apply(self, function: str, *arguments: Any) -> Operand:
        """Add the call of a function."""
        return Operand(self.nodes.apply(function, *arguments), "", 0)

    def sum(self, terms: Sequence[Operand]) -> Operand:
        """Add all terms in order."""
        total, *others = terms
        for each in others:
            total = self.apply("add", total, each)
        return total

    def expression(self, *results: Operand, dtype: str | None = None) -> Expression:
        """Return the expression of some results, of a dtype if one is given."""
        numbers = [each.node for each in results]
        if dtype is not None:
            numbers = [self.nodes.add(Cast(each, dtype)) for each in numbers]
        return Expression(tuple(self.nodes.nodes), tuple(numbers))


@lru_cache(maxsize=256)
def _mean(count: int, dtype: str | None) -> Expression:
    """Return the sums of counts and of totals, or the mean if a dtype is given."""
    sums = _Sums()
    n, total = (sums.sum(sums.inputs(at * count, count)) for at in range(2))
    if dtype is None:
        return sums.expression(n, total)
    return sums.expression(sums.apply("divide", total, n), dtype=dtype)


@lru_cache(maxsize=256)
def _variance(count: int, dtype: str | None, ddof: int) -> Expression:
    """Return the sums of counts, totals and squares, or the variance if a dtype is given.

    Squares are around the mean of each part, which differs from that of all.
    """
    sums = _Sums()
    ns, totals, squares = (sums.inputs(at * count, count) for at in range(3))
    n, total = sums.sum(ns), sums.sum(totals)
    mean = sums.apply("divide", total, n)
    shifts = []
    for own, each in zip(ns, totals, strict=True):
        change = sums.apply("subtract", sums.apply("divide", each, own), mean)
        change = sums.apply("where", sums.apply("equal", own, 0), 0.0, change)
        shifts.append(sums.apply("multiply", own, sums.apply("square", change)))
    whole = sums.apply("add", sums.sum(squares), sums.sum(shifts))
    if dtype is None:
        return sums.expression(n, total, whole)
    freedom = sums.apply("subtract", n, ddof)
    freedom = sums.apply("where", sums.apply("less", freedom, 0), np.nan, freedom)
    return sums.expression(sums.apply("divide", whole, freedom), dtype=dtype)
