"""Messages whose pieces with many zeros are compressed; empty pieces do not travel.

Ranks count the zeros of their pieces where they lie, in one pass, and tell each other the counts.
From then on all know the size of every piece. Messages take at most the planned bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from dask_dgpu.algorithms import Array
from dask_dgpu.algorithms.summa.plan import Matrix, SummaPlan
from dask_dgpu.algorithms.summa.schedule import Messages, Piece, Step, aligned
from dask_dgpu.algorithms.summa.wire import Sent, Zeros
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels import zeros
from dask_dgpu.kernels.device import Device

Place = tuple[int, tuple[int, int], int, int, int, int]


class Compressed(Messages):
    """The messages of a rank. A piece below the threshold of its operand is compressed.

    A piece is skipped in products if it is empty and the other operand has no infinity and no NaN:
    these times 0 are NaN.
    """

    def __init__(
        self,
        plan: SummaPlan,
        comm: Comm,
        device: Device,
        steps: list[Step],
        operands: list[Matrix],
        sent: Sent,
    ) -> None:
        super().__init__(plan, comm, device, steps, operands, sent)
        thresholds = [each.threshold for each in self.encodings if isinstance(each, Zeros)]
        self.threshold = min(thresholds)
        self.itemsizes = plan.a.itemsize, plan.b.itemsize
        self.sent.lost = None
        self._nonzero: dict[Place, int] = {}
        self._finite = [True, True]
        self._count(device, steps)

    def nbytes(self, piece: Piece) -> int:
        """Return the bytes of a piece in its message."""
        count, nonzero, itemsize = self._facts(piece)
        if nonzero >= self.threshold * count:
            return piece.nbytes
        return min(piece.nbytes, zeros.compressed_bytes(nonzero, count, itemsize))

    def counts(self, step: Step) -> tuple[list[int], list[int]]:
        """Return the bytes to and from each rank."""
        sent, received = (
            [sum(aligned(self.nbytes(piece)) for piece in pieces) for pieces in by_rank]
            for by_rank in (step.sends, step.receives)
        )
        return sent, received

    def encode(self, piece: Piece, values: Array, message: Array) -> Any:
        """Write a piece to its bytes in a message."""
        if message.nbytes == piece.nbytes:
            return super().encode(piece, values, message)
        _, nonzero, _ = self._facts(piece)
        if nonzero:
            zeros.compress(values, nonzero, message)
        return None

    def decode(self, piece: Piece, message: Array, out: Array) -> None:
        """Read a piece from its bytes in a message."""
        if message.nbytes == piece.nbytes:
            super().decode(piece, message, out)
            return
        _, nonzero, _ = self._facts(piece)
        if nonzero:
            zeros.expand(message, nonzero, self.dtypes[piece.operand], out)
        else:
            out[...] = 0

    def skips(self, piece: Piece) -> bool:
        """Whether products need no part of a piece."""
        return not self._nonzero[_place(piece)] and self._finite[1 - piece.operand]

    def _facts(self, piece: Piece) -> tuple[int, int, int]:
        """Return the numbers of a piece, those that are not zero, and the bytes of an element."""
        itemsize = self.itemsizes[piece.operand]
        count = zeros.numbers(piece.shape[0] * piece.shape[1], itemsize)
        return count, self._nonzero[_place(piece)], itemsize

    def _count(self, device: Device, steps: list[Step]) -> None:
        """Count the zeros of this rank's pieces, and learn about those that it receives."""
        own = {_place(piece): piece for piece in chain(_local(steps), *_by_rank(steps, "sends"))}
        known = dict(zip(own, self._measured(device, list(own.values())), strict=True))
        told = [[known[_place(piece)] for piece in pieces] for pieces in _by_rank(steps, "sends")]
        awaited = _by_rank(steps, "receives")
        if any(step.moves for step in steps):
            sizes, expected = list(map(len, told)), list(map(len, awaited))
            out = device.to_device(np.array([*chain(*told)], np.int64))
            inbox = device.empty(sum(expected), "int64")
            self.comm.all_to_all(inbox, expected, out, sizes).wait()
            device.synchronize()
            facts = device.to_host(inbox).tolist()
            known.update(zip(map(_place, chain(*awaited)), facts, strict=True))
        for piece in chain(_local(steps), *awaited):
            self._finite[piece.operand] &= bool(known[_place(piece)] & 1)
        self._nonzero = {place: fact >> 1 for place, fact in known.items()}

    def _measured(self, device: Device, pieces: list[Piece]) -> list[int]:
        """Return twice the numbers that are not zero of each piece, plus 1 if all are finite."""
        found = device.zeros(len(pieces), "int64")
        for at, piece in enumerate(pieces):
            values = self.operands[piece.operand][piece.block][piece.source]
            finite = values.dtype.kind not in "fc" or np.isfinite(values).all()
            found[at] = 2 * zeros.count_nonzero(values) + finite
        counts: list[int] = device.to_host(found).tolist()
        return counts


def _local(steps: list[Step]) -> Iterator[Piece]:
    return chain.from_iterable(step.local for step in steps)


def _by_rank(steps: list[Step], way: str) -> list[list[Piece]]:
    """Return the pieces to or from each rank, in the order of the steps."""
    return [
        [*chain(*pieces)] for pieces in zip(*(getattr(step, way) for step in steps), strict=True)
    ]


def _place(piece: Piece) -> Place:
    rows, columns = piece.source
    return piece.operand, piece.block, rows.start, rows.stop, columns.start, columns.stop
