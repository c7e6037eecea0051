"""Functions of the tasks of a sum: sum a block, add partial sums, and round the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dask_dgpu.kernels.sums.partial import Exact, Kind, Partial, added, finished, partial_sum


def sum_block(
    block: Any,
    axis: tuple[int, ...],
    keepdims: bool,
    method: Exact,
    result: str,
    computing_meta: bool = False,
) -> Any:
    """Sum a block for a result of dtype ``result``; the chunk function of a Dask reduction."""
    return block if computing_meta else partial_sum(block, axis, method, result)


def add_partials(
    partials: Any,
    axis: tuple[int, ...],
    keepdims: bool,
    computing_meta: bool = False,
) -> Any:
    """Add partial sums, in Dask's nested lists; the combine function."""
    return partials if computing_meta else added(list(_flat(partials)))


def finish(
    partials: Any,
    axis: tuple[int, ...],
    keepdims: bool,
    kind: Kind,
    result: str,
    computing_meta: bool = False,
) -> Any:
    """Add partial sums and round them to the dtype ``result``; the aggregate function."""
    if computing_meta:
        return partials
    values = finished(added(list(_flat(partials))), kind, result, axis, keepdims)
    return values[()]  # NumPy's own sums without remaining axes are scalars


def _flat(partials: Any) -> Iterator[Partial]:
    if isinstance(partials, Sequence):
        for each in partials:
            yield from _flat(each)
    else:
        yield partials
