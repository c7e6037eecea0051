"""What the tasks of a sum do: sum a block, add such sums, and make numbers of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from dask.utils import typename

from dask_dgpu.kernels import binned, compensated
from dask_dgpu.kernels.binned import Binned
from dask_dgpu.kernels.compensated import Pair

Array = Any
Sums = Pair | Binned
Exact = Literal["compensated", "reproducible"]

FEW_BYTES = 1 << 16
"""Sums of up to so many bytes are added on the host: a GPU would only wait for launches."""

KERNELS: dict[str, Any] = {"compensated": compensated, "reproducible": binned}


@dataclass(frozen=True)
class Partial:
    """The sums of a part of an array, with summed axes of length one.

    Parameters
    ----------
    sums : Pair or Binned
        The sums; of complex numbers with a last axis for real and imaginary part.
    count : int
        Numbers in each sum.
    container : str
        The type of the blocks.
    parts : int
        Two for complex numbers, one for real ones.
    """

    sums: Sums
    count: int
    container: str
    parts: int

    def __sizeof__(self) -> int:
        """Return the bytes of the arrays, which Dask asks for."""
        return sys.getsizeof(self.sums)


def sum_block(
    block: Array,
    axis: tuple[int, ...],
    keepdims: bool,
    method: Exact,
    computing_meta: bool = False,
) -> Any:
    """Sum a block; the chunk function of a Dask reduction."""
    if computing_meta:
        return block
    if block.dtype.kind not in "biufc":
        raise TypeError(f"a block has the dtype {block.dtype}, which has no sum of this kind")
    parts = 2 if block.dtype.kind == "c" else 1
    shape = [1 if k in axis else length for k, length in enumerate(block.shape)]
    if parts == 2:
        shape.append(2)
    sums = KERNELS[method].block_sum(block, axis).reshaped(tuple(shape))
    if isinstance(sums, Pair) and sums.sums.nbytes <= FEW_BYTES:
        sums = sums.on_host()
    count = prod(block.shape[k] for k in axis)
    return Partial(sums, count, typename(type(block)), parts)


def add_partials(
    partials: Any,
    axis: tuple[int, ...],
    keepdims: bool,
    computing_meta: bool = False,
) -> Any:
    """Add sums of parts, in nested lists as Dask gives them; the combine function."""
    if computing_meta:
        return partials
    found = list(_flat(partials))
    merged: Any = compensated.merged if isinstance(found[0].sums, Pair) else binned.merged
    sums = merged([partial.sums for partial in found])
    count = sum(partial.count for partial in found)
    return Partial(sums, count, found[0].container, found[0].parts)


def finish(
    partials: Any,
    axis: tuple[int, ...],
    keepdims: bool,
    kind: Literal["sum", "mean"],
    result: str,
    computing_meta: bool = False,
) -> Any:
    """Add sums of parts and round them to the dtype ``result``; the aggregate function."""
    if computing_meta:
        return partials
    whole = add_partials(partials, axis, keepdims=True)
    values = _rounded(whole, kind, np.dtype(result))
    if not keepdims:
        values = values.squeeze(axis=axis)
    if whole.container.startswith("cupy"):
        import cupy

        return cupy.asarray(values)
    return values[()]


def _rounded(whole: Partial, kind: str, result: np.dtype[Any]) -> Array:
    real = np.empty(0, result).real.dtype.name
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if kind == "mean":
            values = whole.sums.value() / whole.count
        elif isinstance(whole.sums, Binned):
            values = whole.sums.value(real)
        else:
            values = whole.sums.value()
        values = values.astype(real)
        if whole.parts == 2:
            values = np.ascontiguousarray(values).view(np.dtype(f"c{2 * values.itemsize}"))[..., 0]
        return values.astype(result)


def _flat(partials: Any) -> Iterator[Partial]:
    if isinstance(partials, Sequence):
        for each in partials:
            yield from _flat(each)
    else:
        yield partials
