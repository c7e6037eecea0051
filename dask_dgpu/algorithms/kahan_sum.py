"""Compensated and reproducible sums of an array whose blocks are on several ranks.

::

      source            sums of blocks        to the owners          result
     ___________         ___________
    |  0  |  1  |       | s c | s c |  ->  0: s c + s c + s c  ->   _____ _____
    |_____|_____|       |_____|_____|                              |  0  |  1  |
    |  1  |  2  |  ->   | s c | s c |  ->  1: s c + s c + s c  ->  |_____|_____|
    |_____|_____|       |_____|_____|

Each rank reads its blocks once (:mod:`dask_dgpu.kernels.sums.compensated`,
:mod:`dask_dgpu.kernels.sums.binned`) and adds the partial sums for each block of the result in
the order of its blocks. It sends those for the blocks of another rank as one message. The owner
adds the partial sums by a tree in the order of ranks, and rounds. On several hosts with slower
links between them, one rank of each host adds the partial sums of its host first.

A message has two doubles for a compensated sum, or four for sums of doubles, which may
overflow. An exact sum is integers, so its bits depend neither on the ranks nor on the layout.
Its message has the limbs that any rank uses; one small all-reduce finds them.

References
----------
.. [1] T. Ogita, S. M. Rump and S. Oishi, "Accurate sum and dot product", SIAM Journal on
   Scientific Computing 26 (2005).
.. [2] J. Demmel and H. D. Nguyen, "Parallel reproducible summation", IEEE Transactions on
   Computers 64 (2015).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.algorithms import Progress, no_progress
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.sums.binned import LIMBS, Binned, limb_range
from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.partial import Exact, Kind, Partial, added, finished, partial_sum
from graph_opt.model.cost import Machine
from graph_opt.model.hosts import Hosts, host_by_rank, link_seconds
from graph_opt.model.layout import Cuts, Index, Layout, dtype_named, real_of

Array = Any
Blocks = Mapping[Index, Array]
Meeting = tuple[Index, int, tuple[int, ...]]
"""A block of the result, the rank that adds partial sums for it, and the ranks that have them."""

Window = tuple[int, int]
"""The first limb in messages, and the number of limbs."""

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

    @property
    def doubles(self) -> int:
        """Doubles of a compensated sum: a pair, and a second one if the first may overflow."""
        return 4 if real_of(dtype_named(self.dtype)) == np.float64 else 2

    def shape(self, index: Index) -> tuple[int, ...]:
        """Return the shape of the partial sums for a block of the result."""
        shape = list(self.result.block_shape(index))
        if not self.task.keepdims:
            for axis in sorted(self.task.axes):
                shape.insert(axis, 1)
        return (*shape, 2) if dtype_named(self.dtype).kind == "c" else tuple(shape)

    def words(self, index: Index, limbs: int) -> int:
        """Return the words of a message for a block of the result."""
        each = self.doubles if self.task.method == "compensated" else limbs + 1
        return each * prod(self.shape(index))


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
    grid = tuple(len(along) - 1 for along in cuts)
    blocks = list(np.ndindex(*grid))

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


def kahan_sum_rank(
    plan: SumPlan,
    comm: Comm,
    device: Device,
    blocks: Blocks,
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Sum as one rank; ``progress`` counts its blocks and one exchange.

    A rank sends one message to each owner of blocks that it adds to, and waits for one from
    each rank that adds to its own.
    """
    with device.computing():
        mine = sum_blocks(plan, blocks, progress)
    window = _window(plan, comm, device, mine)
    *first, last = plan.stages
    for stage in first:
        partials = _exchanged(plan, comm, device, mine, stage, window)
        with device.computing():
            mine = {
                index: added([partials[rank, index] for rank in ranks])
                for index, head, ranks in stage
                if head == comm.rank
            }
    partials = _exchanged(plan, comm, device, mine, last, window)
    with device.computing():
        result = {
            index: device.to_device(finish_block(plan, [partials[rank, index] for rank in ranks]))
            for index, owner, ranks in last
            if owner == comm.rank
        }
    device.join()  # before the messages are freed
    progress(len(blocks) + 1, len(blocks) + 1)
    return result


