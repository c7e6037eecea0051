"""Blocks of axes of length 1, which Dask joins without declaring it."""

from __future__ import annotations

from functools import cache, wraps
from itertools import chain
from typing import Any

from dask.array.core import Array

from graph_opt.dask_graph.functions import Function


@cache
def joining(blockwise: Function) -> Function:
    """Wrap Dask's ``blockwise`` so that it declares as many blocks as it makes.

    Dask joins the blocks of an axis of length 1, as a selection leaves them, to broadcast it. It
    still declares all: results have the block twice, or lack it.
    """

    @wraps(blockwise)
    def build(*args: Any, **kwargs: Any) -> Any:
        pairs = list(zip(args[2::2], args[3::2], strict=False))
        kinds = [(ind, getattr(x, "chunks", None)) for x, ind in pairs]
        if kwargs.get("align_arrays", True) and any(kind != kinds[0] for kind in kinds):
            pairs = [(_joined(x) if ind is not None else x, ind) for x, ind in pairs]
        return blockwise(*args[:2], *chain.from_iterable(pairs), **kwargs)

    return build


def _joined(array: Any) -> Any:
    """Return an array with one block along each axis of length 1."""
    if not isinstance(array, Array):
        return array
    sizes = enumerate(array.chunks)
    axes = {axis: 1 for axis, each in sizes if len(each) > 1 and sum(each) == 1}
    return array.rechunk(axes) if axes else array
