"""Dask arrays as operands in this process: what they read, and the memory to compute them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.blockwise import Blockwise
from dask.core import flatten

from dask_dgpu.batches.blocks import largest_nbytes
from dask_dgpu.batches.held import held
from dask_dgpu.batches.sizes import Declared
from dask_dgpu.batches.streamed import tasks_of
from graph_opt.dask_graph.internals import DataNode, TaskRef
from graph_opt.dask_graph.members import GETTERS


def source_of(array: Array) -> Any:
    """Return the array that a graph does nothing but read, ``None`` for other graphs.

    It is that of ``da.from_zarr``, or of ``da.from_array`` without a lock.
    """
    if array.dask.layers.keys() - {array.name, f"original-{array.name}"}:
        return None
    layer = array.dask.layers.get(array.name)
    source = _read_by(layer, array)
    same = all(getattr(source, each, None) == getattr(array, each) for each in ("shape", "dtype"))
    return source if same and not layer.task.kwargs.get("lock") else None


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
        if not prod(shape):
            return 0
        count = prod(
            _most_blocks(sizes, n) for sizes, n in zip(self.array.chunks, shape, strict=True)
        )
        working, are_made = self._work
        return working + are_made * count * self._largest

    @property
    def _largest(self) -> int:
        return largest_nbytes(self.array.chunks, self.array.dtype.itemsize)

    @cached_property
    def _work(self) -> tuple[int, bool]:
        """The bytes that tasks take beside their results, and whether they make these."""
        tasks = tasks_of(self.array)
        found = held(tasks, Declared(self.array, (), {}, self._largest), self.threads)
        keys = flatten(self.array.__dask_keys__())
        are_made = any(not isinstance(tasks[key], DataNode) for key in keys)
        return max(0, found.nbytes - are_made * self.threads * self._largest), are_made


def _most_blocks(sizes: Sequence[int], length: int) -> int:
    """Return with how many blocks a span of this length, wherever it begins, has elements."""
    cuts = np.cumsum(sizes)
    last = np.searchsorted(cuts, np.minimum(cuts + length - 2, cuts[-1] - 1), side="right")
    return int(np.max(last - np.arange(len(sizes)))) + 1
