"""Tables of pieces that a rank sends, receives or keeps, as input of the copy kernel.

``source`` numbers arrays that are read, ``block`` arrays that are written; positions are
(pieces, axes).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dask_dgpu.algorithms.redistribute.cells import Ints
from dask_dgpu.kernels.pack import Arrays, Described, InArrays, InMessage, Pieces

Array = Any


class Sends(NamedTuple):
    """Pieces for other ranks: from ``start`` in ``source`` to ``at`` in the message."""

    shapes: Ints
    source: Ints
    start: Ints
    at: Ints

    def pieces(self, message: Array, sources: Arrays, described: Described) -> Pieces:
        """Return the copies into a message."""
        places = InArrays(sources, self.source, self.start)
        return Pieces(self.shapes, InMessage(message, self.at), places, described)


class Receives(NamedTuple):
    """Pieces from other ranks: from ``at`` in the message to ``start`` in ``block``."""

    shapes: Ints
    at: Ints
    block: Ints
    start: Ints

    def pieces(self, message: Array, blocks: Arrays, described: Described) -> Pieces:
        """Return the copies out of a message."""
        places = InArrays(blocks, self.block, self.start)
        return Pieces(self.shapes, places, InMessage(message, self.at), described)


class Stays(NamedTuple):
    """Pieces for the same rank: from ``source_start`` in ``source`` to ``start`` in ``block``."""

    shapes: Ints
    source: Ints
    source_start: Ints
    block: Ints
    start: Ints

    def pieces(self, sources: Arrays, blocks: Arrays, described: Described) -> Pieces:
        """Return the copies between arrays."""
        targets = InArrays(blocks, self.block, self.start)
        return Pieces(
            self.shapes, targets, InArrays(sources, self.source, self.source_start), described
        )
