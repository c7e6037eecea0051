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
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.algorithms import Array, Progress, no_progress
from dask_dgpu.algorithms.summa.plan import (
    Block,
    Matrix,
    PanelStep,
    Piece,
    Pieces,
    Share,
    SummaPlan,
    share_of,
)
from dask_dgpu.algorithms.summa.wire import Sent
from dask_dgpu.algorithms.summa.zeros import Known, count_zeros
from dask_dgpu.comm.common import exchange, exchange_now
from dask_dgpu.comm.protocol import Comm, Window, Work
from dask_dgpu.kernels import gemm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.gemm import factor_dtype
from graph_opt.model.layout import Cuts, Index, Span


@dataclass(frozen=True)
class Product:
    """A product as one rank multiplies it: its share of the plan, and its blocks of A and B.

    What travels in messages is counted in ``sent``, if there is one.
    """

    plan: SummaPlan
    share: Share
    comm: Comm
    device: Device
    operands: tuple[Matrix, Matrix]
    sent: Sent | None = None

    @property
    def steps(self) -> list[PanelStep]:
        """The steps of this rank."""
        return self.share.steps


class Messages:
    """The message buffers of a rank, for all steps; used on the transfer lane.

    The outgoing buffer of a step is free after its exchange, before its pieces are unpacked; so one
    buffer for each direction is enough. On several hosts, one rank of a host receives a piece for
    all of them and passes it on as it is. While a rank computes, the next pieces come from other
    hosts. Passing them on is not hidden: it is quick.
    """

    def __init__(self, product: Product) -> None:
        self.product, self.comm = product, product.comm
        self.out = self._buffer("out", [step.sends for step in product.steps])
        self.inbox = self._buffer("inbox", [step.receives for step in product.steps])
        self.passes = self._buffer("passes", [step.passes for step in product.steps])
        self.passed = self._buffer("passed", [step.passed for step in product.steps])
        self._under_way: Work | None = None

    def _buffer(self, name: str, each: Sequence[Pieces]) -> Array:
        """Return the buffer of the messages of any step."""
        return self.product.device.workspace(name, max(some.nbytes for some in each), "uint8")

    def send(self, step: PanelStep) -> None:
        """Pack a step's pieces and start their exchange."""
        sent = self.product.sent
        for piece, place in step.sends.placed:
            values = self.product.operands[piece.operand][piece.block][piece.source]
            message, lost = self.out[place], 0
            if piece.form is None:
                message.view(values.dtype).reshape(values.shape)[...] = values
            else:
                lost = piece.form.encode(values, message)
            if sent is not None:
                sent.add(values, message, lost)
        self._under_way = self._exchange(self.out, step.sends, self.inbox, step.receives)

    def _exchange(self, out: Array, sends: Pieces, inbox: Array, receives: Pieces) -> Work | None:
        """Exchange messages in the order of ranks, in the first part of two buffers."""
        sent, received = out[: sends.nbytes], inbox[: receives.nbytes]
        return exchange(self.comm, sent, sends.counts, received, receives.counts)

    def unpack(self, step: PanelStep, place: Callable[[Piece], Array]) -> None:
        """Receive a step's pieces, pass them on, and copy those of this rank to their ``place``."""
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = None
        self._read(step.receives, self.inbox, place)
        if not self.product.plan.hosts:
            return
        received = {id(piece): self.inbox[at] for piece, at in step.receives.placed}
        for piece, at in step.passes.placed:
            self.passes[at] = received[id(piece)]
        work = self._exchange(self.passes, step.passes, self.passed, step.passed)
        if work is not None:
            work.wait()
        self._read(step.passed, self.passed, place)

    def _read(self, received: Pieces, inbox: Array, place: Callable[[Piece], Array]) -> None:
        """Copy pieces from their messages to their ``place``."""
        plan = self.product.plan
        for piece, at in received.placed:
            message, dtype, out = inbox[at], (plan.a, plan.b)[piece.operand].dtype, place(piece)
            if piece.form is None:
                out[...] = message.view(dtype).reshape(out.shape)
            else:
                piece.form.decode(message, dtype, out)

    def close(self) -> None:
        """Do nothing: all exchanges are complete."""


