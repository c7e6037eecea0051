"""The transfers of each step: which piece of which block goes to which rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dask_dgpu.algorithms.summa.operand import Block, Operand, aligned
from dask_dgpu.algorithms.summa.plan import SummaPlan
from dask_dgpu.algorithms.summa.traffic import pieces_of
from dask_dgpu.algorithms.summa.wire import Encoding, Sparse
from graph_opt.model.layout import Cuts, Span, overlaps

STEPS = (1, 2, 4, 8, 16)
"""Numbers of panels; more were never faster, since each costs a collective."""

Slices = tuple[slice, slice]


class Piece(NamedTuple):
    """A rectangle of one block, for a panel.

    ``operand`` is 0 for A and 1 for B; ``source`` is a place in the block, ``target`` one in the
    panel; ``encoding`` is its form in a message.
    """

    operand: int
    block: Block
    owner: int
    source: Slices
    target: Slices
    shape: tuple[int, int]
    nbytes: int
    encoding: Encoding


class Step:
    """The work of one rank in one step: local pieces, and those for and from each rank.

    ``moves`` is whether any rank sends in this step; if not, no rank calls the exchange. On several
    hosts it is whether this rank sends or receives. There a rank receives a piece from another host
    and passes it on to ranks of its own, or is ``passed`` it.
    """

    def __init__(self, panel: Span, size: int) -> None:
        self.panel = panel
        self.local: list[Piece] = []
        self.sends: list[list[Piece]] = [[] for _ in range(size)]
        self.receives: list[list[Piece]] = [[] for _ in range(size)]
        self.passes: list[list[Piece]] = [[] for _ in range(size)]
        self.passed: list[list[Piece]] = [[] for _ in range(size)]
        self.moves = False

    @cached_property
    def counts(self) -> tuple[list[int], list[int]]:
        """Bytes to and from each rank."""
        return _nbytes(self.sends), _nbytes(self.receives)

    @cached_property
    def passed_counts(self) -> tuple[list[int], list[int]]:
        """Bytes that are passed to and by each rank of this host."""
        return _nbytes(self.passes), _nbytes(self.passed)

    def add(self, piece: Piece, rank: int, ranks: Sequence[int]) -> None:
        """Add a piece to the work of a rank; each of ``ranks`` needs it from its owner."""
        for destination in ranks:
            if piece.owner == destination:
                if destination == rank:
                    self.local.append(piece)
            elif piece.owner == rank:
                self.sends[destination].append(piece)
            elif destination == rank:
                self.receives[piece.owner].append(piece)

    def add_from_far(self, piece: Piece, rank: int, ranks: Sequence[int]) -> None:
        """Add a piece that one of ``ranks``, which share a host, receives for all."""
        agent = ranks[sum(piece.block) % len(ranks)]
        self.add(piece, rank, [agent])
        if rank == agent:
            for other in ranks:
                if other != rank:
                    self.passes[other].append(piece)
        elif rank in ranks:
            self.passed[agent].append(piece)


def _nbytes(by_rank: list[list[Piece]]) -> list[int]:
    return [sum(aligned(piece.nbytes) for piece in some) for some in by_rank]


def panel_counts(plan: SummaPlan) -> list[int]:
    """Return the numbers of panels to choose from.

    To skip empty blocks, panels are at most as deep as these, as far as the numbers go.
    """
    counts = [count for count in STEPS if count <= max(1, plan.deepest)]
    if not any(isinstance(each.encoding, Sparse) and each.encoding.skips for each in plan.operands):
        return counts
    blocks = int(np.count_nonzero(np.diff(plan.a.columns))) // plan.mesh[2]
    return [count for count in counts if count >= blocks] or counts[-1:]


def schedule(plan: SummaPlan, rank: int) -> list[Step]:
    """Return the steps of one rank, found once for a plan: loops run one plan many times.

    Those of sparse operands are new each time: ``count_zeros`` changes what they send.
    """
    if plan.sparse:
        return _schedule(plan, rank)
    if rank not in plan.schedules:
        plan.schedules[rank] = _schedule(plan, rank)
    return plan.schedules[rank]


def _schedule(plan: SummaPlan, rank: int) -> list[Step]:
    steps, find = [], pieces_of(plan)
    for at in range(plan.steps):
        step = Step(plan.panel(rank, at), plan.size)
        for operand, part, layer, ranks in plan.sharing:
            found = find(operand, part, layer)
            owner = found.owner[found.panel == plan.panel_number(ranks[0], at)]
            step.moves |= not plan.hosts and bool(np.any(owner != ranks[0]))
            if rank not in ranks and not np.any(owner == rank):
                continue
            for piece in pieces(plan, operand, ranks[0], at):
                if plan.hosts and plan.host_of[piece.owner] != plan.host_of[ranks[0]]:
                    step.add_from_far(piece, rank, ranks)
                else:
                    step.add(piece, rank, ranks)
        if plan.hosts:
            step.moves = any(map(any, (step.sends, step.receives, step.passes, step.passed)))
        steps.append(step)
    return steps


def pieces(plan: SummaPlan, operand: int, rank: int, step: int) -> Iterator[Piece]:
    """Yield the pieces of an operand for a rank's panel in a step."""
    rows, columns = plan.rectangle(rank)
    panel = plan.panel(rank, step)
    spans = (rows, panel) if operand == 0 else (panel, columns)
    return _cut(operand, plan.operands[operand], *spans)


def _cut(operand: int, matrix: Operand, rows: Span, columns: Span) -> Iterator[Piece]:
    across, width, form = _parts(matrix.columns, columns), matrix.grid[1], matrix.encoding
    for i, height, *down in _parts(matrix.rows, rows):
        for j, length, *along in across:
            source, target = zip(down, along, strict=True)
            shape, owner = (height, length), matrix.owners[i * width + j]
            nbytes = matrix.piece_bytes(height, length)
            yield Piece(operand, (i, j), owner, source, target, shape, nbytes, form)


def _parts(cuts: Cuts, span: Span) -> list[tuple[int, int, slice, slice]]:
    """Return the chunks in a span of an axis: length, and places in the chunk and in the span."""
    first = span[0]
    return [
        (at, hi - lo, slice(lo - cuts[at], hi - cuts[at]), slice(lo - first, hi - first))
        for at, lo, hi in overlaps(cuts, *span)
    ]
