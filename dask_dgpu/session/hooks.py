"""Patches of Dask's functions while dask_dgpu is enabled."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.array.optimization import optimize
from dask.blockwise import Blockwise

from dask_dgpu.algorithms.summa.wire import WireDtype
from dask_dgpu.array import fft
from dask_dgpu.array.einsum.patched import pairwise
from dask_dgpu.array.fft.call import DASK_FFT, DASKS_OWN
from dask_dgpu.array.matmul import by_setting
from dask_dgpu.array.reductions.call import Method, is_number, reduced
from dask_dgpu.environment.settings import Settings
from dask_dgpu.kernels.sums.partial import Kind
from dask_dgpu.optimizer import GraphOptimizer, hurry
from dask_dgpu.session.building import replaying
from dask_dgpu.session.creation import UNDISPATCHED, dispatched
from dask_dgpu.session.expressions import Awaited, expression_patches
from dask_dgpu.session.joining import joining
from graph_opt.dask_graph.functions import is_block
from graph_opt.dask_graph.internals import HLGExpr
from graph_opt.dask_graph.parse import CONTRACTIONS
from graph_opt.dask_graph.sent import sending
from graph_opt.model.layout import BFLOAT16

Function = Callable[..., Any]

REDUCTIONS = import_module("dask.array.reductions")
ROUTINES = import_module("dask.array.routines")
"""Methods of arrays look up their functions here."""

BUILDING = {
    "blockwise": ("dask.array.core", "dask.array.routines", "dask.array.einsumfuncs"),
    "elemwise": ("dask.array.core", "dask.array.routines", "dask.array.ufunc"),
    "matmul": ("dask.array", "dask.array.routines"),
    "reduction": ("dask.array.reductions", "dask.array.routines"),
}
"""Functions of Dask that return new arrays, and the modules that look them up."""

_installed = ExitStack()


def patches(sum_method: Method, wire_dtype: WireDtype) -> list[tuple[Any, str, Function]]:
    """Return owner, name and replacement of each patched function.

    ``numpy.fft``, ``numpy.sum`` and ``numpy.mean`` of a Dask array call the same functions.
    Settings that change values replace functions that build graphs, not layers of a graph: other
    values have other names.
    """
    table: list[tuple[Any, str, Function]] = [
        (Array, "to_delayed", _without_gangs(Array.to_delayed)),
        (da, "einsum", pairwise(da.einsum)),
        *((da, name, dispatched(getattr(da, name))) for name in UNDISPATCHED),
        *_building(),
        *((DASK_FFT, name, getattr(fft, name)) for name in DASKS_OWN),
    ]
    if sum_method != "dask":
        sums = _summing("sum", da.sum, sum_method)
        means = _summing("mean", da.mean, sum_method)
        for owner in (da, REDUCTIONS):
            table += [(owner, "sum", sums), (owner, "mean", means)]
    if wire_dtype != "exact":
        for owner in (da, ROUTINES):
            table.append((owner, "matmul", _multiplying(da.matmul, wire_dtype)))
            table.append((owner, "tensordot", _contracting(da.tensordot, wire_dtype)))
    return table


def _building() -> Iterator[tuple[Any, str, Function]]:
    """Yield the patches by which graphs are built and sent faster, if this Dask has the names."""
    for name, modules in BUILDING.items():
        for owner in map(import_module, modules):
            with suppress(AttributeError):
                original = getattr(owner, name)
                yield owner, name, replaying(joining(original) if name == "blockwise" else original)
    yield HLGExpr, "__reduce__", sending(HLGExpr.__reduce__, GraphOptimizer, hurry)
    yield Array, "__getitem__", replaying(Array.__getitem__)


def install(settings: Settings) -> None:
    """Patch Dask's functions; patches of an earlier call are removed first."""
    uninstall()
    _replace(patches(settings.sum_method, settings.matmul_wire_dtype))
    if "dask_array" in sys.modules:
        _replace(expression_patches())
    else:
        awaited = Awaited(lambda: _replace(expression_patches()))
        sys.meta_path.insert(0, awaited)
        _installed.callback(awaited.close)


def _replace(table: Iterable[tuple[Any, str, Function]]) -> None:
    for owner, name, replacement in table:
        _installed.callback(_restore, owner, name, getattr(owner, name), replacement)
        setattr(owner, name, replacement)


def uninstall() -> None:
    """Restore the originals, except for functions that somebody else patched since."""
    _installed.close()


def _restore(owner: Any, name: str, original: Function, replacement: Function) -> None:
    if getattr(owner, name) is replacement:
        setattr(owner, name, original)


@functools.cache
def _without_gangs(original: Function) -> Function:
    """Wrap ``Array.to_delayed`` so that only Dask's own passes optimize its graph.

    Users compute its blocks one by one. With a gang behind them, each would run the whole
    product.
    """

    @functools.wraps(original)
    def to_delayed(self: Any, optimize_graph: bool = True) -> Any:
        with dask.config.set(array_optimize=optimize):
            return original(self, optimize_graph=optimize_graph)

    return to_delayed


@functools.cache
def _multiplying(original: Function, wire_dtype: WireDtype) -> Function:
    """Wrap ``da.matmul`` so that messages have the precision of the setting."""

    @functools.wraps(original)
    def function(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        product = None if args or kwargs else by_setting(a, b, wire_dtype)
        return original(a, b, *args, **kwargs) if product is None else product

    return function


@functools.cache
def _contracting(original: Function, wire_dtype: WireDtype) -> Function:
    """Wrap ``da.tensordot``, of which ``da.dot`` is made, in the same way for two matrices."""

    @functools.wraps(original)
    def function(lhs: Any, rhs: Any, axes: Any = 2) -> Any:
        if _is_product(lhs, rhs, axes):
            product = by_setting(lhs, rhs, wire_dtype)
            if product is not None:
                return product
        return original(lhs, rhs, axes)

    return function


def _is_product(lhs: Any, rhs: Any, axes: Any) -> bool:
    if getattr(lhs, "ndim", 0) != 2 or getattr(rhs, "ndim", 0) != 2:
        return False
    if not isinstance(axes, tuple | list):
        return bool(axes == 1)
    left, right = ([axis] if isinstance(axis, int) else list(axis) for axis in axes)
    return left in ([1], [-1]) and right in ([0], [-2])


@functools.cache
def _summing(kind: Kind, original: Function, method: Method) -> Function:
    """Wrap ``da.sum`` or ``da.mean`` so that it adds by a method, where this is possible."""

    @functools.wraps(original)
    def function(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        keepdims: bool = False,
        split_every: Any = None,
        out: Any = None,
    ) -> Any:
        if out is not None or not _is_summable(a, dtype):
            return original(a, axis, dtype, keepdims, split_every, out)
        return reduced(kind, a, axis, keepdims, dtype, method, split_every)

    return function


def _is_summable(a: Any, dtype: Any) -> bool:
    chunked = isinstance(a, Array)
    return (
        is_block(a._meta if chunked else a)
        and is_number(a.dtype)
        and (dtype is None or dtype == BFLOAT16 or is_number(np.dtype(dtype)))
        and not (chunked and _is_partial(a))
    )


def _is_partial(a: Array) -> bool:
    """Whether an array has partial products: their sum belongs to a contraction."""
    layer = a.dask.layers[a.name]
    return isinstance(layer, Blockwise) and getattr(layer.task, "func", None) in CONTRACTIONS
