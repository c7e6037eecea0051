"""``dask.array.einsum`` of many operands, two at a time, with the dtype and chunks of Dask."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.utils import typename

from dask_dgpu.array.chunks import any_chunks
from dask_dgpu.array.einsum import einsum
from dask_dgpu.array.einsum.parse import Subscripts, arguments, parse
from graph_opt.model.layout import CONTAINERS

FEWEST = 3
"""Fewest operands that are not left to Dask."""


@functools.cache
def pairwise(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``da.einsum`` so that three operands or more are multiplied two at a time.

    Dask's own is one loop over all indices. Calls that it computes in another dtype, or with
    arguments of its own, stay with it.
    """

    @functools.wraps(original)
    def function(*operands: Any, optimize: Any = False, **others: Any) -> Any:
        text, given = arguments(operands[0], operands[1:]) if operands else ("", ())
        if others or len(given) < FEWEST or _has_limit(optimize) or not _is_narrow(given):
            return original(*operands, optimize=optimize, **others)
        arrays = [da.asarray(each) for each in given]
        parsed = parse(text, [x.shape for x in arrays])
        split = _split(arrays, parsed, original)
        return einsum(text, *split, optimize="auto" if optimize is False else optimize)

    return function


def _has_limit(optimize: Any) -> bool:
    """Whether it is NumPy's name of a search with a number of elements."""
    return isinstance(optimize, tuple | list) and any(isinstance(each, Real) for each in optimize)


def _is_narrow(operands: Sequence[Any]) -> bool:
    """Whether these are arrays of known chunks, in a dtype that sums in Dask do not widen."""
    if not all(isinstance(x, Array | np.ndarray) for x in operands):
        return False
    if not all(typename(type(getattr(x, "_meta", x))) in CONTAINERS for x in operands):
        return False
    if any(x.dtype.kind not in "biufc" or math.isnan(sum(x.shape)) for x in operands):
        return False
    dtype = np.result_type(*(x.dtype for x in operands))
    return np.zeros(1, dtype).sum().dtype == dtype


def _split(
    operands: Sequence[Array], subscripts: Subscripts, original: Callable[..., Any]
) -> list[Array]:
    """Return operands in such chunks that the result has the chunks of Dask's.

    Dask splits operands where blocks of the result would be much larger than theirs. It
    compares the largest blocks, so one block along each summed index is enough to ask it.
    """
    longest: dict[str, int] = {}
    for x, term in zip(operands, subscripts.inputs, strict=True):
        for index, sizes in zip(term, x.chunks, strict=True):
            longest[index] = max(longest.get(index, 1), *sizes)
    like = []
    for x, term in zip(operands, subscripts.inputs, strict=True):
        chunks = tuple(
            sizes if index in subscripts.output else (min(longest[index], sum(sizes)),)
            for index, sizes in zip(term, x.chunks, strict=True)
        )
        like.append(da.empty(tuple(map(sum, chunks)), chunks=chunks))
    with any_chunks():
        result = original(str(subscripts), *like)
    wanted = dict(zip(subscripts.output, result.chunks, strict=True))
    return [
        x.rechunk(
            {
                axis: wanted[index]
                for axis, index in enumerate(term)
                if index in wanted and x.shape[axis] == sum(wanted[index])
            }
        )
        for x, term in zip(operands, subscripts.inputs, strict=True)
    ]
