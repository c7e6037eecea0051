"""One row for each kind of expression that Dask's own functions build too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask_array._blockwise import Blockwise, Elemwise
from dask_array._broadcast_to import BroadcastTo
from dask_array._expr import ArrayExpr, ChunksFreeze, ChunksOverride, RootAlias
from dask_array._overlap import MapOverlap, _get_overlap_rechunked_chunks
from dask_array._rechunk import Rechunk
from dask_array.creation._ones_zeros import Empty, Full, Ones, Zeros
from dask_array.io._from_array import FromArray
from dask_array.io._from_graph import FromGraph
from dask_array.manipulation._expand import ExpandDims
from dask_array.manipulation._reshape import Reshape
from dask_array.manipulation._squeeze import Squeeze
from dask_array.manipulation._transpose import Transpose
from dask_array.reductions._arg_reduction import ArgChunk
from dask_array.reductions._cumulative import CumReduction
from dask_array.reductions._reduction import (
    All,
    Max,
    Mean,
    Min,
    NanMax,
    NanMean,
    NanMin,
    NanProd,
    NanSum,
    PartialReduce,
    Prod,
    Reduction,
    Sum,
)
from dask_array.reductions._reduction import Any as AnyOf
from dask_array.slicing._basic import SliceSlicesIntegers
from dask_array.slicing._setitem import SetItem
from dask_array.stacking._concatenate import Concatenate
from dask_array.stacking._stack import Stack

from graph_opt.dask_graph.internals import _chunk_sum, _matmul
from graph_opt.expressions.collection import Gang
from graph_opt.expressions.functions import dasks_own
from graph_opt.expressions.products import Product

CORE: Any = import_module("dask.array.core")
REDUCTIONS: Any = import_module("dask.array.reductions")
"""Modules whose functions are looked up at each call: while dask_dgpu is enabled, faster ones."""

Read = Callable[[ArrayExpr], Array]
"""Returns the array of an expression."""
Row = Callable[[Any, Read], Array]


def is_unknown(array: Any) -> bool:
    """Whether an array or expression has chunks of unknown sizes."""
    return any(size != size for sizes in array.chunks for size in sizes)


def _aligned(expr: Any) -> Any:
    """Return a node whose arrays have the same chunks: dask_array aligns them as Dask does not."""
    lowered = expr._lower()
    return lowered if type(lowered) is type(expr) else expr


def _blockwise(expr: Blockwise, read: Read) -> Array:
    expr = _aligned(expr)
    args: list[Any] = []
    for value, labels in zip(expr.args[::2], expr.args[1::2], strict=True):
        args += [read(value) if isinstance(value, ArrayExpr) else value, labels]
    return CORE.blockwise(
        dasks_own(expr.func),
        expr.out_ind,
        *args,
        token=expr.operand("name") or expr.token,
        dtype=expr.operand("dtype"),
        adjust_chunks=expr.adjust_chunks,
        new_axes=expr.new_axes or None,
        align_arrays=expr.align_arrays,
        concatenate=expr.concatenate,
        meta=expr._meta_provided,
        **_keywords(expr.kwargs),
    )


def _elemwise(expr: Elemwise, read: Read) -> Array:
    expr = _aligned(expr)

    def value(operand: Any) -> Any:
        return read(operand) if isinstance(operand, ArrayExpr) else operand

    options = dict(_keywords(expr.user_kwargs))
    if expr.where is not True:
        options |= {"where": value(expr.where), "out": value(expr.out)}
    arrays = map(value, expr.elemwise_args)
    return CORE.elemwise(dasks_own(expr.op), *arrays, dtype=expr.operand("dtype"), **options)


def _keywords(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: dasks_own(value) for name, value in given.items()}


def _reduction(expr: Reduction, read: Read) -> Array:
    if is_product(expr):
        return _product(expr, read)
    combine = expr.operand("combine")
    return REDUCTIONS.reduction(
        read(expr.array),
        dasks_own(expr.chunk),
        dasks_own(expr.aggregate),
        axis=expr.axis,
        keepdims=expr.keepdims,
        dtype=expr.operand("dtype"),
        split_every=expr.split_every,
        combine=None if combine is None else dasks_own(combine),
        name=expr.operand("name"),
        concatenate=expr.concatenate,
        output_size=expr.output_size,
        meta=expr.operand("meta"),
        weights=None if expr.weights is None else read(expr.weights),
    )


def _named(name: str, *options: str) -> Row:
    """Return the row of a reduction with a name: settings and kernels know Dask's function."""

    def row(expr: Reduction, read: Read) -> Array:
        if expr.weights is not None or expr.operand("meta") is not None:
            return _reduction(expr, read)
        given = {option: expr.operand(option) for option in ("keepdims", "split_every", *options)}
        array: Array = getattr(da, name)(read(expr.array), axis=expr.axis, **given)
        return array

    return row


