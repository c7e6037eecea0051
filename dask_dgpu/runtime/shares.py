"""The bytes of a planned program on its ranks, and the costs of its collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from dask_dgpu.operations import OPERATIONS, Cost
from dask_dgpu.operations.value import Collective, Local, most_received
from dask_dgpu.runtime.placement import Making
from dask_dgpu.runtime.plans import Plans
from graph_opt.model.cost import Machine

NOTHING: Mapping[str, float] = MappingProxyType({})
Bytes = NDArray[np.int64]
"""A number for each rank."""


def costs_of(fixed: Plans, machine: Machine) -> dict[str, Cost]:
    """Return the cost of each collective; all iterations of a loop share one plan."""
    known: dict[int, Cost] = {}
    found: dict[str, Cost] = {}
    for step in fixed.program.steps:
        if isinstance(step, Collective):
            plan = fixed.collectives[step.output]
            if id(plan) not in known:
                known[id(plan)] = OPERATIONS[step.operation].cost(plan, machine)
            found[step.output] = known[id(plan)]
    return found


def peak_bytes(fixed: Plans, size: int) -> int:
    """Return the most bytes that a program is planned to take on one of ``size`` ranks."""
    costs = costs_of(fixed, fixed.program.machine)
    peaks = {name: cost.peak_bytes for name, cost in costs.items()}
    return sum(Shares(fixed, size).peak(peaks))


class Shares:
    """The bytes of each value of a planned program on each of ``size`` ranks."""

    def __init__(self, fixed: Plans, size: int) -> None:
        self.program = program = fixed.program
        self.fixed = fixed
        self.size = size
        self.values = dict(program.inputs) | {step.output: step.result for step in program.steps}
        self._numbered = [self.values[name] for name in program.names]
        self._shares = {name: self._share(name) for name in self.values}

    def peak(
        self, collectives: Mapping[str, int], temporaries: Mapping[str, float] = NOTHING
    ) -> tuple[int, int, int]:
        """Return the most bytes on a rank, given the peak of each collective, in three parts.

        These are inputs, results of steps, and workspace. The peaks of collectives include the
        inputs, the output and the workspace. The workspace of other steps are their
        ``temporaries``, in blocks: a rank computes one after another.
        """
        given = self.program.given
        kept = held = self._sum(given)
        peaks = [(int(held.max()), 0, 0)]
        for step, ending in zip(self.program.steps, self.program.ends, strict=True):
            held = held + self._shares[step.output]
            workspace = 0
            if isinstance(step, Collective):
                arrays = self._sum({*step.inputs, step.output}).max()
                workspace = int(max(0, collectives[step.output] - arrays))
            elif temporaries.get(step.output):
                workspace = int(temporaries[step.output] * self._largest_block(step))
            rank = held.argmax()
            peaks.append((int(kept[rank]), int(held[rank] - kept[rank]), workspace))
            held = held - self._sum(ending)
            kept = kept - self._sum(given & {*ending})
        return max(peaks, key=sum)

    def _largest_block(self, step: Local) -> int:
        """Return the bytes of the largest block that a step reads or makes."""
        made = max(map(step.result.nbytes, step.result.indices()), default=0)
        values = [self.values[name] for name in step.inputs]
        needs = {need for each in step.needs for need in each}
        return max([made, *(values[at].nbytes(index) for at, index in needs)])

    def most_blocks(self, step: Local) -> int:
        """Return the number of blocks that the busiest rank computes in a step."""
        ranks = self.fixed.makings[step.output].ranks
        counted = Counter(rank for index in step.blocks() for rank in ranks[index])
        return max(counted.values(), default=0)

    def shipping(self, step: Local, machine: Machine) -> float:
        """Predict the seconds in which a step receives blocks of other ranks."""
        received = self._received([self.fixed.makings[step.output]])
        return machine.latency + received / machine.rank_rate(self.size) if received else 0.0

    def shipped(self) -> int:
        """Return the bytes of whole blocks that the busiest rank receives."""
        return self._received(self.fixed.makings.values())

    def _received(self, makings: Iterable[Making]) -> int:
        shipments = chain.from_iterable(making.shipments for making in makings)
        return most_received(shipments, self._numbered, self.size)

    def _share(self, name: str) -> Bytes:
        total = [0] * self.size
        making, value = self.fixed.makings.get(name), self.values[name]
        if making is None:
            for index, rank in self.fixed.values[name].owners():
                total[rank] += value.nbytes(index)
        else:
            for index, ranks in making.ranks.items():
                for rank in ranks:
                    total[rank] += value.nbytes(index)
        return np.array(total, np.int64)

    def _sum(self, names: Iterable[str]) -> Bytes:
        return sum((self._shares[name] for name in names), np.zeros(self.size, np.int64))
