"""Dask's reductions of blocks, as nodes of expressions.

Dask reduces in a tree: a chunk function for each block, then aggregates of several results. If an
axis has one block, chunk function and aggregate together are one reduction of NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from graph_opt.dask_graph.elementwise import Nodes, Operand
from graph_opt.dask_graph.internals import (
    Compose,
    _concatenate2,
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
from graph_opt.dask_graph.parse import DTYPES
from graph_opt.model.expression import Reduce

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

ARGUMENTS = {argmin: "argmin", argmax: "argmax"}


@dataclass(frozen=True)
class Chunked:
    """What a chunk function computes of one block: a part of this reduction of NumPy."""

    function: str
    axes: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def dtype(self) -> Any:
        """The dtype in which it adds, ``None`` for that of NumPy."""
        return dict(self.options).get("dtype")

    def parts(self, nodes: Nodes, array: Operand) -> tuple[int, ...]:
        """Add what :class:`Assembly` needs; of other reductions, the result."""
        if self.function == "mean":
            return (self._add(nodes, "sum", array),)
        if self.function == "nanmean":
            numbers = nodes.apply("invert", Operand(nodes.apply("isnan", array), "bool", 0))
            counted = Reduce("sum", numbers, self.axes, True, self.options)
            return self._add(nodes, "nansum", array), nodes.add(counted)
        if self.function == "var":
            return self._add(nodes, "sum", array), self._add(nodes, "var", array)
        return (self._add(nodes, self.function, array),)

    def whole(self, nodes: Nodes, array: Operand, aggregate: Aggregate) -> int:
        """Add the whole reduction of one block."""
        options = dict(self.options) | ({"ddof": aggregate.ddof} if aggregate.ddof else {})
        made = tuple(sorted(options.items()))
        return nodes.add(Reduce(self.function, array.node, self.axes, aggregate.keepdims, made))

    def _add(self, nodes: Nodes, function: str, array: Operand) -> int:
        return nodes.add(Reduce(function, array.node, self.axes, True, self.options))


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
    if function is mean_chunk:
        sums = given.pop("sum", np.sum), given.pop("numel", None)
        name = {(np.sum, None): "mean", (np.nansum, nannumel): "nanmean"}.get(sums)
    elif function is moment_chunk:
        implicit = given.pop("implicit_complex_dtype", False)
        name = "var" if given.pop("order", 2) == 2 else None
        if np.dtype(array.dtype).kind == "c":
            if not implicit:
                return None
            given["dtype"] = None  # Dask's is that of the variance, which is real
    dtype = given.pop("dtype", "float64" if function in (mean_chunk, moment_chunk) else None)
    if name is None or given or (dtype is not None and np.dtype(dtype).name not in DTYPES):
        return None
    known = () if dtype is None else (("dtype", np.dtype(dtype).name),)
    return Chunked(name, axes, known)


def read_arg_chunk(function: Any, axis: Any, ndim: int) -> Chunked | None:
    """Read the chunk function of ``argmin`` or ``argmax``."""
    function, arguments, options = bound(function)
    axes = _axes(axis, ndim)
    if function is not arg_chunk or len(arguments) != 2 or options or axes is None:
        return None
    name = ARGUMENTS.get(arguments[1])
    return None if name is None else Chunked(name, axes)


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
        arguments = tuple(each for each in arguments if ARGUMENTS.get(each) != chunked.function)
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
