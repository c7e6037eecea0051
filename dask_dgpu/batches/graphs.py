"""Dask arrays as operands in this process: what they read, and the memory to compute them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from dask.array.core import Array
from dask.blockwise import Blockwise

from dask_dgpu.batches.blocks import largest_nbytes
from dask_dgpu.batches.held import Rule
from dask_dgpu.batches.streamed import tasks_of
from graph_opt.dask_graph.internals import DataNode, TaskRef
from graph_opt.dask_graph.parse import GETTERS


def sources_of(array: Array) -> list[Any]:
    """Return the arrays from which a graph reads blocks, as ``da.from_array`` of stored ones."""
    return [
        source
        for layer in array.dask.layers.values()
        if (source := _read_by(layer, array)) is not None
    ]


def _read_by(layer: Any, array: Array) -> Any:
    """Return the array from which a layer of a graph reads blocks, ``None`` for other layers."""
    if not isinstance(layer, Blockwise) or getattr(layer.task, "func", None) not in GETTERS:
        return None
    source = layer.indices[0][0]
    if isinstance(source, TaskRef):
        source = array.dask.get(source.key)
    return source.value if isinstance(source, DataNode) else source


@dataclass(frozen=True)
class Computed:
    """A Dask array of which threads of this process compute parts."""

    array: Array
    threads: int

    def bytes_beside(self, shape: Sequence[int]) -> int:
        """Return the bytes for a part of this shape: of the blocks it is copied from, and tasks."""
        if not prod(shape) or not self._working:
            return 0
        chunks = self.array.chunks
        spans = [min(sum(c), n + 2 * (max(c) - 1)) for c, n in zip(chunks, shape, strict=True)]
        return self._working + prod(spans) * self.array.dtype.itemsize

    @cached_property
    def _working(self) -> int:
        """The bytes that threads hold while they compute the whole array, 0 if it is in memory."""
        usual = largest_nbytes(self.array.chunks, self.array.dtype.itemsize)
        return Rule(self.threads, usual=usual).held(tasks_of(self.array), self.array).nbytes
