"""Which blocks are known before they are computed: they travel without a header.

Dask's layers may pass anything between tasks. So only results of collectives and of these functions
count as arrays. Known too are the parts of means, variances, compensated sums, and places of
extremes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_dgpu.kernels.fused.typed import typed
from dask_dgpu.operations.value import Value
from dask_dgpu.runtime.calls import Bound, Chain, Copied, Function, Ordered, first
from dask_dgpu.runtime.forms import Fields, Form, Parts
from dask_dgpu.runtime.fused import Fused
from dask_dgpu.runtime.in_place import InPlace
from dask_dgpu.runtime.partials import mean_agg, mean_combine, moment_agg
from graph_opt.dask_graph import internals
from graph_opt.dask_graph.elementwise import OPERATORS
from graph_opt.dask_graph.internals import (
    Compose,
    _concatenate2,
    _cumprod_merge,
    _cumsum_merge,
    _enforce_dtype,
    arg_agg,
    arg_chunk,
    arg_combine,
    getitem,
    nanarg_agg,
)
from graph_opt.dask_graph.nodes import Operand
from graph_opt.dask_graph.parse import DTYPES, function_name, unwrapped
from graph_opt.dask_graph.reductions import AGGREGATES, EXTREMES, SUMS, Chunked, bound, read_chunk
from graph_opt.model.blockwork import OPAQUE
from graph_opt.model.layout import NUMPY, Index, dtype_named
from graph_opt.pieces.sum import MODULE

FUNCTIONS = frozenset(
    (
        *(*OPERATORS, *SUMS, *AGGREGATES),
        *(operator.getitem, getitem, np.transpose, np.where, np.clip),
        *(_concatenate2, _cumprod_merge, _cumsum_merge, _enforce_dtype),
        *(arg_agg, nanarg_agg, mean_agg, moment_agg),
    )
)
"""Functions of Dask's tasks that return an array, as declared."""


COMBINES = frozenset((arg_combine, internals.mean_combine, mean_combine))
"""Functions that make a part of a reduction of several, of the same dtypes."""

NUMBERS = DTYPES - {OPAQUE}


def form_of(value: Value, index: Index) -> Form | None:
    """Return what a block is, ``None`` if the declaration does not say.

    Functions of NumPy return scalars for arrays without axes, or such arrays.
    """
    shape = value.block_shape(index)
    if value.dtype not in NUMBERS or (not shape and value.container == NUMPY):
        return None
    return Form(value.dtype, shape, value.container)


def parts_of(
    value: Value, index: Index, function: Any, sources: Sequence[Value]
) -> Parts | Fields | None:
    """Return what a block function returns, ``None`` if it is no known part of a reduction.

    It has the layout of Dask's chunk functions, and of :class:`dask_dgpu.runtime.fused.Fused`,
    which stands for them. The function is called with blocks of ``sources``.
    """
    options = _summed(function)
    shape, container = value.block_shape(index), value.container
    if options is not None:
        large = ("large", "rest") if options["result"] == "float64" else ()
        sums = [(key, "float64", shape) for key in ("sums", "compensations", *large)]
        return Parts((*sums, ("count", "int64", ())), container, summed=True)
    values = _values_searched(function, sources)
    if values is not None:
        fields = ("vals", values), ("arg", "int64")
        if container == NUMPY:
            return Fields(fields, shape)
        return Parts(tuple((*field, shape) for field in fields), container)
    chunked = _chunked(function, sources)
    if chunked is None or chunked.dtype is None:
        return None
    number, total = ("n", "int64", shape), ("total", chunked.dtype, shape)
    match chunked.function:
        case "mean" | "nanmean":
            return Parts((("n", chunked.dtype, shape), total), container)
        case "var" | "nanvar" | "moment":
            moments = "M", chunked.dtype, (*shape, chunked.order - 1)
            return Parts((total, number, moments), container)
    return None


def _summed(function: Any) -> Mapping[str, Any] | None:
    """Return the options of a compensated sum of real numbers, ``None`` for other functions."""
    last, _, options = bound(last_function(function))
    compensated = options.get("method") == "compensated"
    if not compensated or function_name(last) != f"{MODULE}.sum_block":
        return None
    return options if dtype_named(options["result"]).kind != "c" else None


def combines(function: Any) -> bool:
    """Return whether a block function combines parts of a reduction to one of the same dtypes."""
    function = unwrapped(last_function(function))
    if isinstance(function, Compose):
        function = unwrapped(function.funcs[-1])
    try:
        return function in COMBINES
    except TypeError:  # it has no hash
        return False


def combined(part: Parts | Fields, value: Value, index: Index) -> Parts | Fields:
    """Return what a function that :func:`combines` makes of parts like this one."""
    shape = value.block_shape(index)
    if isinstance(part, Fields):
        return part._replace(shape=shape)
    arrays = tuple((key, dtype, shape) for key, dtype, _ in part.arrays)
    return part._replace(arrays=arrays)


def _values_searched(function: Any, sources: Sequence[Value]) -> str | None:
    """Return the dtype of the values of which a function finds the place of the least or greatest.

    ``None`` for other functions, and if it is not known.
    """
    last = unwrapped(last_function(function))
    if isinstance(last, Fused):
        fusion = last.fusion
        if fusion.chunked is None or fusion.chunked.function not in EXTREMES or fusion.cut:
            return None
        dtypes = [dtype_named(each) for each in fusion.dtypes]
        # dtypes do not depend on shapes, and sources may be in another order than inputs
        shapes = [(1,) * max(len(source.cuts) for source in sources)] * len(dtypes)
        dtype = typed(fusion.expression, dtypes, shapes)[fusion.expression.results[0]].dtype.name
    elif len(sources) == 1 and last is arg_chunk:
        dtype = sources[0].dtype
    else:
        return None
    return dtype if dtype in NUMBERS else None


def _chunked(function: Any, sources: Sequence[Value]) -> Chunked | None:
    last = unwrapped(last_function(function))
    if isinstance(last, Fused):
        found: Chunked | None = last.fusion.chunked
        return found
    call = of_one_block(function)
    if call is None or len(sources) != 1:
        return None
    (source,) = sources
    return read_chunk(*call, Operand(0, source.dtype, len(source.cuts)))


def returns_array(function: Any) -> bool:
    """Whether a block function is known to return an array, not parts of a reduction."""
    function = unwrapped(last_function(function))
    if isinstance(function, Compose):
        return all(map(returns_array, (function.first, *function.funcs)))
    if isinstance(function, Fused):
        chunked = function.fusion.chunked
        return chunked is None or chunked.function in SUMS.values()
    if function_name(function) == f"{MODULE}.finish":
        return True
    try:
        return isinstance(function, np.ufunc) or function in FUNCTIONS
    except TypeError:  # it has no hash
        return False


def last_function(call: Function) -> Function:
    """Return the function that returns the result of a call, the last one of fused tasks."""
    while True:
        if isinstance(call, Chain):
            *_, (_, call, _, _) = call.links or (("", first, (), ()),)
        elif isinstance(call, Copied | InPlace | Ordered | Bound):
            call = call.function
        else:
            return call


def of_one_block(call: Function) -> tuple[Function, Mapping[str, Any]] | None:
    """Return the function that a call calls with its only block, and its options."""
    if isinstance(call, Bound):
        alone = len(call.arguments) == len(call.blocks) == 1 and not (call.values or call.named)
        return (call.function, call.options or {}) if alone else None
    return None if isinstance(call, Chain | Copied | Ordered) else (call, {})
