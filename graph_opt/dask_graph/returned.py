"""What Dask's tasks return, if it is known before they run: blocks that travel without a header.

Dask's layers may pass anything between tasks. So only these functions count: those that return an
array as declared, and those that make parts of means, variances, compensated sums, and places of
extremes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graph_opt.dask_graph.calls import (
    AGGREGATES,
    OPERATORS,
    SUMS,
    Chunked,
    Operand,
    bound,
    read_chunk,
)
from graph_opt.dask_graph.gathering import Chain
from graph_opt.dask_graph.internals import (
    Compose,
    GraphNode,
    Task,
    TaskRef,
    _concatenate2,
    _cumprod_merge,
    _cumsum_merge,
    _enforce_dtype,
    arg_agg,
    arg_chunk,
    arg_combine,
    getitem,
    mean_combine,
    nanarg_agg,
)
from graph_opt.dask_graph.parse import full_name, is_known, row_of, unwrapped
from graph_opt.model.layout import dtype_named
from graph_opt.model.recipe import Block, Kinds, Returned

MODULE = "dask_dgpu.kernels.sums.partial"
"""The module with the functions that tasks of compensated and reproducible sums call."""

ARRAYS = dict.fromkeys(
    (
        *(*OPERATORS, *SUMS, *AGGREGATES),
        *(operator.getitem, getitem, np.transpose, np.where, np.clip),
        *(_concatenate2, _cumprod_merge, _cumsum_merge, _enforce_dtype, arg_agg, nanarg_agg),
    ),
    True,
)
"""Functions of Dask's tasks that return an array, as declared."""

COMBINES = dict.fromkeys((arg_combine, mean_combine), True)
"""Functions that make a part of a reduction of several, of the same dtypes."""


def returned(task: GraphNode, reads: Sequence[Block], kinds: Kinds) -> Returned | Block | None:
    """Return what a task returns: as one of the blocks that it reads, ``None`` if not known."""
    last = task
    while isinstance(last, Task) and isinstance(last.func, Chain):
        last = last.func.tasks[-1]
    if not isinstance(last, Task):
        return None
    call = partial(last.func, **last.kwargs)
    function, _, options = bound(call)
    function = _own(function)
    fusion = getattr(function, "fusion", None) if is_known(type(function)) else None
    if fusion is not None:
        return Returned(fusion.chunked.fields if fusion.chunked is not None else {})
    if row_of(COMBINES, function):
        return reads[0]
    if row_of(ARRAYS, function) or isinstance(function, np.ufunc):
        return Returned()
    if full_name(function) == f"{MODULE}.finished":
        return Returned()
    if full_name(function) == f"{MODULE}.partial_sum":
        return _summed(options)
    if len(reads) != 1:
        return None
    dtype, ndim = kinds[reads[0][0]]
    if function is arg_chunk:  # all such have the same fields
        return Returned(Chunked("argmin", (), searched=dtype).fields)
    whole = last is task and len(last.args) == 1 and isinstance(last.args[0], TaskRef)
    chunked = read_chunk(call, {}, Operand(0, dtype, ndim)) if whole else None
    return None if chunked is None else Returned(chunked.fields)


def _summed(options: Mapping[str, Any]) -> Returned | None:
    """Return the partial sums of a compensated sum of real numbers."""
    result = options["result"]
    if options["method"] != "compensated" or dtype_named(result).kind == "c":
        return None
    arrays = range(4 if result == "float64" else 2)
    return Returned({str(at): ("float64", ()) for at in arrays}, summed=True)


def _own(function: Any) -> Any:
    """Return the last function of Dask's in one, or the one that it stands for."""
    function = unwrapped(function)
    if isinstance(function, Compose):
        return _own(function.funcs[-1])
    return getattr(function, "own", function) if is_known(type(function)) else function
