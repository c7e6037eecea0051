"""The strategies of contractions: what is planned, and what ranks receive."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.operations import contract
from dask_dgpu.operations.operation import Placed, Request, Value
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Layout, cuts_of
from graph_opt.model.subscripts import Subscripts
from tests.array.contract.test_local import numbers
from tests.support.recording import Ledger, RecordingComm


def request(size: int, batch: tuple[int, ...], side: int, *grid: int) -> Request:
    """Ask for the product of two stacks whose square blocks are dealt out in order.

    The grid are the numbers of blocks along rows, contraction and columns.
    """
    first, rows, inner, columns = map(cuts_of, (batch, *((side,) * blocks for blocks in grid)))
    operands = []
    for cuts in ((first, rows, inner), (first, inner, columns)):
        count = prod(len(each) - 1 for each in cuts)
        owners = tuple(at * size // count for at in range(count))
        operands.append(Placed(Layout(cuts, owners), "float64"))
    result = Value((first, rows, columns), "float64")
    task = Subscripts("abc", "acd", "abd"), ()
    return Request(tuple(operands), result, task, size, HOST, None)


@pytest.mark.parametrize(
    ("batch", "side", "grid", "text"),
    [
        ((1,) * 64, 256, (1, 1, 1), "owner computes, 1 round"),
        ((16,) * 4, 256, (1, 1, 1), "owner computes, 1 round"),
        ((2,), 512, (1, 16, 1), "2 products in turn, inner, mesh (1, 1, 4), "),
        ((1,), 1024, (4, 4, 4), "summa, mesh (2, 2, 1), "),
    ],
)
def test_strategies(batch: tuple[int, ...], side: int, grid: tuple[int, ...], text: str) -> None:
    given = request(4, batch, side, *grid)
    plan = contract.CONTRACT.plan(given)
    cost = contract.CONTRACT.cost(plan, HOST)
    assert cost.text.startswith(text), cost
    layouts = *(each.layout for each in given.inputs), contract.CONTRACT.layout(plan)
    assert cost.peak_bytes >= max(sum(each.share(rank, 8) for each in layouts) for rank in range(4))
    assert cost.moved_bytes == 0 or "owner" not in text


def test_products_in_turn_leave_room_for_the_others() -> None:
    given = request(4, (4, 4), 256, 4, 4, 4)
    a, b = (each.layout for each in given.inputs)

    def planned(room: float | None) -> contract.TurnPlan:
        return contract._in_turn(replace(given, room=room), a, b, ("float64", "float64"))

    rich = planned(None)
    poor = planned(rich.peak_bytes - 1)
    assert poor.peak_bytes < rich.peak_bytes
    assert poor.parts[0].plan.steps > rich.parts[0].plan.steps


@pytest.mark.parametrize("strategy", ["owner computes", "in turn", "no batch"])
def test_ranks_receive_what_is_planned(strategy: str) -> None:
    batch = (1,) if strategy == "no batch" else (2, 2)
    given = request(4, batch, 8, 4, 4, 4)
    plan = contract.CONTRACT.plan(given)
    if strategy == "in turn":
        work = plan.work
        turns = contract._in_turn(given, work.a, work.b, ("float64", "float64"))
        plan = replace(plan, work=turns)
    cost = contract.CONTRACT.cost(plan, HOST)
    assert ("owner" in cost.text, "in turn" in cost.text) == (
        strategy == "owner computes",
        strategy == "in turn",
    )
    layouts = [each.layout for each in given.inputs]
    whole = [numbers(*layout.shape, seed=seed) for seed, layout in enumerate(layouts)]

    def rank_program(comm: Comm) -> tuple[Any, Ledger]:
        recording, device, steps = RecordingComm(comm), HostDevice(), []
        mine = (
            {index: values[_slices(layout, index)] for index in layout.owned(comm.rank)}
            for layout, values in zip(layouts, whole, strict=True)
        )
        made = contract.CONTRACT.run(
            plan, recording, device, *mine, progress=lambda *done: steps.append(done)
        )
        assert steps[-1][0] == steps[-1][1] == len(steps)
        return made, recording.ledger

    found = run_local(4, rank_program)
    assert max(ledger.bytes_received for _, ledger in found) == cost.moved_bytes > 0
    result = contract.CONTRACT.layout(plan)
    for rank, (made, _) in enumerate(found):
        assert set(made) == set(result.owned(rank))
        for index, block in made.items():
            np.testing.assert_array_equal(block, (whole[0] @ whole[1])[_slices(result, index)])


def _slices(layout: Layout, index: tuple[int, ...]) -> tuple[slice, ...]:
    cuts = zip(layout.cuts, index, strict=True)
    return tuple(slice(along[at], along[at + 1]) for along, at in cuts)


def test_blocks_that_cannot_be_viewed_as_matrices_count_as_copies() -> None:
    given = request(2, (2, 2), 4, 2, 2, 2)
    plan = contract.CONTRACT.plan(given)
    assert plan.copied_bytes == 0
    x, y = given.inputs
    task = Subscripts("bac", "cad", "bad"), ()
    operands = x.transposed((1, 0, 2)), y.transposed((1, 0, 2))
    cuts = operands[0].layout.cuts
    swapped = Request(operands, Value(cuts, "float64"), task, 2, HOST, None)
    assert contract.CONTRACT.plan(swapped).copied_bytes == 0  # a batch of one axis is a view
    four = Subscripts("abcd", "acbe", "ade")
    cuts = (given.inputs[0].layout.cuts[1],) * 4
    placed = Placed(Layout(cuts, (0, 1) * 8), "float64")
    plan = contract.CONTRACT.plan(
        Request((placed, placed), Value(cuts[:3], "float64"), (four, ()), 2, HOST, None)
    )
    assert plan.copied_bytes == placed.layout.share(0, 8)
