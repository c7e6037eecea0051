"""Contractions of many Dask arrays, in the order of least work and within a memory limit.

``dask.array.einsum`` of three operands or more is one loop over all indices. Here opt_einsum
finds the order of least work; each step of it multiplies two arrays: a batched product, or
an elementwise one if no index is summed.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> x = da.ones((4, 6), chunks=2)
>>> dgpu.einsum("ij,kj,kl->il", x, x, x)[:2].compute().tolist()
[[24.0, 24.0, 24.0, 24.0, 24.0, 24.0], [24.0, 24.0, 24.0, 24.0, 24.0, 24.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import (
    as_array,
    bytes_of,
    check_chunk_sizes,
    check_container,
    check_dtype,
    expected,
)
from dask_dgpu.array.einsum.expression import contraction, reduced
from dask_dgpu.array.einsum.parse import Subscripts, arguments, parse
from dask_dgpu.array.einsum.path import EinsumPath, EinsumStep
from dask_dgpu.array.einsum.slices import plan
from dask_dgpu.kinds import of_either_kind

__all__ = ["EinsumPath", "EinsumStep", "einsum", "einsum_path"]


@of_either_kind
def einsum(
    subscripts: Any,
    *operands: Any,
    optimize: Any = "auto",
    memory_limit: int | str | None = None,
) -> Array:
    """Multiply arrays, and sum over indices, as ``numpy.einsum``.

    Parameters
    ----------
    subscripts : str
        As in ``numpy.einsum``: the indices of each operand, separated by commas, and those of
        the result after ``->``. Without ``->`` the result has the indices that occur once, in
        the order of the alphabet. ``...`` stands for axes that are broadcast, and an index
        that occurs twice in an operand for its diagonal. The other form of a call is
        allowed too: ``einsum(x, [0, 1], y, [1, 2], [0, 2])``.
    *operands : array_like
        Dask arrays in any chunks, or input of ``dask.array.asarray``. Blocks are NumPy or
        CuPy arrays.
    optimize : str, sequence of tuple of int or EinsumPath, optional
        ``"auto"`` selects a search of opt_einsum for the number of operands; ``"greedy"``,
        ``"optimal"`` and ``"dp"`` are such searches. Or a path: from :func:`einsum_path`, or
        in the form of ``numpy.einsum_path``.
    memory_limit : int or str, optional
        Most bytes of an intermediate, as ``"2 GiB"``; by default there is no limit. If an
        intermediate is larger, the contraction is computed in slices along an index.
        Operands and the result do not count.

    Returns
    -------
    dask.array.Array
        Of NumPy's dtype. Its chunks are those of the operands' indices.

    Raises
    ------
    ValueError
        If the subscripts are malformed, or do not fit the number of operands, their axes or
        sizes; if ``optimize`` is no path for these operands, or chunk sizes are unknown; if
        ``memory_limit`` is not above 0, or so small that over 1024 slices were needed.
    TypeError
        If an argument has another type, or an operand is not of numbers.

    See Also
    --------
    einsum_path : Order and cost, without the result.

    Notes
    -----
    Diagonals and sums over indices of one operand come first. Then each step multiplies two
    operands, as ``dask.array.einsum`` does; while dask_dgpu is enabled, gangs run such
    products. Steps without a summed index are elementwise.

    Operands are converted to the dtype of the result first, so integers do not wrap around in
    a narrower one. Slices are independent: Dask may compute several of them at the same time.

    References
    ----------
    .. [1] D. G. A. Smith and J. Gray, "opt_einsum: a Python package for optimizing contraction
       order for einsum-like expressions", Journal of Open Source Software 3 (2018).

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x = da.arange(6, chunks=2).reshape(2, 3)
    >>> dgpu.einsum("ij,kj->ik", x, x).compute().tolist()
    [[5, 14], [14, 50]]
    >>> dgpu.einsum("ij->j", x).compute().tolist()
    [3, 5, 7]
    """
    text, arrays_given = arguments(subscripts, operands)
    parsed, arrays, chunks = _prepared(text, [*map(_checked, count(), arrays_given)])
    limit = _limit(memory_limit)
    path = plan(parsed, [x.dtype for x in arrays], chunks, optimize, limit)
    return contraction(arrays, parsed, path)


@of_either_kind
def einsum_path(
    subscripts: Any,
    *operands: Any,
    optimize: Any = "auto",
    memory_limit: int | str | None = None,
) -> EinsumPath:
    """Return the order of an :func:`einsum`, its cost and its largest intermediate.

    Parameters
    ----------
    subscripts : str
        As in :func:`einsum`.
    *operands : array_like or tuple of int
        Arrays, or their shapes.
    optimize : str, sequence of tuple of int or EinsumPath, optional
        As in :func:`einsum`.
    memory_limit : int or str, optional
        As in :func:`einsum`; it needs arrays, whose dtypes are known.

    Returns
    -------
    EinsumPath
        It prints and displays as a table, and can be passed to :func:`einsum` as
        ``optimize``.

    Raises
    ------
    ValueError
        As in :func:`einsum`.
    TypeError
        As in :func:`einsum`, and for a ``memory_limit`` with shapes.

    See Also
    --------
    einsum : The result.

    Examples
    --------
    >>> import dask_dgpu as dgpu
    >>> path = dgpu.einsum_path("ij,jk,kl->il", (1000, 2), (2, 1000), (1000, 3))
    >>> path.path, path.flops, path.largest_intermediate
    (((1, 2), (0, 1)), 24000, 6)
    """
    text, given = arguments(subscripts, operands)
    limit = _limit(memory_limit)
    if not any(map(_is_shape, given)):
        parsed, arrays, chunks = _prepared(text, [*map(_checked, count(), given)])
        return plan(parsed, [x.dtype for x in arrays], chunks, optimize, limit)
    if limit is not None:
        expected("operands", "arrays for a memory_limit", next(filter(_is_shape, given)), TypeError)
    shapes = [each if _is_shape(each) else _checked(i, each).shape for i, each in enumerate(given)]
    return plan(parse(text, shapes), None, {}, optimize, None)


def _checked(at: int, value: Any) -> Array:
    """Return an operand as a Dask array of numbers with known chunks."""
    name = f"operand {at}"
    x: Array = as_array(name, value)
    check_dtype(name, x, kinds="biufc", what="bools or numbers")
    check_container(name, x)
    check_chunk_sizes(name, x)
    return x


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(each) is int and each >= 0 for each in value)


def _limit(memory_limit: int | str | None) -> int | None:
    return None if memory_limit is None else bytes_of("memory_limit", memory_limit)


def _prepared(
    text: str, operands: Sequence[Array]
) -> tuple[Subscripts, list[Array], dict[str, tuple[int, ...]]]:
    """Return the subscripts, the reduced operands in equal chunks, and the chunks of indices."""
    parsed = parse(text, [x.shape for x in operands])
    dtype = np.result_type(*(x.dtype for x in operands))
    arrays = [
        reduced(x, term, wanted, dtype)
        for x, term, wanted in zip(operands, parsed.inputs, parsed.reduced, strict=True)
    ]
    pairs = zip(arrays, parsed.reduced, strict=True)
    chunks, unified = da.unify_chunks(*(each for pair in pairs for each in pair), warn=False)
    return parsed, list(unified), chunks
