"""``da.sum`` and ``da.mean`` while dask_dgpu is enabled with another ``dgpu.sum.method``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.utils import typename

from dask_dgpu.array.reductions.call import Method, is_number, reduced
from dask_dgpu.kernels.sums.partial import Kind
from graph_opt.model.dtype import BFLOAT16
from graph_opt.model.node import CONTAINERS

REDUCTIONS = import_module("dask.array.reductions")
"""Where the methods of arrays look for them."""

KINDS: tuple[Kind, ...] = ("sum", "mean")
DASKS_OWN: dict[Kind, Callable[..., Any]] = {kind: getattr(REDUCTIONS, kind) for kind in KINDS}
CONTRACTION = "tensordot-"
"""Partial products: their sum is part of a product, which a rule knows."""


def install(method: Method) -> None:
    """Have plain sums and means use a method; ``numpy.sum`` of a Dask array does too."""
    uninstall()
    if method != "dask":
        for kind, original in DASKS_OWN.items():
            _put(kind, _wrapped(kind, original, method))


def uninstall() -> None:
    """Put Dask's functions back, unless somebody has put other ones there since."""
    for kind, original in DASKS_OWN.items():
        if getattr(getattr(REDUCTIONS, kind), "__wrapped__", None) is original:
            _put(kind, original)


def _put(kind: Kind, function: Callable[..., Any]) -> None:
    setattr(REDUCTIONS, kind, function)
    setattr(da, kind, function)


def _wrapped(kind: Kind, original: Callable[..., Any], method: Method) -> Callable[..., Any]:
    @wraps(original)
    def function(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        keepdims: bool = False,
        split_every: Any = None,
        out: Any = None,
    ) -> Any:
        if out is not None or not _understood(a, dtype):
            return original(a, axis, dtype, keepdims, split_every, out)
        return reduced(kind, a, axis, keepdims, dtype, method, split_every)

    return function


def _understood(a: Any, dtype: Any) -> bool:
    chunked = isinstance(a, Array)
    return (
        typename(type(a._meta if chunked else a)) in CONTAINERS
        and is_number(a.dtype)
        and (dtype is None or dtype == BFLOAT16 or is_number(np.dtype(dtype)))
        and not (chunked and a.name.startswith(CONTRACTION))
    )