class Pulls:
    """One-sided reads, if the transport has them: no rank packs or sends."""

    def __init__(self, window: Window, positions: dict[tuple[int, Block], int]) -> None:
        self.window, self.positions = window, positions

    @classmethod
    def open(cls, product: Product) -> Pulls | None:
        """Offer this rank's blocks to others; None if one-sided reads are not possible.

        Reads do not convert, so both operands need the dtype of the panels.
        """
        plan, comm = product.plan, product.comm
        if not plan.one_sided or plan.hosts:
            return None
        if {plan.a.dtype, plan.b.dtype} != {factor_dtype(product.device.kind, plan.dtype)}:
            return None
        counts = Counter[int]()
        positions: dict[tuple[int, Block], int] = {}
        offered = []
        for at, operand in enumerate((plan.a, plan.b)):
            for (i, j), owner in zip(operand.indices(), operand.owners, strict=True):
                positions[at, (i, j)] = counts[owner]
                counts[owner] += 1
                if owner == comm.rank:
                    offered.append(product.operands[at][i, j])
        window = comm.window(offered)
        return None if window is None else cls(window, positions)

    def send(self, step: PanelStep) -> None:
        """Do nothing: the receiver reads."""

    def unpack(self, step: PanelStep, place: Callable[[Piece], Array]) -> None:
        """Read a step's pieces into their ``place``."""
        for owner, pieces in enumerate(step.receives):
            for piece in pieces:
                which = self.positions[piece.operand, piece.block]
                self.window.get(owner, which, piece.source, place(piece))

    def close(self) -> None:
        """Let the current lane wait until all ranks have read their pieces."""
        self.window.close().wait()


Carrier = Messages | Pulls


def summa_rank(
    plan: SummaPlan,
    comm: Comm,
    device: Device,
    a: Matrix,
    b: Matrix,
    progress: Progress = no_progress,
    sent: Sent | None = None,
    share: Share | None = None,
) -> dict[Index, Array]:
    """Multiply as one rank; ``progress`` counts panels, and ``sent`` what travels in messages.

    Every rank receives the pieces of its next panel while it multiplies the present one. If
    plan and transport allow it, it reads them from the owners' blocks, straight into the panel.
    Blocks in place are multiplied where they lie. The peak of memory is the rank's blocks of A, B
    and C and four panels: two panels in use, one message out and one in. Blocks of C count in
    ``plan.accumulator``. A caller that has the rank's ``share`` may give it.
    """
    if share is None:
        share = share_of(plan, comm.rank)
    product, known = Product(plan, share, comm, device, (a, b), sent), None
    with device.computing():
        given = device.mark()
    with device.transferring():
        device.after(given)
        if plan.sparse:
            known = count_zeros(product)
            product = replace(product, share=replace(share, steps=known.steps))
        carrier, steps = Pulls.open(product) or Messages(product), product.steps
        panels = _Panels(product)
    strips = _strips(product)
    with device.transferring():
        carrier.send(steps[0])
    for i, step in enumerate(steps):
        with device.transferring():
            panel = panels.fill(step, i, carrier)
            filled = device.mark()
            if i + 1 < len(steps):
                carrier.send(steps[i + 1])
        with device.computing():
            device.after(filled)
            panel.multiply(strips, i, known)
            panels.used(i, device.mark())
        progress(i + 1, len(steps))
    with device.transferring():
        carrier.close()
        panels.drain()
    del panels, carrier, panel, filled
    if plan.mesh[2] > 1:
        return _reduced(product, strips)
    with device.computing():
        return _blocks(product, strips)


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
        for products in zip_longest(*(self._products(strip, step, known) for strip in strips)):
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

    def __init__(self, product: Product) -> None:
        self.product, self.share, self.device = product, product.share, product.device
        dtype = factor_dtype(product.device.kind, product.plan.dtype)
        self.buffers = [
            product.device.workspace(f"panel-{i}", self.share.size, dtype)
            for i in range(min(2, len(product.steps)))
        ]
        self.marks: list[Any] = [None] * len(self.buffers)

    def fill(self, step: PanelStep, at: int, carrier: Carrier) -> _Panel:
        """Add local pieces to a panel, and wait for the pieces of other ranks."""
        which = at % len(self.buffers)
        share, depth = self.share, step.panel[1] - step.panel[0]
        split = share.height * depth
        buffer, rest = self.buffers[which][:split], self.buffers[which][split:]
        in_place, b = self.product.plan.in_place, list[Array]()
        if not in_place[1]:
            edges = zip(share.starts, [*share.starts[1:], share.width], strict=True)
            b = [rest[depth * lo : depth * hi].reshape(depth, hi - lo) for lo, hi in edges]
        left, right = (_Blocks() if there else None for there in in_place)
        panel = _Panel(buffer.reshape(share.height, depth), b, share.starts, left, right)
        self.device.after(self.marks[which])
        for piece in step.local:
            panel.add(piece, self.product.operands[piece.operand][piece.block])
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


