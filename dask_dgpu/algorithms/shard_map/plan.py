"""The plan of a function on ranks: how its arguments become shards, and its results blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dask_dgpu.algorithms.cells import Ints
from dask_dgpu.algorithms.halo import plan as halo
from dask_dgpu.algorithms.halo.gather import GatherPlan, whole_on
from dask_dgpu.algorithms.redistribute import plan as redistribute
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan, plan_redistribute
from graph_opt.model.cost import Machine, transfer_seconds
from graph_opt.model.layout import Bare, Cuts, Index, Layout, cuts_of, dtype_named, even_spans


@dataclass(frozen=True)
class ShardMapTask:
    """A function of a user, and the axes of its shards.

    ``function`` is pickled, so it counts by content, and each run opens it anew. ``axes`` are those
    along which the arguments are cut, ``axis`` that of the result; ``None`` is a whole array.
    """

    function: bytes
    name: str
    axes: tuple[int | None, ...]
    axis: int | None


def shards(cuts: tuple[Cuts, ...], axis: int | None, size: int) -> Layout:
    """Return a shard of an array for each of ``size`` ranks, or all of it on the first."""
    along = [cuts_of([every[-1]]) for every in cuts]
    if axis is None:
        return Layout(tuple(along), (0,))
    along[axis] = (0, *(stop for _, stop in even_spans(0, cuts[axis][-1], size)))
    return Layout(tuple(along), tuple(range(size)))


def place_of(axis: int | None, ndim: int, rank: int) -> Index:
    """Return the place of a rank's shard; all ranks have the same whole array."""
    return tuple(rank if i == axis else 0 for i in range(ndim))


@dataclass(frozen=True)
class ShardMapPlan(Bare):
    """The plan on the ranks of a communicator.

    ``inputs`` make a shard of each argument, or a copy of it, on each rank. ``shards`` are those of
    the result; ``merge`` makes its blocks, ``None`` if these are its shards.
    """

    task: ShardMapTask
    inputs: tuple[RedistributePlan | GatherPlan, ...]
    shards: Layout
    dtype: str
    size: int
    merge: RedistributePlan | None

    @property
    def result(self) -> Layout:
        """The layout of the result."""
        return self.shards if self.merge is None else self.merge.target

    @cached_property
    def traffic(self) -> Ints:
        """Bytes that each rank sends to each, [sender, receiver]."""
        moved = np.zeros((self.size, self.size), np.int64)
        for each in (*self.inputs, self.merge):
            if isinstance(each, GatherPlan):
                moved += halo.traffic(each)
            elif each is not None:
                moved += redistribute.traffic(each)
        return moved

    def peak_bytes(self) -> int:
        """Return the most bytes of a rank: blocks and shards of the arguments and the result."""
        itemsize = dtype_named(self.dtype).itemsize
        shares = self.shards.shares(self.size, itemsize) + self.result.shares(self.size, itemsize)
        for each in self.inputs:
            source = each.layout if isinstance(each, GatherPlan) else each.source
            for layout in (source, each.target):
                shares += layout.shares(self.size, each.itemsize)
        return int(shares.max())

    def seconds(self, machine: Machine) -> float:
        """Predict the seconds of the transfers; those of the function are unknown."""
        return machine.latency + transfer_seconds(self.traffic, machine)


def plan_shard_map(
    task: ShardMapTask,
    inputs: tuple[tuple[Layout, str], ...],
    shard: Layout,
    result: Layout,
    dtype: str,
    size: int,
) -> ShardMapPlan:
    """Plan a function on ranks; the plan is the same on every rank.

    ``inputs`` are layouts and dtypes, ``shard`` the shards of the result.
    """
    moves: list[RedistributePlan | GatherPlan] = []
    for (layout, kind), axis in zip(inputs, task.axes, strict=True):
        if axis is None:
            moves.append(whole_on(layout, [True] * size, kind))
        else:
            moves.append(plan_redistribute(layout, shards(layout.cuts, axis, size), kind, size))
    merge = None if shard == result else plan_redistribute(shard, result, dtype, size)
    return ShardMapPlan(task, tuple(moves), shard, dtype, size, merge)
