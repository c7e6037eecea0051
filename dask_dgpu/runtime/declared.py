"""Which blocks are known before they are computed: they travel without a header.

Dask's layers may pass anything between tasks. So only results of collectives and of these functions
count as arrays. Known too are the parts of means, variances, compensated sums, and places of
extremes.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.operations.operation import Shipment, Value
from dask_dgpu.runtime.calls import last_function, of_one_block
from dask_dgpu.runtime.fused import Fused
from dask_dgpu.runtime.partials import mean_agg, mean_combine, moment_agg
from dask_dgpu.runtime.placement import Block
from dask_dgpu.runtime.plans import Plans
from dask_dgpu.runtime.program import Call, Program
from dask_dgpu.runtime.ship import Form, Known, Parts
from graph_opt.dask_graph import internals
from graph_opt.dask_graph.calls import (
    AGGREGATES,
    OPERATORS,
    SUMS,
    Chunked,
    Operand,
    bound,
    read_chunk,
)
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
from graph_opt.dask_graph.parse import DTYPES, full_name, unwrapped
from graph_opt.model.layout import NUMPY, Index, dtype_named
from graph_opt.model.piece import OPAQUE
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


def known_blocks(
    program: Program, plans: Plans, shipments: Sequence[Shipment]
) -> dict[Block, Known]:
    """Return what shipped blocks are, of those that are known to be as declared."""
    found: dict[Block, Known | None] = {}
    for number in {each.value for each in shipments}.difference(range(len(program.inputs))):
        blocks = [each.index for each in shipments if each.value == number]
        if number in plans.makings:
            calls = program.blockworks.calls(number, blocks)
            made = {index: _made(program, plans, number, index, calls[index]) for index in blocks}
        else:
            made = {index: form_of(program.values[number], index) for index in blocks}
        found |= {(number, index): known for index, known in made.items()}
    return {block: known for block, known in found.items() if known is not None}


def _made(program: Program, plans: Plans, number: int, index: Index, call: Call) -> Known | None:
    """Return what a block function returns, if it is known."""
    value, last = program.values[number], _last(call.function)
    if returns_array(last):
        return form_of(value, index)
    sources = [program.values[source] for source, _ in call.reads]
    combine = _last(last.funcs[-1]) if isinstance(last, Compose) else last
    if not _is_in(combine, COMBINES):
        return _part(value, index, call.function, sources)
    first, place = call.reads[0]
    if first not in plans.makings:
        return None
    (below,) = program.blockworks.calls(first, [place]).values()
    part = _made(program, plans, first, place, below)
    return None if part is None else part.shaped(value.block_shape(index))


def form_of(value: Value, index: Index) -> Form | None:
    """Return what a block is, ``None`` if the declaration does not say.

    Functions of NumPy return scalars for arrays without axes, or such arrays.
    """
    shape = value.block_shape(index)
    if value.dtype not in NUMBERS or (not shape and value.container == NUMPY):
        return None
    return Form(value.dtype, shape, value.container)


def _part(value: Value, index: Index, function: Any, sources: Sequence[Value]) -> Known | None:
    """Return the part of a reduction that a block function returns, ``None`` if it is not known.

    It has the layout of Dask's chunk functions, and of :class:`dask_dgpu.runtime.fused.Fused`,
    which stands for them. The function is called with blocks of ``sources``.
    """
    shape, container = value.block_shape(index), value.container
    last, _, options = bound(last_function(function))
    if options.get("method") == "compensated" and full_name(last) == f"{MODULE}.partial_sum":
        if dtype_named(options["result"]).kind == "c":
            return None
        keys = Pair._fields[: 4 if options["result"] == "float64" else 2]
        sums = [(key, "float64", shape) for key in keys]
        return Parts((*sums, ("count", "int64", ())), container, summed=True)
    chunked = _chunked(function, sources)
    fields = {} if chunked is None else chunked.fields
    if not fields or any(dtype not in NUMBERS for dtype, _ in fields.values()):
        return None
    if "vals" in fields and container == NUMPY:
        return Form(np.dtype([(key, dtype) for key, (dtype, _) in fields.items()]), shape)
    arrays = ((key, dtype, (*shape, *more)) for key, (dtype, more) in fields.items())
    return Parts(tuple(arrays), container)


def _chunked(function: Any, sources: Sequence[Value]) -> Chunked | None:
    last, call = _last(function), of_one_block(function)
    if isinstance(last, Fused):
        found: Chunked | None = last.fusion.chunked
        return found
    if len(sources) != 1:
        return None
    (source,) = sources
    if last is arg_chunk:  # all such have the same fields
        return Chunked("argmin", (), searched=source.dtype)
    return None if call is None else read_chunk(*call, Operand(0, source.dtype, len(source.cuts)))


def returns_array(function: Any) -> bool:
    """Whether a block function is known to return an array, not parts of a reduction."""
    function = _last(function)
    if isinstance(function, Compose):
        return all(map(returns_array, (function.first, *function.funcs)))
    if isinstance(function, Fused):
        chunked = function.fusion.chunked
        return chunked is None or chunked.function in SUMS.values()
    finishes = full_name(function) == f"{MODULE}.finished"
    return finishes or isinstance(function, np.ufunc) or _is_in(function, FUNCTIONS)


def _last(function: Any) -> Any:
    return unwrapped(last_function(function))


def _is_in(function: Any, functions: Collection[Any]) -> bool:
    try:
        return function in functions
    except TypeError:  # it has no hash
        return False
