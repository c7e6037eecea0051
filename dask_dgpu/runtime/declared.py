"""Blocks whose dtype and shape are known before they are computed: they travel without a header.

Dask's layers may pass anything between tasks: the chunk function of a mean makes a dictionary. So
only results of collectives and of these functions count as arrays.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.operations.value import Value
from dask_dgpu.runtime.calls import last_function
from dask_dgpu.runtime.fused import Fused
from dask_dgpu.runtime.partials import mean_agg, moment_agg
from graph_opt.dask_graph.elementwise import OPERATORS
from graph_opt.dask_graph.internals import (
    Compose,
    _concatenate2,
    _cumprod_merge,
    _cumsum_merge,
    _enforce_dtype,
    arg_agg,
    getitem,
)
from graph_opt.dask_graph.parse import DTYPES, unwrapped
from graph_opt.dask_graph.reductions import AGGREGATES, SUMS
from graph_opt.model.blockwork import OPAQUE
from graph_opt.model.layout import NUMPY, Index

FUNCTIONS = frozenset(
    (
        *(*OPERATORS, *SUMS, *AGGREGATES),
        *(operator.getitem, getitem, np.transpose, np.where, np.clip),
        *(_concatenate2, _cumprod_merge, _cumsum_merge, _enforce_dtype),
        *(arg_agg, mean_agg, moment_agg),
    )
)
"""Functions of Dask's tasks that return an array, as declared."""


NUMBERS = DTYPES - {OPAQUE}


class Form(NamedTuple):
    """A block as the graph declares it: the name of its array, and what the block is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    container: str


def form_of(name: str, value: Value, index: Index) -> Form | None:
    """Return what a block is, ``None`` if the declaration does not say.

    Functions of NumPy return scalars for arrays without axes, or such arrays.
    """
    shape = value.block_shape(index)
    if value.dtype not in NUMBERS or (not shape and value.container == NUMPY):
        return None
    return Form(name, value.dtype, shape, value.container)


def returns_array(function: Any) -> bool:
    """Whether a block function is known to return an array, not parts of a reduction."""
    function = unwrapped(last_function(function))
    if isinstance(function, Compose):
        return all(map(returns_array, (function.first, *function.funcs)))
    if isinstance(function, Fused):
        chunked = function.fusion.chunked
        return chunked is None or chunked.function in SUMS.values()
    try:
        return isinstance(function, np.ufunc) or function in FUNCTIONS
    except TypeError:  # it has no hash
        return False
