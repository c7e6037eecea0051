"""The rank program of SUMMA, and what carries the pieces of a step between ranks.

Ranks exchange one message with each other rank. If the plan and the transport allow it, they
read the pieces from the owners' blocks instead, straight into the panel. On several hosts, one rank
of a host receives a piece and passes it on.

With several layers, each layer keeps some blocks of a rectangle of C at the end, and adds them
over all layers, in the order of the layers::

    layer 0   [ C00 C01 | C02 C03 ]
    layer 1   [ C00 C01 | C02 C03 ]
              keeps 0     keeps 1
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.algorithms import Array, Progress, no_progress
from dask_dgpu.algorithms.redistribute.rank import exchange
from dask_dgpu.algorithms.summa.plan import (
    Block,
    Matrix,
    Piece,
    Share,
    Step,
    SummaPlan,
    aligned,
    schedule,
    share_of,
)
from dask_dgpu.algorithms.summa.wire import Sent
from dask_dgpu.algorithms.summa.zeros import Counts, Known, count_zeros, no_counts
from dask_dgpu.comm.protocol import Comm, Window, Work
from dask_dgpu.kernels import gemm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.gemm import factor_dtype
from graph_opt.model.layout import Cuts, Span


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


Carrier = Messages | Pulls


def carrier_of(
    plan: SummaPlan,
    comm: Comm,
    device: Device,
    steps: list[Step],
    operands: list[Matrix],
    sent: Sent,
) -> Carrier:
    """Return what carries pieces between ranks, the same on all; counts in ``sent``."""
    limits = plan, comm, device, steps, operands
    if plan.hosts:
        return HostMessages(*limits, sent)
    pulls = Pulls.open(*limits) if any(step.moves for step in steps) else None
    return pulls or Messages(*limits, sent)


def summa_rank(
    plan: SummaPlan,
    comm: Comm,
    device: Device,
    a: Matrix,
    b: Matrix,
    progress: Progress = no_progress,
    sent: Sent | None = None,
    counts: Sequence[Counts] | None = None,
) -> dict[Block, Array]:
    """Multiply as one rank; ``progress`` counts panels, and ``sent`` what travels in messages.

    Every rank receives the pieces of its next panel while it multiplies the present one. If
    plan and transport allow it, it reads them from the owners' blocks, straight into the panel.
    Blocks in place are multiplied where they lie. ``counts`` are zeros that are known. The peak of
    memory is the rank's blocks of A, B and C and four panels: two panels in use, one message out
    and one in. Blocks of C count in ``plan.accumulator``.
    """
    steps, operands, sent = schedule(plan, comm.rank), [a, b], sent or Sent()
    share = share_of(plan, comm.rank)
    with device.computing():
        given = device.mark()
    with device.transferring():
        device.after(given)
        limits = plan, comm, device, steps, operands
        known = count_zeros(*limits, sent, counts or no_counts()) if plan.sparse else None
        carrier = carrier_of(*limits, sent)
        panels = _Panels(plan, device, share)
    strips = _strips(plan, device, share)
    with device.transferring():
        carrier.send(steps[0])
    for at, step in enumerate(steps):
        with device.transferring():
            panel = panels.fill(step, at, carrier, operands)
            filled = device.mark()
            if at + 1 < len(steps):
                carrier.send(steps[at + 1])
        with device.computing():
            device.after(filled)
            panel.multiply(strips, at, known)
            panels.used(at, device.mark())
        progress(at + 1, len(steps))
    with device.transferring():
        carrier.close()
        panels.drain()
    del panels, carrier, limits, panel, filled
    if plan.mesh[2] > 1:
        return _reduced(plan, comm, device, strips)
    with device.computing():
        return _blocks(plan, strips)


class _Factor(NamedTuple):
    """A part of an operand in a step, from a position along the contraction on.

    ``column`` is the first column of a part of B within its strips.
    """

    values: Array
    start: int = 0
    column: int = 0


class _Blocks(dict[int, list[_Factor]]):
    """The parts of an operand in place, by block row of A or group of B."""


@dataclass(frozen=True)
class _Panel:
    """The factors of a step: a piece of A, and a piece of B for each group of block columns.

    An operand in place has parts of its blocks instead, by block rows of A and groups of B, in
    their order along the contraction.
    """

    a: Array
    b: list[Array]
    starts: list[int]
    left: _Blocks | None
    right: _Blocks | None

    def place(self, piece: Piece) -> Array:
        """Return the place of a piece in the panel."""
        if piece.operand == 0:
            return self.a[piece.target]
        group, columns = self._columns(piece)
        return self.b[group][piece.target[0], columns]

    def add(self, piece: Piece, block: Array) -> None:
        """Add a piece of this rank's own block: in place, or copied into the panel."""
        values, (rows, columns) = block[piece.source], piece.target
        if piece.operand == 0 and self.left is not None:
            self.left.setdefault(piece.block[0], []).append(_Factor(values, columns.start))
        elif piece.operand == 1 and self.right is not None:
            group, within = self._columns(piece)
            self.right.setdefault(group, []).append(_Factor(values, rows.start, within.start))
        else:
            self.place(piece)[...] = values

    def factors(self, strip: _Strip) -> Iterator[tuple[_Factor, _Factor]]:
        """Yield the factors whose products are added to a strip, both sides of equal length."""
        if self.left is None:
            left = [_Factor(self.a[strip.top : strip.top + len(strip.sums)])]
        else:
            left = self.left.get(strip.row, [])
        if self.right is None:
            right = [_Factor(self.b[strip.group])]
        else:
            right = self.right.get(strip.group, [])
        starts = [factor.start for factor in left]
        for b in right:
            end = b.start + len(b.values)
            for a in left[max(0, bisect_right(starts, b.start) - 1) : bisect_left(starts, end)]:
                lo, hi = max(a.start, b.start), min(a.start + a.values.shape[1], end)
                if lo < hi:
                    columns, rows = (slice(lo - x.start, hi - x.start) for x in (a, b))
                    right_part = _Factor(b.values[rows], column=b.column)
                    yield _Factor(a.values[:, columns]), right_part

    def _columns(self, piece: Piece) -> tuple[int, slice]:
        """Return the group of a piece of B, and its columns within the group."""
        columns = piece.target[1]
        group = bisect_right(self.starts, columns.start) - 1
        start = self.starts[group]
        return group, slice(columns.start - start, columns.stop - start)

    def multiply(self, strips: list[_Strip], step: int, known: Known | None) -> None:
        """Add the product to strips of C; products of different strips are independent."""
        for products in zip_longest(*(self._products(each, step, known) for each in strips)):
            gemm.accumulate_group([*filter(None, products)])

    def _products(
        self, strip: _Strip, step: int, known: Known | None
    ) -> Iterator[tuple[Array, Array, Array]]:
        """Yield part of a strip, and factors whose product is not known to add only zeros."""
        for a, b in self.factors(strip):
            out = strip.sums[:, b.column : b.column + b.values.shape[1]]
            if not (known and known.skips(step, strip.row, strip.columns, out.shape)):
                yield out, a.values, b.values


