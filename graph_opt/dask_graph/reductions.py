"""Dask's reductions of blocks, as nodes of expressions.

Dask reduces in a tree: a chunk function for each block, then aggregates of several results. If an
axis has one block, chunk function and aggregate together are one reduction of NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from graph_opt.dask_graph.internals import (
    Compose,
    _concatenate2,
    _nanargmax,
    _nanargmin,
    _nanmax_skip,
    _nanmin_skip,
    arg_agg,
    arg_chunk,
    argmax,
    argmin,
    chunk_max,
    chunk_min,
    mean_agg,
    mean_chunk,
    moment_agg,
    moment_chunk,
    nannumel,
)
from graph_opt.dask_graph.nodes import Nodes, Operand
from graph_opt.dask_graph.parse import DTYPES
from graph_opt.model.expression import Reduce
from graph_opt.model.layout import ArrayNode

SUMS: Mapping[Any, str] = {
    np.sum: "sum",
    np.prod: "prod",
    np.nansum: "nansum",
    np.nanprod: "nanprod",
    np.any: "any",
    np.all: "all",
    chunk_min: "min",
    chunk_max: "max",
    _nanmin_skip: "nanmin",
    _nanmax_skip: "nanmax",
}
"""Chunk functions that return an array."""

AGGREGATES: Mapping[Any, tuple[str, ...]] = {
    np.sum: ("sum", "nansum"),
    np.prod: ("prod", "nanprod"),
    np.any: ("any",),
    np.all: ("all",),
    np.min: ("min",),
    np.max: ("max",),
    _nanmin_skip: ("nanmin",),
    _nanmax_skip: ("nanmax",),
    mean_agg: ("mean",),
    moment_agg: ("var",),
    arg_agg: ("argmin", "argmax"),
}
"""The reductions that an aggregate completes."""

ARGUMENTS: Mapping[Any, str] = {
    argmin: "argmin",
    argmax: "argmax",
    _nanargmin: "nanargmin",
    _nanargmax: "nanargmax",
}

Options = tuple[tuple[str, Any], ...]

EXTREMES: Mapping[str, tuple[str, float]] = {
    "argmin": ("min", np.inf),
    "argmax": ("max", -np.inf),
    "nanargmin": ("nanmin", np.inf),
    "nanargmax": ("nanmax", -np.inf),
}
"""The values that these look for, and what stands for NaN in the forms that ignore it."""


@dataclass(frozen=True)
class Chunked:
    """What a chunk function computes of one block: a part of this reduction of NumPy."""

    function: str
    axes: tuple[int, ...]
    options: Options = ()
    order: int = 2  # of a moment

    @property
    def dtype(self) -> Any:
        """The dtype in which it adds, ``None`` for that of NumPy."""
        return dict(self.options).get("dtype")

    def parts(self, nodes: Nodes, array: Operand) -> tuple[int, ...]:
        """Add the arrays of which Dask's partial result is made; mostly this is one array."""
        if self.function == "mean":
            return (self._add(nodes, "sum", array),)
        if self.function == "nanmean":
            return self._add(nodes, "nansum", array), self._numbers(nodes, array, self.options)
        if self.function == "var":
            return self._add(nodes, "sum", array), self._add(nodes, "var", array)
        if self.function == "nanvar":
            return self._moment_ignoring_nan(nodes, array)
        if self.function == "moment":
            return self._moments(nodes, array)
        if self.function in EXTREMES:
            return self._extremes(nodes, array)
        return (self._add(nodes, self.function, array),)

    def whole(self, nodes: Nodes, array: Operand, aggregate: Aggregate) -> int:
        """Add the whole reduction of one block."""
        options = dict(self.options) | ({"ddof": aggregate.ddof} if aggregate.ddof else {})
        made = tuple(sorted(options.items()))
        return nodes.add(Reduce(self.function, array.node, self.axes, aggregate.keepdims, made))

    def _add(self, nodes: Nodes, function: str, array: Operand) -> int:
        return nodes.add(Reduce(function, array.node, self.axes, True, self.options))

    def _numbers(self, nodes: Nodes, array: Operand, options: Options = ()) -> int:
        """Add the count of elements that are not NaN."""
        numbers = nodes.apply("invert", array.like(nodes.apply("isnan", array)))
        return nodes.add(Reduce("sum", numbers, self.axes, True, options))

    def _extremes(self, nodes: Nodes, array: Operand) -> tuple[int, ...]:
        """Add the extreme values and their places."""
        extreme, missing = EXTREMES[self.function]
        searched = array
        if self.function.startswith("nan"):
            found = array.like(nodes.apply("isnan", array))
            searched = array.like(nodes.apply("where", found, missing, array))
        place = self._add(nodes, self.function.removeprefix("nan"), searched)
        return self._add(nodes, extreme, array), place

    def _moment_ignoring_nan(self, nodes: Nodes, array: Operand) -> tuple[int, ...]:
        """Add the sum, the count and the squares around the mean."""
        total, count = self._add(nodes, "nansum", array), self._numbers(nodes, array)
        least = array.like(nodes.apply("maximum", array.like(count), 1))  # there may be only NaN
        mean = nodes.apply("divide", array.like(total), least)
        change = nodes.apply("subtract", array, array.like(mean))
        if np.dtype(array.dtype).kind == "c":
            change = nodes.apply("absolute", array.like(change))
        squares = nodes.apply("square", array.like(change))
        return total, count, self._add(nodes, "nansum", array.like(squares))

    def _moments(self, nodes: Nodes, array: Operand) -> tuple[int, ...]:
        """Add the sum, and the sums of all powers from 2 around the mean."""
        exact = (("dtype", "float64"),)
        mean = nodes.add(Reduce("mean", array.node, self.axes, True, exact))
        change = array.like(nodes.apply("subtract", array, array.like(mean)))
        powers = [nodes.apply("square", change)]
        powers += [nodes.apply("power", change, each) for each in range(3, self.order + 1)]
        sums = (self._add(nodes, "sum", array.like(each)) for each in powers)
        return self._add(nodes, "sum", array), *sums


