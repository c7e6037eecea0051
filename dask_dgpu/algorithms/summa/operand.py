"""The layout of an operand of a product, and the form of its pieces in messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dask_dgpu.algorithms.summa.wire import EXACT, Encoding
from graph_opt.model.layout import Cuts, Layout

Block = tuple[int, int]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Matrix = Mapping[Block, Any]
"""Blocks of a matrix."""

ALIGN = 16
"""Pieces in a message start at multiples of this, in bytes; views of any dtype are aligned."""


def aligned(nbytes: Any) -> Any:
    """Round bytes up to a multiple of ``ALIGN``."""
    return -(-nbytes // ALIGN) * ALIGN


@dataclass(frozen=True)
class Operand(Layout):
    """The layout of a matrix, its dtype, and how its pieces travel."""

    dtype: str
    encoding: Encoding = EXACT

    @property
    def rows(self) -> Cuts:
        """Cuts of the rows."""
        return self.cuts[0]

    @property
    def columns(self) -> Cuts:
        """Cuts of the columns."""
        return self.cuts[1]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @cached_property
    def ranks(self) -> Ints:
        """The rank of each block, as a matrix."""
        return np.array(self.owners, np.int64).reshape(self.grid)

    @cached_property
    def sizes(self) -> Floats:
        """The bytes of each block, as a matrix."""
        heights, widths = map(np.diff, self.cuts)
        return np.outer(heights, widths).astype(float) * self.itemsize

    @property
    def travelling(self) -> Floats:
        """The bytes of the elements of each block in messages, as a matrix."""
        return self.sizes * (self.encoding.element_bytes(self.itemsize) / self.itemsize)

    def piece_bytes(self, heights: Any, widths: Any) -> Any:
        """Return the bytes in messages of pieces of these heights and widths."""
        return self.encoding.piece_bytes(heights, widths, self.itemsize)

    def shares(self, size: int) -> Ints:
        """Return the bytes of the blocks of each of ``size`` ranks."""
        return np.bincount(self.ranks.ravel(), self.sizes.ravel(), size).astype(np.int64)