class _Panels:
    """Two buffers for panels, each a piece of A followed by a piece of B; on the transfer lane."""

    def __init__(self, plan: SummaPlan, device: Device, share: Share) -> None:
        self.device = device
        self.in_place = plan.in_place
        self.height, self.width, self.starts, _ = share
        dtype = gemm.factor_dtype(device.kind, plan.dtype)
        size = (self.height + self.width) * -(-plan.deepest // plan.steps)
        self.buffers = [
            device.workspace(f"panel-{at}", size, dtype) for at in range(min(2, plan.steps))
        ]
        self.marks: list[Any] = [None] * len(self.buffers)

    def fill(self, step: Step, at: int, carrier: Carrier, operands: list[Matrix]) -> _Panel:
        """Add local pieces to a panel, and wait for the pieces of other ranks."""
        which = at % len(self.buffers)
        depth = step.panel[1] - step.panel[0]
        split = self.height * depth
        buffer, rest = self.buffers[which][:split], self.buffers[which][split:]
        b: list[Array] = []
        if not self.in_place[1]:
            edges = zip(self.starts, [*self.starts[1:], self.width], strict=True)
            b = [rest[depth * lo : depth * hi].reshape(depth, hi - lo) for lo, hi in edges]
        left, right = (_Blocks() if there else None for there in self.in_place)
        panel = _Panel(buffer.reshape(self.height, depth), b, self.starts, left, right)
        self.device.after(self.marks[which])
        for piece in step.local:
            panel.add(piece, operands[piece.operand][piece.block])
        carrier.unpack(step, panel.place)
        return panel

    def used(self, at: int, mark: Any) -> None:
        """Remember when the buffer of a step is free again."""
        self.marks[at % len(self.buffers)] = mark

    def drain(self) -> None:
        """Let the current lane wait until the buffers may be freed on it."""
        for mark in self.marks:
            self.device.after(mark)


@dataclass(frozen=True)
class _Strip:
    """Partial sums of adjacent blocks of C.

    ``columns`` is a span of block columns, ``group`` their group, and ``top`` the first row in the
    rank's rectangle.
    """

    row: int
    columns: Span
    group: int
    top: int
    sums: Array

    def cut(self, cuts: Cuts) -> Iterator[tuple[Block, Array]]:
        """Yield the blocks, as views."""
        left = cuts[self.columns[0]]
        for j in range(*self.columns):
            yield (self.row, j), self.sums[:, cuts[j] - left : cuts[j + 1] - left]


def _strips(plan: SummaPlan, device: Device, share: Share) -> list[_Strip]:
    """Allocate C in strips: products are few, and each is freed once it is cut into blocks."""
    with device.computing():
        return [
            _Strip(i, columns, group, top, device.zeros(shape, plan.accumulator))
            for i, columns, group, top, shape in share.strips
        ]


def _blocks(plan: SummaPlan, strips: list[_Strip]) -> dict[Block, Array]:
    """Cut the strips into blocks, freeing each strip in turn."""
    blocks: dict[Block, Array] = {}
    while strips:
        strip = strips.pop(0)
        for block, part in strip.cut(plan.b.columns):
            alone = part.shape == strip.sums.shape
            blocks[block] = part.astype(plan.dtype, order="C", copy=not alone)
    return blocks


def _reduced(
    plan: SummaPlan, comm: Comm, device: Device, strips: list[_Strip]
) -> dict[Block, Array]:
    """Add the partial sums of all layers; return this rank's blocks."""
    heights, widths = np.diff(plan.a.rows).tolist(), np.diff(plan.b.columns).tolist()
    peers, layers = [comm.rank], {}
    if comm.rank in plan.positions:
        r, c, _ = plan.positions[comm.rank]
        peers = [plan.rank_at(r, c, layer) for layer in range(plan.mesh[2])]
        layers = plan.final_layers(r, c)
    kept = {p: [at for at, layer in layers.items() if peers[layer] == p] for p in sorted(peers)}
    sends, receives = [0] * plan.size, [0] * plan.size
    mine = kept[comm.rank]
    for peer, wanted in kept.items():
        sends[peer] = sum(heights[i] * widths[j] for i, j in wanted)
        receives[peer] = sum(heights[i] * widths[j] for i, j in mine)
    with device.computing():
        partial = {at: part for strip in strips for at, part in strip.cut(plan.b.columns)}
        parts = [partial[at].reshape(-1) for wanted in kept.values() for at in wanted]
        out = device.empty(sum(sends), plan.accumulator)
        inbox = device.empty(sum(receives), plan.accumulator)
        for start, part in zip(accumulate(map(len, parts), initial=0), parts, strict=False):
            out[start : start + len(part)] = part
        comm.all_to_all(inbox, receives, out, sends).wait()
        stops = list(accumulate(receives))
        total, *others = (inbox[stops[p] - receives[p] : stops[p]] for p in peers)
        for other in others:
            total += other
        blocks: dict[Block, Array] = {}
        for i, j in mine:
            part, total = total[: heights[i] * widths[j]], total[heights[i] * widths[j] :]
            part = part.reshape(heights[i], widths[j])
            blocks[i, j] = part.astype(plan.dtype, order="C", copy=True)
        return blocks
