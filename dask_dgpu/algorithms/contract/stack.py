"""Arrays of any number of axes as stacks of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from itertools import product as cartesian
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.algorithms import Array, Blocks
from dask_dgpu.comm.common import contiguous
from graph_opt.model.layout import Bare, Blocked, Index, Layout, cuts_of

Axes = tuple[int, ...]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Stack(Bare):
    """Some blocks of an array as blocks of a stack of matrices.

    ``groups`` are the axes of the array for each axis of the stack, in row-major order. An axis
    without a group has length 1. For each axis of the array, ``grid`` is the number of blocks, and
    ``kept`` has those that are in the stack.
    """

    groups: tuple[Axes, ...]
    grid: tuple[int, ...]
    kept: tuple[Axes, ...]

    @classmethod
    def of(
        cls,
        letters: str,
        groups: Sequence[str],
        grid: tuple[int, ...],
        kept: Mapping[str, Axes],
    ) -> Stack:
        """Group axes by their letters; all blocks are kept along axes without an entry."""
        blocks = (
            kept.get(letter, range(count)) for letter, count in zip(letters, grid, strict=True)
        )
        axes = (tuple(map(letters.index, group)) for group in groups)
        return cls(tuple(axes), grid, tuple(map(tuple, blocks)))

    @cached_property
    def order(self) -> Axes:
        """All axes of the array, group by group."""
        grouped = tuple(chain(*self.groups))
        return (*grouped, *(axis for axis in range(len(self.grid)) if axis not in grouped))

    def layout(self, layout: Layout) -> Layout:
        """Return the layout of the stack, given that of the array."""
        lengths = [
            [sizes[at] for at in blocks]
            for sizes, blocks in zip(layout.lengths, self.kept, strict=True)
        ]
        cuts = (
            cuts_of([prod(sizes) for sizes in cartesian(*(lengths[axis] for axis in group))])
            for group in self.groups
        )
        owners = np.reshape(layout.owners, self.grid)[np.ix_(*self.kept)].transpose(self.order)
        return Layout(tuple(cuts), tuple(owners.ravel().tolist()))

    def spread(self, owners: Sequence[int]) -> tuple[int, ...]:
        """Return the owners of the array's blocks, -1 outside the stack, given the stack's."""
        ordered = np.reshape(owners, [len(self.kept[axis]) for axis in self.order])
        whole = np.full(self.grid, -1, np.int64)
        whole[np.ix_(*self.kept)] = ordered.transpose(np.argsort(self.order))
        return tuple(whole.ravel().tolist())

    @cached_property
    def places(self) -> dict[Index, Index]:
        """The index in the stack of each block of the array that is in it."""
        grid = (prod(len(self.kept[axis]) for axis in group) for group in self.groups)
        ordered = cartesian(*(self.kept[axis] for axis in self.order))
        back = np.argsort(self.order).tolist()
        places = zip(ordered, cartesian(*map(range, grid)), strict=True)
        return {tuple([at[axis] for axis in back]): place for at, place in places}

    def blocks(self, blocks: Blocks) -> dict[Index, Array]:
        """Return the blocks of the stack, given those of the array."""
        return {
            self.places[index]: self._stacked(block)
            for index, block in blocks.items()
            if index in self.places
        }

    def restored(self, blocks: dict[Index, Array], array: Blocked) -> dict[Index, Array]:
        """Return blocks of the array, C-contiguous, given those of the stack, which are emptied."""
        indices = {place: index for index, place in self.places.items()}
        matrices = {}
        while blocks:  # one after the other: some are copied
            place, block = blocks.popitem()
            matrices[indices[place]] = self._restored(block, array.block_shape(indices[place]))
        return matrices

    def _stacked(self, block: Array) -> Array:
        lengths = [prod(block.shape[axis] for axis in group) for group in self.groups]
        return block.transpose(self.order).reshape(lengths)

    def _restored(self, stacked: Array, shape: tuple[int, ...]) -> Array:
        ordered = stacked.reshape([shape[axis] for axis in self.order])
        block = ordered.transpose(np.argsort(self.order).tolist())
        return contiguous(block)

    def views(self, layout: Layout) -> bool:
        """Whether C-contiguous blocks are stacked without a copy."""
        long = [axis for axis, sizes in enumerate(layout.lengths) if max(sizes, default=0) > 1]
        place = {axis: i for i, axis in enumerate(long)}
        groups = ([place[axis] for axis in group if axis in place] for group in self.groups)
        return all(right == left + 1 for group in groups for left, right in pairwise(group))