def first_step(expr: ArrayExpr) -> ArrayExpr:
    """Return the node whose inputs the row of a node reads: a row may replace several nodes."""
    step = expr
    while isinstance(step, PartialReduce):
        step = step.array
    if isinstance(step, ArgChunk):
        return step
    return expr.array if is_product(expr) else expr


def is_product(expr: ArrayExpr) -> bool:
    """Whether a node is the product of two matrices: the last one of several."""
    is_sum = type(expr) is Reduction and dasks_own(expr.chunk) is _chunk_sum
    if not (is_sum or isinstance(expr, Squeeze)):
        return False
    terms = expr.array
    is_matmul = type(terms) is Blockwise and dasks_own(terms.func) is _matmul
    return is_matmul and terms.out_ind == (0, 1, 2) and expr.ndim == 2


def _called(expr: Product, read: Read) -> Array:
    left, right = read(expr.left), read(expr.right)
    product: Array = da.tensordot(left, right, expr.axes) if expr.axes else da.matmul(left, right)
    return product


def _product(expr: ArrayExpr, read: Read) -> Array:
    left, _, right, _ = expr.array.args
    product: Array = da.matmul(read(left), read(right))
    return product


def _indices(expr: PartialReduce, read: Read) -> Array:
    step = first_step(expr)
    if not isinstance(step, ArgChunk):
        raise NotImplementedError("expected a reduction to indices")
    function = step.chunk_func.args[1]
    axis = None if len(step.axis) > 1 else step.axis[0]
    indices: Array = getattr(da, function.__name__.lstrip("_"))(
        read(step.array), axis=axis, keepdims=expr.keepdims
    )
    return indices


def _cumulative(expr: CumReduction, read: Read) -> Array:
    if not all(size > 0 for sizes in expr.chunks for size in sizes):
        raise NotImplementedError("expected no empty blocks, which Dask gets wrong")
    own = dasks_own(expr.func), dasks_own(expr.binop), expr.ident
    return REDUCTIONS.cumreduction(*own, read(expr.array), expr.axis, expr.dtype)


def _overlap(expr: MapOverlap, read: Read) -> Array:
    arrays = list(map(read, expr.arrays))
    if expr.allow_rechunk:
        arrays = [
            x.rechunk(_get_overlap_rechunked_chunks(x, *each))
            for x, *each in zip(arrays, expr.depth, expr.boundary, strict=True)
        ]
    return da.map_overlap(
        dasks_own(expr.func),
        *arrays,
        depth=list(expr.depth),
        boundary=list(expr.boundary),
        trim=expr.trim_output,
        align_arrays=False,
        allow_rechunk=expr.allow_rechunk,
        **expr._kwargs,
    )


def _squeeze(expr: Squeeze, read: Read) -> Array:
    if is_product(expr):
        return _product(expr, read)
    return da.squeeze(read(expr.array), tuple(sorted(expr._axis_set)))


def _setitem(expr: SetItem, read: Read) -> Array:
    array = read(expr.array).copy()
    value = expr.value
    array[expr.index] = read(value) if isinstance(value, ArrayExpr) else value
    return array


