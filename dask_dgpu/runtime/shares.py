"""Predictions of the bytes that each rank holds and processes in a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from dask_dgpu.operations.step import Collective, Local
from dask_dgpu.runtime.placement import Ranks
from dask_dgpu.runtime.program import Plans, Program
from graph_opt.model.layout import Index

Bytes = NDArray[np.int64]
"""A number for each rank."""


class Shares:
    """The bytes of each value on each rank.

    Parameters
    ----------
    program : Program
        The program of all ranks.
    fixed : Plans
        The places of its blocks.
    size : int
        Number of ranks.
    """

    def __init__(self, program: Program, fixed: Plans, size: int) -> None:
        self.program = program
        self.fixed = fixed
        self.size = size
        self.values = dict(program.inputs) | {step.output: step.result for step in program.steps}
        self._shares = {name: self._share(name) for name in self.values}

    def peak(self, collectives: Mapping[str, int]) -> int:
        """Return the most bytes on a rank, given the peak of each collective.

        These peaks include the inputs, the output and the workspace.
        """
        held = self._sum(self.program.given)
        most = held.max()
        for step, ending in zip(self.program.steps, self.program.ends, strict=True):
            held = held + self._shares[step.output]
            workspace = 0
            if isinstance(step, Collective):
                arrays = self._sum({*step.inputs, step.output}).max()
                workspace = max(0, collectives[step.output] - arrays)
            most = max(most, held.max() + workspace)
            held = held - self._sum(ending)
        return int(most)

    def worked(self, step: Local) -> int:
        """Return the bytes that the block functions of a step read and write on one rank."""
        total = [0] * self.size
        ranks = self.fixed.makings[step.output].ranks
        sources = [self.values[name] for name in step.inputs]
        for index, needs in step.blocks().items():
            read = sum(sources[at].nbytes(need) for at, need in needs)
            for rank in ranks[index]:
                total[rank] += step.result.nbytes(index) + read
        return max(total)

    def shipped(self) -> int:
        """Return the bytes of whole blocks that the busiest rank receives."""
        total = [0] * self.size
        for making in self.fixed.makings.values():
            for each in making.shipments:
                total[each.target] += self.values[each.name].nbytes(each.index)
        return max(total)

    def _ranks(self, name: str) -> Mapping[Index, Ranks]:
        making = self.fixed.makings.get(name)
        if making is not None:
            return making.ranks
        return {index: (rank,) for index, rank in self.fixed.values[name].owners()}

    def _share(self, name: str) -> Bytes:
        total = np.zeros(self.size, np.int64)
        for index, ranks in self._ranks(name).items():
            total[list(ranks)] += self.values[name].nbytes(index)
        return total

    def _sum(self, names: Iterable[str]) -> Bytes:
        return sum((self._shares[name] for name in names), np.zeros(self.size, np.int64))
