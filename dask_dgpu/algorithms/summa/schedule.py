"""The transfers of each step: which piece of which block goes to which rank, and how.

Ranks exchange one message with each other rank. If the plan and the transport allow it, they
read the pieces from the owners' blocks instead, straight into the panel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.algorithms import Array
from dask_dgpu.algorithms.redistribute.rank import exchange
from dask_dgpu.algorithms.summa.plan import Block, Matrix, Operand, SummaPlan, aligned
from dask_dgpu.algorithms.summa.traffic import pieces_of
from dask_dgpu.algorithms.summa.wire import Encoding, Sent, Sparse
from dask_dgpu.comm.protocol import Comm, Window, Work
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.gemm import factor_dtype
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
            owner = find(operand, part, layer, plan.panel_number(ranks[0], at))[1]
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


class Still:
    """Nothing to carry: each rank owns all its pieces."""

    def send(self, step: Step) -> None:
        """Do nothing: no piece moves."""

    def unpack(self, step: Step, place: Callable[[Piece], Array]) -> None:
        """Do nothing: no piece moves."""

    def close(self) -> None:
        """Do nothing: no piece moves."""


class Messages:
    """The two message buffers of a rank, for all steps; adds what it sends to ``sent``.

    The outgoing buffer of a step is free after its exchange, before its pieces are unpacked; so one
    buffer for each direction is enough. All methods are called on the transfer lane.
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
        self.comm, self.operands = comm, operands
        self.dtypes = plan.a.dtype, plan.b.dtype
        self.sent = sent
        self.out, self.inbox = (
            device.workspace(name, max(sum(step.counts[way]) for step in steps), "uint8")
            for way, name in enumerate(("out", "inbox"))
        )
        self._under_way: Work | None = None

    def send(self, step: Step) -> None:
        """Pack a step's pieces and start their exchange, if anything moves."""
        if not step.moves:
            return
        for piece, message in _messages(step.sends, self.out):
            values = self.operands[piece.operand][piece.block][piece.source]
            self.sent.add(values, message, piece.encoding.encode(values, message))
        self._under_way = self.start(step)

    def start(self, step: Step) -> Work | None:
        """Start the exchange of a step, of all ranks."""
        sent, received = step.counts
        inbox, out = self.inbox[: sum(received)], self.out[: sum(sent)]
        return self.comm.all_to_all(inbox, received, out, sent)

    def unpack(self, step: Step, place: Callable[[Piece], Array]) -> None:
        """Wait for a step's exchange and copy its pieces to their ``place``."""
        if self._under_way is None:
            return
        self._under_way.wait()
        self._under_way = None
        for piece, message in _messages(step.receives, self.inbox):
            piece.encoding.decode(message, self.dtypes[piece.operand], place(piece))

    def close(self) -> None:
        """Do nothing: all exchanges are complete."""


class HostMessages(Messages):
    """Messages to one rank of a host for all ranks of it, which passes them on as they are.

    While a rank computes, the next pieces come from other hosts. Passing them on is not hidden: it
    is quick.
    """

    def __init__(
        self, plan: SummaPlan, comm: Comm, device: Device, steps: list[Step], *more: Any
    ) -> None:
        super().__init__(plan, comm, device, steps, *more)
        self.passes, self.passed = (
            device.workspace(name, max(sum(step.passed_counts[way]) for step in steps), "uint8")
            for way, name in enumerate(("passes", "passed"))
        )

    def start(self, step: Step) -> Work | None:
        """Start the exchange of a step, of ranks with messages for each other."""
        return _exchange(self.comm, self.out, self.inbox, step.counts)

    def unpack(self, step: Step, place: Callable[[Piece], Array]) -> None:
        """Receive a step's pieces, pass them on, and copy those of this rank to their ``place``."""
        super().unpack(step, place)
        received = {id(piece): message for piece, message in _messages(step.receives, self.inbox)}
        for piece, message in _messages(step.passes, self.passes):
            message[...] = received[id(piece)]
        work = _exchange(self.comm, self.passes, self.passed, step.passed_counts)
        if work is not None:
            work.wait()
        for piece, message in _messages(step.passed, self.passed):
            piece.encoding.decode(message, self.dtypes[piece.operand], place(piece))


def _exchange(
    comm: Comm, out: Array, inbox: Array, counts: tuple[list[int], list[int]]
) -> Work | None:
    """Exchange messages in the order of ranks, in the first part of two buffers."""
    sent, received = counts
    return exchange(comm, out[: sum(sent)], sent, inbox[: sum(received)], received)


def _messages(by_rank: Sequence[list[Piece]], buffer: Array) -> Iterator[tuple[Piece, Array]]:
    """Yield each piece with its bytes in a message buffer."""
    ordered = [piece for pieces in by_rank for piece in pieces]
    starts = accumulate((aligned(piece.nbytes) for piece in ordered), initial=0)
    for piece, start in zip(ordered, starts, strict=False):
        yield piece, buffer[start : start + piece.nbytes]


class Pulls:
    """One-sided reads, if the transport has them: no rank packs or sends."""

    def __init__(self, window: Window, positions: dict[tuple[int, Block], int]) -> None:
        self.window, self.positions = window, positions

    @classmethod
    def open(
        cls, plan: SummaPlan, comm: Comm, device: Device, steps: list[Step], operands: list[Matrix]
    ) -> Pulls | None:
        """Offer this rank's blocks to others; None if one-sided reads are not possible.

        Reads do not convert, so both operands need the dtype of the panels.
        """
        uniform = plan.a.dtype == plan.b.dtype == factor_dtype(device.kind, plan.dtype)
        if not (plan.one_sided and uniform):
            return None
        counts = Counter[int]()
        positions: dict[tuple[int, Block], int] = {}
        offered = []
        for at, operand in enumerate((plan.a, plan.b)):
            for (i, j), owner in zip(operand.indices(), operand.owners, strict=True):
                positions[at, (i, j)] = counts[owner]
                counts[owner] += 1
                if owner == comm.rank:
                    offered.append(operands[at][i, j])
        window = comm.window(offered)
        return None if window is None else cls(window, positions)

    def send(self, step: Step) -> None:
        """Do nothing: the receiver reads."""

    def unpack(self, step: Step, place: Callable[[Piece], Array]) -> None:
        """Read a step's pieces into their ``place``."""
        for owner, pieces in enumerate(step.receives):
            for piece in pieces:
                which = self.positions[piece.operand, piece.block]
                self.window.get(owner, which, piece.source, place(piece))

    def close(self) -> None:
        """Let the current lane wait until all ranks have read their pieces."""
        self.window.close().wait()


Carrier = Still | Messages | Pulls


def carrier_of(
    plan: SummaPlan,
    comm: Comm,
    device: Device,
    steps: list[Step],
    operands: list[Matrix],
    sent: Sent,
) -> Carrier:
    """Return what carries pieces between ranks, the same on all; counts in ``sent``."""
    if not any(step.moves for step in steps):
        return Still()
    limits = plan, comm, device, steps, operands
    if plan.hosts:
        return HostMessages(*limits, sent)
    return Pulls.open(*limits) or Messages(*limits, sent)
