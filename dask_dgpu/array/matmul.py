"""Matrix products with options.

A product without options is Dask's own. With options it is one layer, which carries them to the
plan; without a gang it expands to Dask's own product. Its name depends on the options: results of
different precision have different keys.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> x = da.ones((4, 6), chunks=2)
>>> dgpu.matmul(x, x.T, strategy="summa").compute()[0].tolist()
[6.0, 6.0, 6.0, 6.0]
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.utils import typename

from dask_dgpu.algorithms.summa.plan import DEFAULTS, STRATEGIES, Options, Strategy
from dask_dgpu.algorithms.summa.wire import ENCODED, WIRE_DTYPES, SparseThreshold, WireDtype
from dask_dgpu.arguments import (
    as_array,
    check_choice,
    check_chunk_sizes,
    check_container,
    check_dtype,
    expected,
    real,
)
from dask_dgpu.array.chunks import any_chunks
from dask_dgpu.kinds import of_either_kind
from dask_dgpu.optimizer import enabled_optimizer
from graph_opt.dask_graph.layers import array_of, deferred
from graph_opt.dask_graph.products import MATMUL
from graph_opt.model.layout import CONTAINERS
from graph_opt.pieces.matmul import MatmulPiece


@of_either_kind
def matmul(
    a: Any,
    b: Any,
    *,
    strategy: Strategy = "auto",
    wire_dtype: WireDtype | None = None,
    sparse_threshold: SparseThreshold = None,
) -> Array:
    """Multiply two matrices, with a choice of the algorithm and of the form of messages.

    Parameters
    ----------
    a, b : array_like
        Dask arrays in any chunks, or input of ``dask.array.asarray``. With options they have one or
        two axes, known chunk sizes, and blocks of NumPy or CuPy.
    strategy : {"auto", "row", "column", "summa", "inner"}, optional
        What each worker computes: ``"row"``, rows of the result, while ``b`` is sent around;
        ``"column"``, columns, while ``a`` is sent around; ``"summa"``, a rectangle, while parts of
        both travel; ``"inner"``, the product of a part of the contraction, and the products are
        added. ``"auto"`` is the quickest by prediction, also of mixed forms. Fewer workers
        take part if there are fewer block rows or block columns.
    wire_dtype : {None, "exact", "float16", "bfloat16"}, optional
        Precision in which parts of float32 and float64 operands travel between workers. Each row of
        a part of ``a``, and each column of a part of ``b``, is scaled by a power of two, so
        nothing overflows. Products and sums keep full precision. None is the setting
        ``dgpu.matmul.wire-dtype``.
    sparse_threshold : {None, float, "auto"}, optional
        Density, in (0, 1], below which parts of operands travel between workers without their
        zeros: fewer than this fraction of the elements are not zero. Workers count them and send a
        bitmap, or positions, whichever is smaller, unless the part itself is. Parts with only zeros
        do not travel. Each bit of the result is as if they did. ``"auto"`` leaves zeros out if the
        measured network is so slow, and a part has so few other elements, that this saves time.
        None sends all elements.

    Returns
    -------
    dask.array.Array
        Equal to ``dask.array.matmul(a, b)`` up to rounding, of its dtype and chunks. The Notes
        have the error of half precision.

    Raises
    ------
    ValueError
        If lengths do not conform, or ``strategy`` is unknown or has nothing to divide: block rows
        of ``a``, block columns of ``b``, or the contraction; if ``wire_dtype`` is unknown; if
        ``sparse_threshold`` is not in (0, 1], or given together with half precision. With
        options also if an operand has no axis or more than two, or unknown chunk sizes.
    TypeError
        If ``sparse_threshold`` is not a number or ``"auto"``. With options, if an operand is not of
        numbers, or has blocks of another type; with half precision, if an operand is not of float32
        or float64.

    See Also
    --------
    explain : Shows the plan.

    Notes
    -----
    A product with options runs as a gang even if plain Dask is predicted to be quicker. Without a
    gang, for example if dask_dgpu is not enabled, Dask computes it and ignores the options.

    In half precision an element has an error of at most ``2 eps sqrt(K) |a_i| |b_j|``, with the
    Euclidean norms of its row of ``a`` and its column of ``b``, the length K of the contraction,
    and eps = 2**-10 for float16 and 2**-7 for bfloat16. A worker's own blocks are not rounded, so
    the error depends on the places of blocks. Infinities, NaN and zeros travel as they are.
    Elements below 2**-28 of the largest of their row or column, or 2**-126 for bfloat16, lose
    relative precision and may become 0. The bound includes them, and
    ``explain(..., measured=True)`` counts them.

    A zero that does not travel is one without any bit: -0.0 and NaN travel. A product of a block
    row of ``a`` and block columns of ``b`` is skipped if one of them has only zeros and the other
    is finite, so infinity times zero still gives NaN. With ``sparse_threshold`` the setting
    ``dgpu.matmul.wire-dtype`` does not apply.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x = da.ones((4, 6), chunks=2)
    >>> dgpu.matmul(x, x.T, strategy="row").compute().sum().item()
    96.0
    """
    a, b = as_array("a", a), as_array("b", b)
    check_choice("strategy", strategy, STRATEGIES)
    if wire_dtype is not None:
        check_choice("wire_dtype", wire_dtype, WIRE_DTYPES)
    options = Options(strategy, wire_dtype, _threshold(sparse_threshold, wire_dtype))
    if options == DEFAULTS:
        product: Array = da.matmul(a, b)
        return product
    for name, x in (("a", a), ("b", b)):
        _check_operand(name, x)
        if wire_dtype not in (None, "exact") and x.dtype.name not in ENCODED:
            what = " or ".join(ENCODED)
            raise TypeError(
                f"expected {name} of {what} for wire_dtype {wire_dtype!r}, got {x.dtype}"
            )
    if wire_dtype is None and sparse_threshold is None and _in_half(a, b):
        optimizer = enabled_optimizer()
        if optimizer is not None:
            options = replace(options, wire_dtype=optimizer.settings.matmul_wire_dtype)
    return _product(a, b, options, forced=True)


def by_setting(a: Any, b: Any, wire_dtype: WireDtype) -> Array | None:
    """Return the product of matrices and vectors, with messages in the precision of the setting.

    Returns
    -------
    dask.array.Array or None
        ``None`` if the setting does not apply, or if Dask reports an error.
    """
    if not (isinstance(a, Array) and isinstance(b, Array)):
        return None
    if a.ndim not in (1, 2) or b.ndim not in (1, 2) or not _in_half(a, b):
        return None
    if a.shape[-1] != b.shape[0]:
        return None
    return _product(a, b, Options(wire_dtype=wire_dtype), forced=False)


def _in_half(a: Array, b: Array) -> bool:
    """Whether the operands of a product can travel in half precision."""
    if any(typename(type(x._meta)) not in CONTAINERS for x in (a, b)):
        return False
    return all(x.dtype.name in ENCODED and not math.isnan(sum(x.shape)) for x in (a, b))


def _product(a: Array, b: Array, options: Options, *, forced: bool) -> Array:
    left = a if a.ndim == 2 else a[np.newaxis, :]
    right = b if b.ndim == 2 else b[:, np.newaxis]
    if left.shape[1] != right.shape[0]:
        raise ValueError(
            f"expected a and b of equal inner lengths, got shapes {a.shape} and {b.shape}"
        )
    _check_strategy(left, right, options.strategy)
    result = deferred(
        "matmul",
        (left, right),
        (left.chunks[0], right.chunks[1]),
        _plain(left, right).dtype.name,
        options,
        lambda output, nodes: MatmulPiece(
            output, nodes[0], nodes[1], options=options, forced=forced
        ),
        _expand,
    )
    product: Array = result[
        (slice(None) if a.ndim == 2 else 0), (slice(None) if b.ndim == 2 else 0)
    ]
    return product


def _threshold(value: Any, wire_dtype: WireDtype | None) -> SparseThreshold:
    """Return the density below which zeros do not travel."""
    what = "a density above 0 and at most 1, 'auto' or None"
    if value is not None and wire_dtype not in (None, "exact"):
        raise ValueError(
            f"expected wire_dtype None or 'exact' with sparse_threshold, got {wire_dtype!r}"
        )
    if value is None or (isinstance(value, str) and value == "auto"):
        return value  # type: ignore[return-value]
    density = real("sparse_threshold", value, what)
    if not 0 < density <= 1:
        expected("sparse_threshold", what, value)
    return density


def _check_operand(name: str, x: Array) -> None:
    if x.ndim not in (1, 2):
        raise ValueError(f"expected {name} with 1 or 2 axes because of options, got {x.ndim}")
    check_dtype(name, x, kinds="biufc")
    check_chunk_sizes(name, x)
    check_container(name, x)


def _check_strategy(left: Array, right: Array, strategy: Strategy) -> None:
    """Raise if there is nothing to divide."""
    parts = {
        "row": ("block rows of a", left.numblocks[0]),
        "column": ("block columns of b", right.numblocks[1]),
        "inner": ("elements along the contraction", left.shape[1]),
    }
    divided = {"auto": (), "summa": ("row", "column")}.get(strategy, (strategy,))
    for name in divided:
        what, count = parts[name]
        if count < 2:
            raise ValueError(f"expected at least 2 {what} for strategy {strategy!r}, got {count}")


def _expand(piece: MatmulPiece) -> Array:
    """Return the output by plain Dask, for blocks of any type."""
    return _plain(*map(array_of, piece.inputs))


def _plain(left: Array, right: Array) -> Array:
    """Return Dask's own product, with tasks even for operands of different chunks."""
    with any_chunks():
        chunks, _ = da.unify_chunks(left, "ij", right, "jk")
        left, right = (
            x.rechunk({axis: chunks["j"]}, method="tasks") for axis, x in ((1, left), (0, right))
        )
        product: Array = MATMUL(left, right)
    return product
