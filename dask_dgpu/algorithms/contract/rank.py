"""The rank program in which every rank computes whole blocks of a product of stacks.

::

    transfer   | receive round 1 | receive round 2 | receive round 3 |
    compute                      | products of 1   | products of 2   | products of 3 |

A received block is kept until the last round that reads it. Blocks travel whole, from and into
memory of their own: nothing is packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dask_dgpu.algorithms import Array, Blocks, Progress, no_progress
from dask_dgpu.algorithms.contract.plan import OwnerPlan
from dask_dgpu.comm.common import contiguous
from dask_dgpu.comm.protocol import Comm, Work
from dask_dgpu.kernels import gemm
from dask_dgpu.kernels.device import Device
from graph_opt.model.layout import Index

Operand = dict[Index, Array]


class Message(NamedTuple):
    """A block of an operand (0 for A, 1 for B) to or from another rank."""

    peer: int
    operand: int
    block: Index


@dataclass
class Round:
    """What one rank computes in a round, and the messages before it.

    Empty blocks do not travel. No later round reads the received blocks that are ``spent``.
    """

    blocks: list[Index] = field(default_factory=list)
    sends: list[Message] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)
    spent: list[Message] = field(default_factory=list)


def schedule(plan: OwnerPlan, rank: int) -> list[Round]:
    """Return the rounds of one rank."""
    rounds = [Round() for _ in range(plan.rounds)]
    for index in plan.result.owned(rank):
        rounds[plan.turns[index]].blocks.append(index)
    # each rank starts with the next one, so that they do not all send to rank 0
    peers = [(rank + step) % plan.size for step in range(plan.size)]
    for peer in peers:
        for message, first, last in _needs(plan, peer):
            if message.peer == peer:
                continue  # there already
            if message.peer == rank:
                rounds[first].sends.append(message._replace(peer=peer))
            elif peer == rank:
                rounds[first].receives.append(message)
                rounds[last].spent.append(message)
    return rounds


def _needs(plan: OwnerPlan, rank: int) -> Iterator[tuple[Message, int, int]]:
    """Yield the blocks that a rank reads, from their owners, and the first and last round."""
    for operand, (layout, (first, last)) in enumerate(
        zip((plan.a, plan.b), plan.uses, strict=True)
    ):
        inner = range(layout.grid[2 - operand])
        for batch, at in np.argwhere(last[rank] >= 0).tolist():
            span = int(first[rank, batch, at]), int(last[rank, batch, at])
            for k in inner:
                index = (batch, at, k) if operand == 0 else (batch, k, at)
                if all(layout.block_shape(index)):
                    yield Message(layout.owner(index), operand, index), *span


def contract_rank(
    plan: OwnerPlan,
    comm: Comm,
    device: Device,
    a: Blocks,
    b: Blocks,
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Multiply as one rank; ``progress`` counts rounds.

    The peak of memory is that of ``plan.peak_bytes``, and blocks that are sent are copied if they
    are not C-contiguous.
    """
    rounds, operands = schedule(plan, comm.rank), [dict(a), dict(b)]
    result: dict[Index, Array] = {}
    with device.computing():
        computed = device.mark()
    with device.transferring():
        device.after(computed)  # the operands exist
        arriving = _Arriving(plan, comm, device, rounds[0], operands)
    for i, step in enumerate(rounds):
        with device.transferring():
            arriving.wait(operands)
            arrived = device.mark()
            if i:
                device.after(computed)  # the round before has read its blocks
                for message in rounds[i - 1].spent:
                    del operands[message.operand][message.block]
            if i + 1 < len(rounds):
                arriving = _Arriving(plan, comm, device, rounds[i + 1], operands)
        with device.computing():
            device.after(arrived)
            for index in step.blocks:
                result[index] = _product(plan, device, index, *operands)
            computed = device.mark()
        progress(i + 1, len(rounds))
    device.join()
    return result


class _Arriving:
    """The blocks of a round on their way; used on the transfer lane."""

    def __init__(
        self, plan: OwnerPlan, comm: Comm, device: Device, step: Round, operands: list[Operand]
    ) -> None:
        layouts = plan.a, plan.b
        self._receives = step.receives
        self._sent = [
            (message.peer, contiguous(operands[message.operand][message.block]))
            for message in step.sends
        ]
        self._received = [
            (peer, device.empty(layouts[operand].block_shape(index), plan.dtypes[operand]))
            for peer, operand, index in step.receives
        ]
        self._work: Work | None = None
        if self._sent or self._received:
            self._work = comm.exchange(self._sent, self._received)

    def wait(self, operands: list[Operand]) -> None:
        """Let the current lane wait for the blocks, and add them to the operands."""
        if self._work is not None:
            self._work.wait()
        for message, (_, block) in zip(self._receives, self._received, strict=True):
            operands[message.operand][message.block] = block


def _product(plan: OwnerPlan, device: Device, index: Index, a: Blocks, b: Blocks) -> Array:
    """Compute one block of the result."""
    batch, i, j = index
    sums = device.zeros(plan.result.block_shape(index), plan.accumulator)
    factor = gemm.factor_dtype(device.kind, plan.dtype)
    for k, depth in enumerate(plan.a.lengths[2]):
        if sums.size and depth:
            left, right = a[batch, i, k], b[batch, k, j]
            gemm.accumulate_stack(
                sums, left.astype(factor, copy=False), right.astype(factor, copy=False)
            )
    return sums.astype(plan.dtype, copy=False)
