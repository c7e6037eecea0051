"""Chunks of an axis of length 1 in several blocks, as a selection leaves them."""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

from dask.array.core import Array

from graph_opt.dask_graph.functions import Function


@cache
def unifying(unify_chunks: Function) -> Function:
    """Wrap Dask's ``unify_chunks`` so that it declares as many blocks as it leaves.

    Dask joins blocks of lengths 0 and 1 to broadcast them, and declares two blocks: its results
    have the block twice, or lack it.
    """

    @wraps(unify_chunks)
    def unify(*args: Any, **kwargs: Any) -> Any:
        chunks, arrays = unify_chunks(*args, **kwargs)
        for letter, sizes in chunks.items():
            if len(sizes) > 1 and sum(sizes) == 1 and _is_joined(letter, arrays, args[1::2]):
                chunks[letter] = (1,)
        return chunks, arrays

    return unify


def _is_joined(letter: Any, arrays: Any, indices: Any) -> bool:
    """Whether all arrays with an axis have one block along it."""
    return all(
        array.numblocks[list(index).index(letter)] == 1
        for array, index in zip(arrays, indices, strict=True)
        if index is not None and letter in index and isinstance(array, Array)
    )