def _strips(product: Product) -> list[_Strip]:
    """Allocate C in strips: products are few, and each is freed once it is cut into blocks."""
    device, dtype = product.device, product.plan.accumulator
    with device.computing():
        return [
            _Strip(i, columns, group, top, device.zeros(shape, dtype))
            for i, columns, group, top, shape in product.share.strips
        ]


def _blocks(product: Product, strips: list[_Strip]) -> dict[Index, Array]:
    """Cut the strips into blocks, freeing each strip in turn."""
    plan, blocks = product.plan, dict[Index, Array]()
    while strips:
        strip = strips.pop(0)
        for (i, j), part in strip.cut(plan.b.cuts[1]):
            alone = part.shape == strip.sums.shape
            blocks[i, j] = part.astype(plan.dtype, order="C", copy=not alone)
    return blocks


def _reduced(product: Product, strips: list[_Strip]) -> dict[Index, Array]:
    """Add the partial sums of all layers; return this rank's blocks."""
    plan, comm, device = product.plan, product.comm, product.device
    sends, receives = [0] * plan.size, [0] * plan.size
    peers, layers, mine = [comm.rank], dict[Block, int](), 0
    if comm.rank in plan.positions:
        r, c, mine = plan.positions[comm.rank]
        peers = [plan.rank_at(r, c, layer) for layer in range(plan.mesh[2])]
        layers, kept = plan.final_layers(r, c), (plan.kept[r, c] // plan.itemsize).tolist()
        for peer, elements in zip(peers, kept, strict=True):
            sends[peer], receives[peer] = elements, kept[mine]
    with device.computing():
        partial = {at: part for strip in strips for at, part in strip.cut(plan.b.columns)}
        ordered = sorted(layers, key=lambda at: peers[layers[at]])
        parts = [partial[at].reshape(-1) for at in ordered]
        out = device.empty(sum(sends), plan.accumulator)
        inbox = device.empty(sum(receives), plan.accumulator)
        for start, part in zip(accumulate(map(len, parts), initial=0), parts, strict=False):
            np.copyto(out[start : start + len(part)], part)
        exchange_now(comm, out, sends, inbox, receives)
        stops = list(accumulate(receives))
        total, *others = (inbox[stops[p] - receives[p] : stops[p]] for p in peers)
        for other in others:
            total += other
        blocks: dict[Index, Array] = {}
        for at in (at for at, layer in layers.items() if layer == mine):
            shape = partial[at].shape
            part, total = total[: prod(shape)], total[prod(shape) :]
            blocks[at] = part.reshape(shape).astype(plan.dtype, order="C", copy=True)
        return blocks
