"""The plan of a sum on ranks, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import prod

import numpy as np

from dask_dgpu.kernels.sums.partial import Exact, Kind
from graph_opt.model.cost import Hosts, Machine, host_by_rank, link_seconds
from graph_opt.model.layout import Cuts, Index, Layout, dtype_named, grid_of, real_of

Meeting = tuple[Index, int, tuple[int, ...]]
"""A block of the result, the rank that adds partial sums for it, and the ranks that have them."""

WORD = 8
"""Bytes of a double, and of a limb."""

USUAL_LIMBS = 4
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
    """A sum on ``size`` ranks, from the layout and dtype of the array to those of the result.

    With ``hosts``, the number of ranks on each, partial sums are added on each host first.
    """

    task: Summing
    source: Layout
    result: Layout
    dtype: str
    result_dtype: str
    size: int
    hosts: Hosts = ()

    @cached_property
    def stages(self) -> list[list[Meeting]]:
        """What is added where: on several hosts first by one rank of each, then by the owner."""
        owned = [(at, self.result.owner(at), ranks) for at, ranks in self.adding.items()]
        if not self.hosts:
            return [owned]
        host = host_by_rank(self.hosts)
        within: list[Meeting] = []
        between: list[Meeting] = []
        for number, (index, owner, ranks) in enumerate(owned):
            heads = []
            for _, some in groupby(ranks, key=lambda rank: int(host[rank])):
                members = tuple(some)
                head = owner if owner in members else members[number % len(members)]
                within.append((index, head, members))
                heads.append(head)
            between.append((index, owner, tuple(heads)))
        return [within, between]

    @cached_property
    def adding(self) -> dict[Index, tuple[int, ...]]:
        """The ranks that add to each wanted block of the result, in row-major order."""
        wanted = zip(self.result.indices(), self.result.owners, strict=True)
        ranks: dict[Index, set[int]] = {index: set() for index, owner in wanted if owner >= 0}
        for index, owner in zip(self.source.indices(), self.source.owners, strict=True):
            target = self.task.target(index)
            if owner >= 0 and target in ranks:
                ranks[target].add(owner)
        return {index: tuple(sorted(found)) for index, found in ranks.items()}

    def arrays(self, limbs: int) -> int:
        """Return the arrays in a message: limbs and flags, or a pair, and one that may overflow."""
        if self.task.method == "reproducible":
            return limbs + 1
        return 4 if real_of(dtype_named(self.result_dtype)) == np.float64 else 2

    def shape(self, index: Index) -> tuple[int, ...]:
        """Return the shape of the partial sums for a block of the result."""
        shape = list(self.result.block_shape(index))
        if not self.task.keepdims:
            for axis in sorted(self.task.axes):
                shape.insert(axis, 1)
        return (*shape, 2) if dtype_named(self.dtype).kind == "c" else tuple(shape)

    def words(self, index: Index, limbs: int) -> int:
        """Return the words of a message for a block of the result."""
        return self.arrays(limbs) * prod(self.shape(index))


def plan_sum(
    source: Layout,
    task: Summing,
    cuts: tuple[Cuts, ...],
    wanted: Sequence[Index],
    dtypes: tuple[str, str],
    size: int,
    hosts: Hosts = (),
) -> SumPlan:
    """Plan a sum; the owner of a block of the result is the least loaded rank that adds to it.

    Unused blocks of ``source`` have the owner -1. ``cuts`` are those of the result, ``wanted`` are
    its computed blocks, and ``dtypes`` those of the array and of the result.
    """
    owners = dict.fromkeys(wanted, 0)
    blocks = list(np.ndindex(*grid_of(cuts)))

    def plan() -> SumPlan:
        result = Layout(cuts, tuple(owners.get(at, -1) for at in blocks))
        return SumPlan(task, source, result, *dtypes, size, hosts)

    draft, load = plan(), [0] * size
    for index, ranks in draft.adding.items():
        owner = min(ranks, key=lambda rank: (load[rank], rank))
        owners[index] = owner
        load[owner] += (len(ranks) - 1) * prod(draft.result.block_shape(index)) + 1
    return plan()


def received(plan: SumPlan, limbs: int = USUAL_LIMBS) -> list[int]:
    """Return the bytes that each rank receives, without the small all-reduce."""
    total = [0] * plan.size
    for stage in plan.stages:
        for index, owner, ranks in stage:
            total[owner] += (len(ranks) - 1) * plan.words(index, limbs) * WORD
    return total


def entering(plan: SumPlan, limbs: int = USUAL_LIMBS) -> list[int]:
    """Return the bytes that each of several hosts receives: from each other host one sum."""
    host, total = host_by_rank(plan.hosts), [0] * len(plan.hosts)
    for index, owner, heads in plan.stages[-1]:
        total[host[owner]] += (len(heads) - 1) * plan.words(index, limbs) * WORD
    return total


def peak(plan: SumPlan) -> int:
    """Return the most bytes on a rank: its blocks, and partial sums twice."""
    itemsize = dtype_named(plan.dtype).itemsize
    nbytes = [plan.source.share(rank, itemsize) + more for rank, more in enumerate(received(plan))]
    for index, ranks in plan.adding.items():
        for rank in ranks:
            nbytes[rank] += 2 * plan.words(index, USUAL_LIMBS) * WORD
    return max(nbytes)


def cost(plan: SumPlan, machine: Machine) -> float:
    """Predict the seconds of a plan: one pass over the blocks, and one or two exchanges."""
    itemsize = dtype_named(plan.dtype).itemsize
    read = max(plan.source.share(rank, itemsize) for rank in range(plan.size))
    exchanges = len(plan.stages) + (0 if plan.task.method == "compensated" else 1)
    rate = machine.bandwidth if plan.hosts else machine.rank_rate(plan.size)
    seconds = read / machine.memory_bandwidth + max(received(plan)) / rate
    if plan.hosts:
        seconds += link_seconds(machine, entering(plan))
    return seconds + (exchanges * machine.latency if plan.size > 1 else 0.0)