def sum_blocks(
    plan: SumPlan, blocks: Blocks, progress: Progress = no_progress
) -> dict[Index, Partial]:
    """Return the partial sums of blocks for each block of the result."""
    task = plan.task
    found: dict[Index, Partial] = {}
    for done, index in enumerate(sorted(blocks), 1):
        target = task.target(index)
        if target in plan.adding:
            partial = partial_sum(blocks[index], task.axes, task.method, plan.result_dtype)
            found[target] = added([found[target], partial]) if target in found else partial
        progress(done, len(blocks) + 1)
    return found


def finish_block(plan: SumPlan, partials: list[Partial]) -> Array:
    """Add the partial sums for a block of the result, and round to its dtype."""
    task = plan.task
    count = prod(plan.source.shape[axis] for axis in task.axes)
    whole = replace(added(partials), count=count)
    return finished(whole, task.kind, plan.result_dtype, task.axes, task.keepdims)


def _exchanged(
    plan: SumPlan,
    comm: Comm,
    device: Device,
    mine: Mapping[Index, Partial],
    stage: Sequence[Meeting],
    window: Window,
) -> dict[tuple[int, Index], Partial]:
    """Exchange partial sums; return those that this rank adds, by sender and block."""
    found = {(comm.rank, index): partial for index, partial in mine.items()}
    sends: dict[int, list[Index]] = defaultdict(list)
    receives: dict[int, list[Index]] = defaultdict(list)
    for index, owner, ranks in stage:
        if owner == comm.rank:
            for rank in ranks:
                if rank != owner:
                    receives[rank].append(index)
        elif comm.rank in ranks:
            sends[owner].append(index)
    dtype = "float64" if plan.task.method == "compensated" else "int64"
    device.synchronize()
    with device.transferring():
        messages = {
            owner: device.to_device(np.concatenate([_packed(mine[at], window) for at in some]))
            for owner, some in sends.items()
        }
        buffers = {
            rank: device.empty(sum(plan.words(index, window[1]) for index in some), dtype)
            for rank, some in receives.items()
        }
        comm.exchange(list(messages.items()), list(buffers.items())).wait()
    device.synchronize()
    for rank, rest in buffers.items():
        for index in receives[rank]:
            count = plan.words(index, window[1])
            words, rest = rest[:count], rest[count:]
            # an owner adds to its own blocks
            found[rank, index] = _unpacked(plan, index, words, window, mine[index])
    return found


def _window(plan: SumPlan, comm: Comm, device: Device, mine: Mapping[Index, Partial]) -> Window:
    """Agree with all ranks on the limbs in messages."""
    if plan.task.method == "compensated":
        return 0, 0
    low, high = limb_range([p.sums for p in mine.values() if isinstance(p.sums, Binned)])
    if low == high:
        low, high = LIMBS, 0  # of no effect on the other ranks
    with device.transferring():
        ends = device.to_device(np.array([-low, high], np.int64))
        comm.all_reduce(ends, "max").wait()
    device.synchronize()
    low, high = device.to_host(ends).tolist()
    carry = 1 if plan.hosts else 0  # the sum of a host may need one limb more than its terms
    return (-low, high + low + carry) if high > -low else (0, 0)


def _packed(partial: Partial, window: Window) -> Array:
    """Return partial sums as one flat array."""
    sums = partial.sums
    if isinstance(sums, Pair):
        return np.concatenate([array.reshape(-1) for array in sums.arrays()])
    low, count = window
    return np.concatenate([sums.window(low, low + count), sums.special[None]]).reshape(-1)


def _unpacked(plan: SumPlan, index: Index, words: Array, window: Window, like: Partial) -> Partial:
    """Return partial sums of another rank, in the same memory as those of this rank."""
    shape = plan.shape(index)
    if isinstance(like.sums, Pair):
        pair = Pair.of(words.reshape(plan.doubles, *shape))
        on_host = isinstance(like.sums.sums, np.ndarray)
        return replace(like, sums=pair.on_host() if on_host else pair)
    words = words if isinstance(words, np.ndarray) else words.get()
    limbs = words.reshape(window[1] + 1, *shape)
    return replace(like, sums=Binned(window[0], limbs[:-1], limbs[-1].astype(np.uint8)))
