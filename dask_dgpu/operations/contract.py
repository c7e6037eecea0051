"""Contractions: products of stacks of matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.algorithms.contract.plan import OwnerPlan, StackPlan, cost, plan_owners
from dask_dgpu.algorithms.contract.rank import contract_rank
from dask_dgpu.algorithms.contract.stack import Stack
from dask_dgpu.algorithms.summa.choose import traffic, workspace
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.matmul import MATMUL, PartProduct
from dask_dgpu.operations.operation import (
    Blocks,
    Cost,
    Operation,
    Placed,
    Progress,
    Request,
    Value,
    product_flops,
)
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Bare, Layout, counted


@dataclass(frozen=True)
class TurnPlan(StackPlan):
    """A product of two matrices over all ranks for each element of the batch, in turn.

    ``parts`` are the products for the blocks of the batch.
    """

    parts: tuple[PartProduct, ...]

    @property
    def lengths(self) -> list[int]:
        """Number of products of each part."""
        return self.a.lengths[0]

    @cached_property
    def received(self) -> Any:
        """The bytes that each rank receives for each part, (ranks, parts)."""
        columns = []
        for part, length in zip(self.parts, self.lengths, strict=True):
            columns.append(length * traffic(part.plan)[:, 1].sum(axis=0))
        return np.stack(columns, axis=1)

    @property
    def peak_bytes(self) -> int:
        """Most bytes of a rank: its blocks of all three stacks, and the workspace of a product."""
        return self.share + max(workspace(part.plan) for part in self.parts)


@dataclass(frozen=True)
class ContractPlan(Bare):
    """The product of two stacks, and which blocks of the arrays they consist of.

    ``swapped`` is whether the right array is the left stack. The result's blocks then need not be
    transposed.
    """

    stacks: tuple[Stack, Stack, Stack]
    work: OwnerPlan | TurnPlan
    result: Value
    swapped: bool
    copied_bytes: int


def _plan(request: Request) -> ContractPlan:
    subscripts, kept = request.task
    inputs, result = request.inputs, request.result
    swapped = any(subscripts.rows.endswith(last) for last in subscripts.output[-1:])
    if swapped:
        subscripts, inputs = subscripts.swapped, inputs[::-1]
    letters = subscripts.left, subscripts.right, subscripts.output
    grids = *(each.layout.grid for each in inputs), result.grid
    left, right, output = (
        Stack.of(letter, groups, grid, dict(kept))
        for letter, groups, grid in zip(letters, subscripts.groups, grids, strict=True)
    )
    stacks = left, right, output
    a, b = (stack.layout(each.layout) for stack, each in zip(stacks, inputs, strict=False))
    copied = np.zeros(request.size, np.int64)
    for stack, each, stacked in zip(stacks, inputs, (a, b), strict=False):
        if not stack.views(each.layout):
            copied += stacked.shares(request.size, np.dtype(each.dtype).itemsize)
    copied_bytes = int(copied.max())
    dtypes = inputs[0].dtype, inputs[1].dtype
    work = _best(request, a, b, dtypes, copied_bytes)
    return ContractPlan(stacks, work, result, swapped, copied_bytes)


def _best(
    request: Request, a: Layout, b: Layout, dtypes: tuple[str, str], copied: int
) -> OwnerPlan | TurnPlan:
    """Return the strategy that fits the memory, and then the one with the lower cost."""
    room = None if request.room is None else request.room - copied
    request = replace(request, room=room)
    elements = a.cuts[0][-1]
    plans: list[OwnerPlan | TurnPlan] = []
    if elements != 1:
        limits = request.size, request.machine, room
        plans.append(plan_owners(a, b, dtypes, request.result.dtype, *limits))
    if a.grid[0] < request.size or elements == 1:
        plans.append(_in_turn(request, a, b, dtypes))

    def order(work: OwnerPlan | TurnPlan) -> tuple[float, float]:
        return request.excess(work.peak_bytes), _seconds(work, request.machine)

    return min(plans, key=order)


def _in_turn(request: Request, a: Layout, b: Layout, dtypes: tuple[str, str]) -> TurnPlan:
    """Plan the product of each block of the batch."""
    result = Value((a.cuts[1], b.cuts[2]), request.result.dtype)
    task = tuple(range(a.grid[1])), tuple(range(b.grid[2])), None, None
    known: dict[Any, PartProduct] = {}
    parts = []
    for i in range(a.grid[0]):
        pair = _matrix(a, i, dtypes[0]), _matrix(b, i, dtypes[1])
        room = request.room
        if room is not None:
            room -= _others(a, b, dtypes, result, pair, request.size)
        if (pair, room) not in known:
            given = replace(request, inputs=pair, result=result, task=task, room=room)
            known[pair, room] = MATMUL.plan(given)
        parts.append(known[pair, room])
    owners = tuple(owner for part in parts for owner in MATMUL.layout(part).owners)
    return TurnPlan(a, b, dtypes, result.dtype, request.size, owners, tuple(parts))


def _others(
    a: Layout,
    b: Layout,
    dtypes: tuple[str, str],
    result: Value,
    pair: tuple[Placed, Placed],
    size: int,
) -> int:
    """Return the most bytes of a rank in other matrices than these, with even results."""
    sizes = [np.dtype(dtype).itemsize for dtype in dtypes]
    held = sum(
        stack.shares(size, nbytes) - one.layout.shares(size, nbytes)
        for stack, one, nbytes in zip((a, b), pair, sizes, strict=True)
    )
    products = a.cuts[0][-1] - 1
    made = products * prod(cuts[-1] for cuts in result.cuts) * np.dtype(result.dtype).itemsize
    return int(np.max(held)) + made // size


def _matrix(stack: Layout, at: int, dtype: str) -> Placed:
    """Return a matrix of a stack, of some block of the batch."""
    rows, columns = stack.cuts[1:]
    count = (len(rows) - 1) * (len(columns) - 1)
    return Placed(Layout((rows, columns), stack.owners[at * count : (at + 1) * count]), dtype)


def _layout(plan: ContractPlan) -> Layout:
    return Layout(plan.result.cuts, plan.stacks[2].spread(plan.work.result.owners))


def _run(
    plan: ContractPlan,
    comm: Comm,
    device: Device,
    left: Blocks,
    right: Blocks,
    *,
    progress: Progress,
) -> Blocks:
    if plan.swapped:
        left, right = right, left
    a, b = plan.stacks[0].blocks(left), plan.stacks[1].blocks(right)
    made: Blocks
    if isinstance(plan.work, OwnerPlan):
        made = contract_rank(plan.work, comm, device, a, b, progress)
    else:
        made = _run_in_turn(plan.work, comm, device, a, b, progress)
    return plan.stacks[2].restored(made, plan.result)


def _run_in_turn(
    plan: TurnPlan, comm: Comm, device: Device, a: Blocks, b: Blocks, progress: Progress
) -> Blocks:
    result = {
        index: device.empty(plan.result.block_shape(index), plan.dtype)
        for index in plan.result.owned(comm.rank)
        if plan.lengths[index[0]] != 1
    }
    steps = [part.plan.steps for part in plan.parts]
    total = sum(step * length for step, length in zip(steps, plan.lengths, strict=True))
    before = 0
    for i, (part, length) in enumerate(zip(plan.parts, plan.lengths, strict=True)):
        matrices = [
            {index[1:]: block for index, block in stack.items() if index[0] == i}
            for stack in (a, b)
        ]
        for element in range(length):
            factors = (
                {index: block[element] for index, block in stack.items()} for stack in matrices
            )

            def advance(done: int, _: int, before: int = before) -> None:
                progress(before + done, total)

            made: Any = MATMUL.run(part, comm, device, *factors, progress=advance)
            for index, block in made.items():
                if length == 1:
                    result[i, *index] = block[None]
                else:
                    result[i, *index][element] = block
            before += steps[i]
    return result


def _cost(plan: ContractPlan, machine: Machine) -> Cost:
    work = plan.work
    copying = 2 * plan.copied_bytes / machine.memory_bandwidth
    seconds = _seconds(work, machine) + copying
    peak = work.peak_bytes + plan.copied_bytes
    moved = int(work.received.sum(axis=1).max())
    if isinstance(work, OwnerPlan):
        text = f"owner computes, {counted(work.rounds, 'round')}"
        details = ("strategy", "owner computes"), ("steps", work.rounds)
        return Cost(seconds, moved, peak, text, details)
    first, products = MATMUL.cost(work.parts[0], machine), sum(work.lengths)
    text = first.text if products == 1 else f"{products} products in turn, {first.text}"
    return Cost(seconds, moved, peak, text, first.details)


def _flops(plan: ContractPlan) -> float:
    work = plan.work
    elements = int(work.result.shares(work.size, 1).sum())
    return product_flops(elements * work.a.cuts[2][-1], work.dtype)


def _seconds(work: OwnerPlan | TurnPlan, machine: Machine) -> float:
    if isinstance(work, OwnerPlan):
        return cost(work, machine)
    costs = (MATMUL.cost(part, machine).seconds for part in work.parts)
    return sum(cost * length for cost, length in zip(costs, work.lengths, strict=True))


CONTRACT = Operation(plan=_plan, layout=_layout, run=_run, cost=_cost, flops=_flops)
