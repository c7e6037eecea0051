"""Blocks of the operands and results of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise, product
from math import isfinite, prod
from typing import Any
from uuid import uuid4

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph

from graph_opt.model.layout import cuts_of

Chunks = tuple[tuple[int, ...], ...]
Region = tuple[slice, ...]
Room = Callable[[Region], Any]
"""Returns the host memory for a block."""


def array_of(
    blocks: Mapping[tuple[int, ...], Any],
    chunks: Chunks,
    dtype: np.dtype[Any],
    name: str | None = None,
    module: Any = np,
) -> Array:
    """Return a Dask array of blocks by index, without copies, under a name or a new one.

    ``module`` is NumPy or CuPy, whichever the blocks are of.
    """
    name = f"operand-{uuid4().hex}" if name is None else name
    tasks: dict[Any, Any] = {(name, *index): block for index, block in blocks.items()}
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=())
    return Array(graph, name, chunks, meta=module.empty((0,) * len(chunks), dtype))


def regions(chunks: Chunks) -> Iterator[tuple[tuple[int, ...], Region]]:
    """Yield index and place of each block."""
    spans = [[slice(*span) for span in pairwise(cuts_of(sizes))] for sizes in chunks]
    for found in product(*(list(enumerate(each)) for each in spans)):
        yield tuple(at for at, _ in found), tuple(region for _, region in found)


def largest_nbytes(chunks: Chunks, itemsize: int) -> int:
    """Return the bytes of the largest block, 0 if nobody knows."""
    size = prod(max(sizes, default=0) for sizes in chunks)
    return int(size) * itemsize if isfinite(size) else 0


def on_host(block: Any) -> Any:
    """Return a block as a NumPy array or scalar."""
    return block.get() if hasattr(block, "__cuda_array_interface__") else block
