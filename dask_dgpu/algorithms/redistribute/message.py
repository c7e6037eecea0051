"""The messages of a rank: packing a round's pieces, sending and unpacking them.

::

    half 0  | round 0: out    | in   |      | round 2: out | in      |
    half 1             | round 1: out | in     |       | round 3 ...

Two rounds overlap, each in its half of one buffer: one is in transit while the next is packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from dask_dgpu.algorithms.redistribute.plan import RedistributePlan
from dask_dgpu.algorithms.redistribute.schedule import Round
from dask_dgpu.comm.protocol import Buffer, Comm, Work
from dask_dgpu.kernels import pack
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.pack import Arrays

Array = Any


class Messages:
    """The message buffer of a rank, for all rounds.

    All methods are called on the transfer lane. ``targets`` are the rank's target blocks, without
    those that are passed on.
    """

    def __init__(
        self,
        plan: RedistributePlan,
        comm: Comm,
        device: Device,
        rounds: list[Round],
        targets: list[Array],
    ) -> None:
        self.comm, self.device, self.rounds = comm, device, rounds
        self.targets = Arrays(targets)
        self.half = max(
            (sum(step.send_counts) + sum(step.receive_counts) for step in rounds), default=0
        )
        halves = min(2, len(rounds))
        self.buffer = device.workspace("messages", halves * self.half, plan.dtype)

    def pack(self, at: int, units: list[Array]) -> None:
        """Copy the pieces of a round from its units into messages or target blocks."""
        step, (of_sends, of_stays, _) = self.rounds[at], self.rounds[at].described
        arrays = Arrays(units)
        pack.copy_pieces(
            self.device,
            step.sends.pieces(self._parts(at)[0], arrays, of_sends),
            step.stays.pieces(arrays, self.targets, of_stays),
        )

    def start(self, at: int) -> Work | None:
        """Send a round, one message to each receiver; ``None`` if there is no message.

        Ranks without messages for each other do not wait for each other, unlike in an all-to-all.
        """
        out, inbox = self._parts(at)
        sends = messages_of(self.comm, out, self.rounds[at].send_counts, 1)
        receives = messages_of(self.comm, inbox, self.rounds[at].receive_counts, -1)
        return self.comm.exchange(sends, receives) if sends or receives else None

    def unpack(self, at: int) -> None:
        """Copy the received pieces of a round into the target blocks."""
        step = self.rounds[at]
        pieces = step.receives.pieces(self._parts(at)[1], self.targets, step.described[2])
        pack.copy_pieces(self.device, pieces)

    def _parts(self, at: int) -> tuple[Array, Array]:
        """Return the outgoing and the incoming messages of a round, adjacent in its half."""
        first = at % 2 * self.half
        middle = first + sum(self.rounds[at].send_counts)
        return self.buffer[first:middle], self.buffer[
            middle : middle + sum(self.rounds[at].receive_counts)
        ]


def messages_of(
    comm: Comm, buffer: Array, counts: Sequence[int], way: int
) -> list[tuple[int, Buffer]]:
    """Return the messages in a buffer by rank, from the next rank (1) or the previous one (-1) on.

    So ranks do not all send to rank 0 first.
    """
    stops = list(accumulate(counts))
    peers = [(comm.rank + way * step) % comm.size for step in range(1, comm.size)]
    return [(p, buffer[stops[p] - counts[p] : stops[p]]) for p in peers if counts[p]]
