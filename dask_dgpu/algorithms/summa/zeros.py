"""Zeros of the operands, counted before the first step.

Every rank counts the zeros of its own pieces and tells the counts to their receivers, in one
exchange of 8 bytes a piece. So both ends of each message know its form and its size, and receivers
know which products would add only zeros::

      A      x     B       a piece of A without a bit set, and B finite:
    [  0   ]   [ 1  2 ]    +0 or -0 would be added to sums that are never -0
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, islice
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from dask_dgpu.algorithms.summa.plan import Block, PanelStep, Piece, Pieces, SummaPlan
from dask_dgpu.algorithms.summa.wire import Sent, Sparse
from dask_dgpu.comm.common import exchange_now
from dask_dgpu.kernels import zeros
from graph_opt.model.layout import Span

if TYPE_CHECKING:
    from dask_dgpu.algorithms.summa.rank import Product

Line = tuple[int, int]
"""An operand and its block row, of A, or block column, of B."""

Place = tuple[Span, Span]
"""A piece of a block: its rows and columns."""

Source = tuple[int, Block, Place]
"""An operand, a block of it, and a piece of the block."""


@dataclass
class Known:
    """The steps, and for each the parts of a panel with only zeros, and those that are not finite.

    Complex products are not skipped: BLAS may change the sign of a zero there.
    """

    sent: Sent
    complex: bool
    steps: list[PanelStep] = field(default_factory=list)
    nonzero: list[set[Line]] = field(default_factory=list)
    infinite: list[set[Line]] = field(default_factory=list)

    def add(self, step: PanelStep, counts: Iterable[tuple[Piece, int]]) -> None:
        """Add a step with the counts of its local and received pieces."""
        nonzero: set[Line] = set()
        infinite: set[Line] = set()
        for piece, count in counts:
            line = piece.operand, piece.block[piece.operand]
            if count:
                nonzero.add(line)
            if count < 0:
                infinite.add(line)
        self.steps.append(step)
        self.nonzero.append(nonzero)
        self.infinite.append(infinite)

    def skips(self, step: int, row: int, columns: Span, shape: tuple[int, ...]) -> bool:
        """Whether a product of a block row and block columns can be left out; counts it.

        Products with vectors are not left out: BLAS adds each element of these to the sum by
        itself, so a product that underflows may leave -0.
        """
        if self.complex or min(shape) < 2:
            return False
        left, right = {(0, row)}, {(1, j) for j in range(*columns)}
        nonzero, infinite = self.nonzero[step], self.infinite[step]
        skipped = (left.isdisjoint(nonzero) and right.isdisjoint(infinite)) or (
            right.isdisjoint(nonzero) and left.isdisjoint(infinite)
        )
        self.sent.skipped += skipped
        return skipped


def count_zeros(product: Product) -> Known:
    """Count the zeros of all pieces, and give those in messages their form, as all ranks do."""
    plan, sent = product.plan, product.sent or Sent()
    known = Known(sent, np.dtype(plan.dtype).kind == "c")
    own = _own_counts(product)
    theirs = _exchanged(product, own)
    sent.nbytes += 8 * sum(len(pieces) for step in product.steps for pieces in step.sends)
    for step in product.steps:
        local = [own[_source(piece)] for piece in step.local]
        arrived = [[next(theirs[peer]) for _ in each] for peer, each in enumerate(step.receives)]
        remote = zip(chain(*step.receives), chain(*arrived), strict=True)
        formed = copy(step)
        formed.sends = Pieces(
            [_formed(plan, piece, own[_source(piece)]) for piece in each] for each in step.sends
        )
        formed.receives = Pieces(
            [_formed(plan, *both) for both in zip(each, counts, strict=True)]
            for each, counts in zip(step.receives, arrived, strict=True)
        )
        known.add(formed, chain(zip(step.local, local, strict=True), remote))
    return known


def _own_counts(product: Product) -> dict[Source, int]:
    """Return the counts of this rank's pieces."""
    steps, device = product.steps, product.device
    pieces = {_source(piece): piece for step in steps for piece in chain(step.local, *step.sends)}
    counts = device.zeros(len(pieces), "int64")
    for i, piece in enumerate(pieces.values()):
        counts[i] = zeros.count(product.operands[piece.operand][piece.block][piece.source])
    device.synchronize()
    return dict(zip(pieces, device.to_host(counts).tolist(), strict=True))


def _exchanged(product: Product, own: dict[Source, int]) -> list[Iterator[int]]:
    """Return the counts of the pieces from each rank, in the order of the steps."""
    steps, comm, device = product.steps, product.comm, product.device
    told = [
        [own[_source(piece)] for step in steps for piece in step.sends[peer]]
        for peer in range(comm.size)
    ]
    lengths = [sum(len(step.receives[peer]) for step in steps) for peer in range(comm.size)]
    out = device.to_device(np.array([*chain(*told)], np.int64))
    inbox = device.empty(sum(lengths), "int64")
    exchange_now(comm, out, list(map(len, told)), inbox, lengths)
    device.synchronize()
    counts = iter(device.to_host(inbox).tolist())
    return [iter(list(islice(counts, length))) for length in lengths]


def _source(piece: Piece) -> Source:
    rows, columns = piece.source
    place = (rows.start, rows.stop), (columns.start, columns.stop)
    return piece.operand, piece.block, place


def _formed(plan: SummaPlan, piece: Piece, count: int) -> Piece:
    """Return a piece with its form in messages."""
    operand = plan.operands[piece.operand]
    if not isinstance(operand.encoding, Sparse):
        return piece
    nonzeros = count if count >= 0 else ~count
    form, nbytes = operand.encoding.chosen(prod(piece.shape), nonzeros, operand.itemsize)
    return piece._replace(form=form, nbytes=nbytes)
