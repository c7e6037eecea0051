"""The plan of a sum, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from dask_dgpu.kernels.sums.partial import Exact, Kind
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Cuts, Index, Layout, dtype_named, real_of

WORD = 8
"""Bytes of a double, and of a limb."""

LIMBS = 4
"""Expected limbs of an exact sum."""


@dataclass(frozen=True)
class Summing:
    """A sum or mean along some axes, which ``keepdims`` keeps with length one."""

    axes: tuple[int, ...]
    keepdims: bool
    method: Exact
    kind: Kind

    def target(self, index: Index) -> Index:
        """Return the block of the result to which a block of the source adds."""
        if self.keepdims:
            return tuple(0 if k in self.axes else at for k, at in enumerate(index))
        return tuple(at for k, at in enumerate(index) if k not in self.axes)


@dataclass(frozen=True)
class SumPlan:
    """A sum on ``size`` ranks, from the layout and dtype of the array to those of the result."""

    task: Summing
    source: Layout
    result: Layout
    dtype: str
    result_dtype: str
    size: int

    @cached_property
    def adding(self) -> dict[Index, tuple[int, ...]]:
        """The ranks that add to each wanted block of the result, in row-major order."""
        return _adding(self.task, self.source, self.result)

    @property
    def parts(self) -> int:
        """Two for complex numbers, one for real ones."""
        return 2 if dtype_named(self.dtype).kind == "c" else 1

    @property
    def doubles(self) -> int:
        """Doubles of a compensated sum: a pair, and a second one if the first may overflow."""
        return 4 if real_of(dtype_named(self.dtype)) == np.float64 else 2

    def shape(self, index: Index) -> tuple[int, ...]:
        """Return the shape of the partial sums for a block of the result."""
        lengths = iter(self.result.block_shape(index))
        kept = [k not in self.task.axes for k in range(self.source.ndim)]
        shape = [next(lengths) if self.task.keepdims or keep else 1 for keep in kept]
        return (*shape, 2) if self.parts == 2 else tuple(shape)

    def words(self, index: Index, limbs: int) -> int:
        """Return the words of a message for a block of the result."""
        each = self.doubles if self.task.method == "compensated" else limbs + 1
        return each * prod(self.shape(index))


def _adding(task: Summing, source: Layout, result: Layout) -> dict[Index, tuple[int, ...]]:
    wanted = zip(result.indices(), result.owners, strict=True)
    ranks: dict[Index, set[int]] = {index: set() for index, owner in wanted if owner >= 0}
    for index, owner in zip(source.indices(), source.owners, strict=True):
        target = task.target(index)
        if owner >= 0 and target in ranks:
            ranks[target].add(owner)
    return {index: tuple(sorted(found)) for index, found in ranks.items()}


def plan_sum(
    source: Layout,
    task: Summing,
    cuts: tuple[Cuts, ...],
    wanted: Sequence[Index],
    dtypes: tuple[str, str],
    size: int,
) -> SumPlan:
    """Plan a sum; the owner of a block of the result is the least loaded rank that adds to it.

    Parameters
    ----------
    source : Layout
        The layout of the array; unused blocks have the owner -1.
    task : Summing
        Axes, method and kind.
    cuts : tuple of tuple of int
        The cuts of the result.
    wanted : sequence of tuple of int
        The computed blocks of the result, in row-major order.
    dtypes : tuple of (str, str)
        Of the array and of the result.
    size : int
        Number of ranks.
    """
    some = set(wanted)
    grid = tuple(len(along) - 1 for along in cuts)
    first = Layout(cuts, tuple(0 if at in some else -1 for at in np.ndindex(*grid)))
    adding = _adding(task, source, first)
    load = [0] * size
    owners = {}
    for index, ranks in adding.items():
        owner = min(ranks, key=lambda rank: (load[rank], rank))
        owners[index] = owner
        load[owner] += (len(ranks) - 1) * prod(first.block_shape(index)) + 1
    result = Layout(cuts, tuple(owners.get(at, -1) for at in np.ndindex(*grid)))
    return SumPlan(task, source, result, *dtypes, size)


def received(plan: SumPlan, limbs: int = LIMBS) -> list[int]:
    """Return the bytes that each rank receives, without the small all-reduce."""
    total = [0] * plan.size
    for index, ranks in plan.adding.items():
        owner = plan.result.owner(index)
        total[owner] += (len(ranks) - 1) * plan.words(index, limbs) * WORD
    return total


def peak(plan: SumPlan) -> int:
    """Return the most bytes on a rank: its blocks, and partial sums twice."""
    itemsize = dtype_named(plan.dtype).itemsize
    nbytes = [plan.source.share(rank, itemsize) + more for rank, more in enumerate(received(plan))]
    for index, ranks in plan.adding.items():
        for rank in ranks:
            nbytes[rank] += 2 * plan.words(index, LIMBS) * WORD
    return max(nbytes)


def cost(plan: SumPlan, machine: Machine) -> float:
    """Predict the seconds of a plan: one pass over the blocks, and one or two exchanges."""
    itemsize = dtype_named(plan.dtype).itemsize
    read = max(plan.source.share(rank, itemsize) for rank in range(plan.size))
    exchanges = 1 if plan.task.method == "compensated" else 2
    seconds = read / machine.memory_bandwidth + max(received(plan)) / machine.bandwidth
    return seconds + (exchanges * machine.latency if plan.size > 1 else 0.0)
