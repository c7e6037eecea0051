"""What carries the pieces of a step between ranks.

Ranks exchange one message with each other rank. If the plan and the transport allow it, they
read the pieces from the owners' blocks instead, straight into the panel. On several hosts, one rank
of a host receives a piece and passes it on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from dask_dgpu.algorithms import Array
from dask_dgpu.algorithms.redistribute.rank import exchange
from dask_dgpu.algorithms.summa.operand import Block, Matrix, aligned
from dask_dgpu.algorithms.summa.plan import SummaPlan
from dask_dgpu.algorithms.summa.schedule import Piece, Step
from dask_dgpu.algorithms.summa.wire import Sent
from dask_dgpu.comm.protocol import Comm, Window, Work
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.gemm import factor_dtype


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
