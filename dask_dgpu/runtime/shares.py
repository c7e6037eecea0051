"""What each rank holds and works on while a program runs, in bytes, before it does."""

from __future__ import annotations

from collections.abc import Mapping

from dask_dgpu.operations.step import Collective, Local
from dask_dgpu.operations.value import Value
from dask_dgpu.runtime.placement import Ranks
from dask_dgpu.runtime.plans import Plans
from dask_dgpu.runtime.program import Program
from graph_opt.model.layout import Index


class Shares:
    """The bytes of each value on each rank.

    Parameters
    ----------
    program : Program
        What is run.
    fixed : Plans
        Where its blocks are.
    size : int
        Number of ranks.
    """

    def __init__(self, program: Program, fixed: Plans, size: int) -> None:
        self.program = program
        self.fixed = fixed
        self.size = size
        values = dict(program.inputs) | {step.output: step.result for step in program.steps}
        self.values = values
        self.shares = {
            name: self._share(value, self._ranks(name)) for name, value in values.items()
        }

    def peak(self, collectives: Mapping[str, int]) -> int:
        """Return the most bytes that a rank holds, given what each collective takes at most.

        ``collectives`` counts for each the inputs, the output and the workspace.
        """
        given = self.program.given
        held = [sum(self.shares[name][rank] for name in given) for rank in range(self.size)]
        most = max(held)
        for step, ending in zip(self.program.steps, self.program.ends, strict=True):
            held = self._changed(held, step.output, 1)
            extra = 0
            if isinstance(step, Collective):
                extra = max(0, collectives[step.output] - self._held({*step.inputs, step.output}))
            most = max(most, max(held) + extra)
            for name in ending:
                held = self._changed(held, name, -1)
        return most

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
        total, names = [0] * self.size, self.program.names
        for making in self.fixed.makings.values():
            for each in making.shipments:
                total[each.target] += self.values[names[each.value]].nbytes(each.index)
        return max(total)

    def _ranks(self, name: str) -> Mapping[Index, Ranks]:
        making = self.fixed.makings.get(name)
        if making is not None:
            return making.ranks
        return {index: (rank,) for index, rank in self.fixed.values[name].owners()}

    def _share(self, value: Value, ranks: Mapping[Index, Ranks]) -> list[int]:
        total = [0] * self.size
        for index, holders in ranks.items():
            for rank in holders:
                total[rank] += value.nbytes(index)
        return total

    def _changed(self, held: list[int], name: str, sign: int) -> list[int]:
        return [total + sign * share for total, share in zip(held, self.shares[name], strict=True)]

    def _held(self, names: set[str]) -> int:
        """Return the bytes of some values on the rank that has most."""
        return max(sum(self.shares[name][rank] for name in names) for rank in range(self.size))