def _overridden(expr: ChunksOverride, read: Read) -> Array:
    if is_unknown(expr):
        raise NotImplementedError("expected chunks of known sizes")
    array = read(expr.array)
    return Array(array.dask, array.name, expr.chunks, meta=array._meta)


def _from_array(expr: FromArray, read: Read) -> Array:
    region, source = expr.operand("_region"), expr.array
    names = ("lock", "fancy", "getitem", "inline_array", "asarray")
    options = {name: expr.operand(name) for name in names}
    if region is not None:
        raise NotImplementedError("expected a whole array")
    return da.from_array(source, expr.chunks, name=expr._name, meta=expr._meta, **options)


def _from_graph(expr: FromGraph, read: Read) -> Array:
    layer, name = expr.operand("layer"), expr._inferred_layer_name
    if expr.dependencies():
        raise NotImplementedError("expected a graph without dependencies")
    if name is None or len(layer) != np.prod(expr.numblocks):
        layer, name = expr._layer(), expr._name
    graph = HighLevelGraph.from_collections(name, dict(layer), dependencies=())
    return Array(graph, name, expr.chunks, meta=expr._meta)


def _creation(function: Callable[..., Array]) -> Row:
    def row(expr: Any, read: Read) -> Array:
        options = {} if expr.operand("meta") is None else {"meta": expr.operand("meta")}
        options |= {"chunks": expr.chunks, "dtype": expr.dtype, **expr.kwargs}
        array = function(expr.shape, **options)
        if type(array._meta) is not type(expr._meta):
            raise NotImplementedError("expected the backend that created the array")
        return array

    return row


def _sequence(function: Callable[..., Array]) -> Row:
    def row(expr: Any, read: Read) -> Array:
        return function([read(argument) for argument in expr.args], axis=expr.axis)

    return row


ROWS: Mapping[type, Row] = {
    Blockwise: _blockwise,
    All: _named("all"),
    AnyOf: _named("any"),
    BroadcastTo: lambda expr, read: da.broadcast_to(read(expr.array), expr.shape, expr.chunks),
    ChunksFreeze: lambda expr, read: read(expr.array),
    ChunksOverride: _overridden,
    Concatenate: _sequence(da.concatenate),
    CumReduction: _cumulative,
    Elemwise: _elemwise,
    Empty: _creation(da.empty),
    ExpandDims: lambda expr, read: da.expand_dims(read(expr.array), expr.axes),
    FromArray: _from_array,
    FromGraph: _from_graph,
    Full: _creation(da.full),
    Gang: lambda expr, read: expr.array,
    MapOverlap: _overlap,
    Max: _named("max"),
    Mean: _named("mean", "dtype"),
    Min: _named("min"),
    NanMax: _named("nanmax"),
    NanMean: _named("nanmean", "dtype"),
    NanMin: _named("nanmin"),
    NanProd: _named("nanprod", "dtype"),
    NanSum: _named("nansum", "dtype"),
    Ones: _creation(da.ones),
    Rechunk: lambda expr, read: read(expr.array).rechunk(
        expr.chunks, expr.threshold, expr.block_size_limit, method=expr.method
    ),
    PartialReduce: _indices,
    Prod: _named("prod", "dtype"),
    Product: _called,
    Reduction: _reduction,
    Reshape: lambda expr, read: read(expr.array).reshape(expr.shape),
    RootAlias: lambda expr, read: read(expr.array),
    SetItem: _setitem,
    SliceSlicesIntegers: lambda expr, read: read(expr.array)[expr.index],
    Squeeze: _squeeze,
    Stack: _sequence(da.stack),
    Sum: _named("sum", "dtype"),
    Transpose: lambda expr, read: da.transpose(read(expr.array), expr.axes),
    Zeros: _creation(da.zeros),
}
"""The array of an expression by its class, or by the nearest class that it extends."""