def bound(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a function and the arguments that are bound to it."""
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = {}
    while isinstance(function, partial):
        arguments = (*function.args, *arguments)
        options = {**function.keywords, **options}
        function = function.func
    return function, arguments, options


def read_chunk(function: Any, options: Mapping[str, Any], array: Operand) -> Chunked | None:
    """Read a chunk function of one array; it keeps the reduced axes."""
    function, arguments, given = bound(function)
    given |= options
    try:
        name = SUMS.get(function)
    except TypeError:
        return None
    axes, keepdims = _axes(given.pop("axis", None), array.ndim), given.pop("keepdims", None)
    if arguments or axes is None or keepdims is not True:
        return None
    order = 2
    if function is mean_chunk:
        sums = given.pop("sum", np.sum), given.pop("numel", None)
        name = {(np.sum, None): "mean", (np.nansum, nannumel): "nanmean"}.get(sums)
    elif function is moment_chunk:
        implicit, order = given.pop("implicit_complex_dtype", False), given.pop("order", 2)
        sums = given.pop("sum", np.sum), given.pop("numel", None)
        name = {(np.sum, None): "var", (np.nansum, nannumel): "nanvar"}.get(sums)
        if order > 2:
            name = "moment" if name == "var" else None
        if np.dtype(array.dtype).kind == "c":
            if not implicit or order > 2:
                return None
            given["dtype"] = None  # Dask's is that of the variance, which is real
    dtype = given.pop("dtype", "float64" if function in (mean_chunk, moment_chunk) else None)
    if name is None or given or (dtype is not None and np.dtype(dtype).name not in DTYPES):
        return None
    known = () if dtype is None else (("dtype", np.dtype(dtype).name),)
    return Chunked(name, axes, known, order)


def read_arg_chunk(function: Any, axis: Any, array: ArrayNode) -> Chunked | None:
    """Read the chunk function of ``argmin``, ``argmax`` or their forms that ignore NaN."""
    function, arguments, options = bound(function)
    axes, kind = _axes(axis, array.ndim), np.dtype(array.dtype).kind
    if function is not arg_chunk or len(arguments) != 2 or options or axes is None:
        return None
    name = _argument(arguments[1])
    if name is None or len(axes) not in (1, array.ndim) or (kind == "c" and "nan" in name):
        return None
    return Chunked(name if kind == "f" else name.removeprefix("nan"), axes)


def _argument(function: Any) -> str | None:
    """Return ``argmin`` or the like, also for a copy of Dask's function.

    Dask's ``argmin`` is a closure, so it is pickled by value, and the scheduler gets a copy.
    """
    for known, name in ARGUMENTS.items():
        if function is known or (
            isinstance(function, FunctionType)
            and getattr(known, "__wrapped__", None) is getattr(function, "__wrapped__", known)
            and known.__code__ == function.__code__
        ):
            return name
    return None


@dataclass(frozen=True)
class Aggregate:
    """The aggregate of one result of a chunk function."""

    keepdims: bool
    ddof: int = 0


def read_aggregate(function: Any, chunked: Chunked) -> Aggregate | None:
    """Read an aggregate of the results of a chunk function, ``None`` if both do not fit."""
    if isinstance(function, Compose):
        first, _, joined = bound(function.first)
        axes = _axes(joined.get("axes"), None)
        if first is not _concatenate2 or axes != chunked.axes or len(function.funcs) != 1:
            return None
        function = function.funcs[0]
    function, arguments, given = bound(function)
    try:
        completed = AGGREGATES.get(function, ())
    except TypeError:
        return None
    axes, keepdims = _axes(given.pop("axis", None), None), given.pop("keepdims", None)
    if chunked.function not in completed or axes != chunked.axes or type(keepdims) is not bool:
        return None
    dtype, ddof = given.pop("dtype", None), given.pop("ddof", 0)
    if dtype is not None and chunked.dtype not in (None, np.dtype(dtype).name):
        return None
    if function is arg_agg:
        arguments = tuple(each for each in arguments if _argument(each) != chunked.function)
    # NumPy's variance of fewer elements than ddof is not Dask's
    return None if arguments or given or ddof not in (0, 1) else Aggregate(keepdims, int(ddof))


def _axes(axis: Any, ndim: int | None) -> tuple[int, ...] | None:
    """Return axes in order; they count from the first unless ``ndim`` is known."""
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    if not axes or not all(isinstance(each, int | np.integer) for each in axes):
        return None
    if ndim is None:
        return tuple(sorted(map(int, axes)))
    return tuple(sorted(int(each) % ndim for each in axes))
