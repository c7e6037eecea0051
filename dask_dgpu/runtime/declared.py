"""Blocks that are known before they are computed: they travel without a header.

Dask's layers may pass anything between tasks. So only results of collectives and of these functions
count as arrays. The parts of means, variances and compensated sums consist of known arrays.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.comm.common import contiguous
from dask_dgpu.errors import UndeclaredTypeError
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.fused.typed import typed
from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.partial import Partial
from dask_dgpu.operations.value import Value, conforming
from dask_dgpu.runtime.calls import last_function, of_one_block
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
    arg_chunk,
    getitem,
)
from graph_opt.dask_graph.nodes import Operand
from graph_opt.dask_graph.parse import DTYPES, function_name, unwrapped
from graph_opt.dask_graph.reductions import (
    AGGREGATES,
    EXTREMES,
    SUMS,
    Chunked,
    bound,
    read_chunk,
)
from graph_opt.model.blockwork import OPAQUE
from graph_opt.model.layout import NUMPY, Index, dtype_named
from graph_opt.pieces.sum import MODULE

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

ALIGNED = 16
"""Bytes to which arrays in a message are aligned."""


class Form(NamedTuple):
    """A block as the graph declares it: the name of its array, and what the block is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    container: str

    def packed(self, block: Any, device: Device) -> Any:
        """Return a block as one array; raise if it is not as declared."""
        return contiguous(conforming(block, *self))

    def awaited(self, device: Device) -> tuple[Any, Any]:
        """Return a block that has still to be received, and the array to receive."""
        block = device.empty(self.shape, self.dtype)
        return block, block


def form_of(name: str, value: Value, index: Index) -> Form | None:
    """Return what a block is, ``None`` if the declaration does not say.

    Functions of NumPy return scalars for arrays without axes, or such arrays.
    """
    shape = value.block_shape(index)
    if value.dtype not in NUMBERS or (not shape and value.container == NUMPY):
        return None
    return Form(name, value.dtype, shape, value.container)


class Parts(NamedTuple):
    """The part of a reduction of one block: arrays with their keys, dtypes and shapes.

    It is a dictionary of these, or the partial sums of a compensated sum if it is ``summed``.
    """

    name: str
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]
    container: str
    summed: bool = False

    def packed(self, block: Any, device: Device) -> Any:
        """Return a block as one array of bytes; raise if it is not as declared."""
        message = device.empty(self.nbytes, "uint8")
        found, views = self._taken(block), self._views(message)
        for key, dtype, shape in self.arrays:
            array = found[key]
            if shape:
                array = conforming(array, self.name, dtype, shape, self.container)
            views[key][...] = array
        return message

    def awaited(self, device: Device) -> tuple[Any, Any]:
        """Return a block that has still to be received, and the bytes to receive."""
        message = device.empty(self.nbytes, "uint8")
        arrays = self._views(message)
        if not self.summed:
            return arrays, message
        *sums, count = arrays.values()
        return Partial(Pair.of(sums), count, self.container, 1), message

    @property
    def nbytes(self) -> int:
        """The bytes of a message with all arrays."""
        return sum(map(_padded, self.arrays))

    def _taken(self, block: Any) -> Mapping[str, Any]:
        """Return the arrays of a block, or raise."""
        keys, found = [key for key, _, _ in self.arrays], block
        if self.summed and isinstance(block, Partial) and isinstance(block.sums, Pair):
            arrays = *block.sums.arrays(), block.count
            found = dict(zip(keys, arrays, strict=True)) if len(keys) == len(arrays) else None
        if type(found) is not dict or found.keys() != {*keys}:
            kind = type(block).__name__
            raise UndeclaredTypeError(f"expected a block of {self.name} with {keys}, got a {kind}")
        return found

    def _views(self, message: Any) -> dict[str, Any]:
        """Return the arrays in the memory of a message, by their keys."""
        found, start = {}, 0
        for key, dtype, shape in self.arrays:
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            found[key] = message[start : start + nbytes].view(dtype).reshape(shape)
            start += _padded((key, dtype, shape))
        return found


class Fields(NamedTuple):
    """The part of a reduction of one block of NumPy: an array with fields, with their dtypes."""

    name: str
    fields: tuple[tuple[str, str], ...]
    shape: tuple[int, ...]
    container: str = NUMPY

    def packed(self, block: Any, device: Device) -> Any:
        """Return a block as bytes; raise if it is not as declared."""
        if type(block) is not np.ndarray or block.dtype != self.dtype or block.shape != self.shape:
            kind = getattr(block, "dtype", type(block).__name__)
            wanted = f"expected a block of {self.name} with {self.dtype} of {self.shape}"
            raise UndeclaredTypeError(f"{wanted}, got {kind} of {np.shape(block)}")
        return contiguous(block).reshape(-1).view(np.uint8)

    def awaited(self, device: Device) -> tuple[Any, Any]:
        """Return a block that has still to be received, and the bytes to receive."""
        block = np.empty(self.shape, self.dtype)
        return block, block.reshape(-1).view(np.uint8)

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of an element."""
        return np.dtype(list(self.fields))


Known = Form | Parts | Fields


def _padded(array: tuple[str, str, tuple[int, ...]]) -> int:
    """Return the bytes of an array in a message, where the next one is aligned."""
    _, dtype, shape = array
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGNED) * ALIGNED


def parts_of(
    name: str, value: Value, index: Index, function: Any, sources: Sequence[Value]
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
        return Parts(name, (*sums, ("count", "int64", ())), container, summed=True)
    values = _values_searched(function, sources)
    if values is not None:
        fields = ("vals", values), ("arg", "int64")
        if container == NUMPY:
            return Fields(name, fields, shape)
        return Parts(name, tuple((*field, shape) for field in fields), container)
    chunked = _chunked(function, sources)
    if chunked is None or chunked.dtype is None:
        return None
    number, total = ("n", "int64", shape), ("total", chunked.dtype, shape)
    match chunked.function:
        case "mean" | "nanmean":
            return Parts(name, (("n", chunked.dtype, shape), total), container)
        case "var" | "nanvar" | "moment":
            moments = "M", chunked.dtype, (*shape, chunked.order - 1)
            return Parts(name, (total, number, moments), container)
    return None


def _summed(function: Any) -> Mapping[str, Any] | None:
    """Return the options of a compensated sum of real numbers, ``None`` for other functions."""
    last, _, options = bound(last_function(function))
    compensated = options.get("method") == "compensated"
    if not compensated or function_name(last) != f"{MODULE}.sum_block":
        return None
    return options if dtype_named(options["result"]).kind != "c" else None


def _values_searched(function: Any, sources: Sequence[Value]) -> str | None:
    """Return the dtype of the values of which a function finds the place of the least or greatest.

    ``None`` for other functions, and if it is not known.
    """
    last = unwrapped(last_function(function))
    if isinstance(last, Fused):
        fusion = last.fusion
        if fusion.chunked is None or fusion.chunked.function not in EXTREMES or fusion.cut:
            return None
        shapes = [(1,) * len(source.cuts) for source in sources]
        dtypes = [dtype_named(each) for each in fusion.dtypes]
        dtype = typed(fusion.expression, dtypes, shapes)[fusion.expression.results[0]].dtype.name
    elif len(sources) == 1 and bound(last)[0] is arg_chunk:
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
