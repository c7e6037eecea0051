"""The strategies of contractions: what is planned, and what ranks receive."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from dask_dgpu.comm.protocol import Comm
from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Placed, Request, Value
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Layout, cuts_of
from graph_opt.model.subscripts import Subscripts
from tests.array.contract.test_local import numbers
from tests.support.programs import on_threads, run_operation
from tests.support.recording import Ledger, RecordingComm

CONTRACT = OPERATIONS["contract"]
FAST_LINKS = replace(HOST, latency=1e-9, bandwidth=1e12, flops=1.0)


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
    plan = CONTRACT.plan(given)
    cost = CONTRACT.cost(plan, HOST)
    assert cost.text.startswith(text), cost
    layouts = *(each.layout for each in given.inputs), CONTRACT.layout(plan)
    assert cost.peak_bytes >= max(sum(each.share(rank, 8) for each in layouts) for rank in range(4))
    assert cost.moved_bytes == 0 or "owner" not in text


def test_products_in_turn_leave_room_for_the_others() -> None:
    given = replace(request(4, (4, 4), 256, 4, 4, 4), machine=FAST_LINKS)
    rich = CONTRACT.cost(CONTRACT.plan(given), FAST_LINKS)
    poor = CONTRACT.plan(replace(given, room=rich.peak_bytes - 1))
    assert "in turn" in rich.text
    assert CONTRACT.cost(poor, FAST_LINKS).peak_bytes < rich.peak_bytes


@pytest.mark.parametrize("strategy", ["owner computes", "in turn", "no batch"])
def test_ranks_receive_what_is_planned(strategy: str) -> None:
    batch = (1,) if strategy == "no batch" else (2, 2)
    machine = FAST_LINKS if strategy == "in turn" else HOST
    given = replace(request(4, batch, 8, 4, 4, 4), machine=machine)
    plan = CONTRACT.plan(given)
    cost = CONTRACT.cost(plan, machine)
    assert ("owner" in cost.text, "in turn" in cost.text) == (
        strategy == "owner computes",
        strategy == "in turn",
    )
    layouts = [each.layout for each in given.inputs]
    whole = [numbers(*layout.shape, seed=seed) for seed, layout in enumerate(layouts)]
    blocks = [
        {index: values[_slices(layout, index)] for index in layout.indices()}
        for layout, values in zip(layouts, whole, strict=True)
    ]

    def rank_program(comm: Comm) -> tuple[Any, Ledger]:
        recording = RecordingComm(comm)
        return run_operation(CONTRACT, plan, given, blocks, recording), recording.ledger

    found = on_threads(4, rank_program)
    assert max(ledger.bytes_received for _, ledger in found) == cost.moved_bytes > 0
    result = CONTRACT.layout(plan)
    for rank, (made, _) in enumerate(found):
        assert set(made) == set(result.owned(rank))
        for index, block in made.items():
            np.testing.assert_array_equal(block, (whole[0] @ whole[1])[_slices(result, index)])


@pytest.mark.parametrize(("size", "batch"), [(1, 1), (1, 5), (4, 4), (4, 8), (3, 9)])
def test_nothing_moves_with_enough_blocks_of_the_batch(size: int, batch: int) -> None:
    given = request(size, (1,) * batch, 4, 2, 2, 2)
    plan = CONTRACT.plan(given)
    assert CONTRACT.cost(plan, HOST).moved_bytes == 0
    assert np.bincount(CONTRACT.layout(plan).owners).tolist() == [batch * 4 // size] * size


def test_only_misplaced_blocks_move() -> None:
    given = request(4, (1,) * 8, 4, 2, 2, 2)
    left, right = given.inputs
    owners = (3, *left.layout.owners[1:])  # the first block is the first rank's
    moved = Placed(Layout(left.layout.cuts, owners), "float64")
    plan = CONTRACT.plan(replace(given, inputs=(moved, right)))
    assert CONTRACT.layout(plan) == CONTRACT.layout(CONTRACT.plan(given))
    assert CONTRACT.cost(plan, HOST).moved_bytes == 4 * 4 * 8


def _slices(layout: Layout, index: tuple[int, ...]) -> tuple[slice, ...]:
    cuts = zip(layout.cuts, index, strict=True)
    return tuple(slice(along[at], along[at + 1]) for along, at in cuts)


def test_blocks_that_cannot_be_viewed_as_matrices_count_as_copies() -> None:
    given = request(2, (2, 2), 4, 2, 2, 2)
    plan = CONTRACT.plan(given)
    assert plan.copied_bytes == 0
    x, y = given.inputs
    task = Subscripts("bac", "cad", "bad"), ()
    operands = x.transposed((1, 0, 2)), y.transposed((1, 0, 2))
    cuts = operands[0].layout.cuts
    swapped = Request(operands, Value(cuts, "float64"), task, 2, HOST, None)
    assert CONTRACT.plan(swapped).copied_bytes == 0  # a batch of one axis is a view
    four = Subscripts("abcd", "acbe", "ade")
    cuts = (given.inputs[0].layout.cuts[1],) * 4
    placed = Placed(Layout(cuts, (0, 1) * 8), "float64")
    plan = CONTRACT.plan(
        Request((placed, placed), Value(cuts[:3], "float64"), (four, ()), 2, HOST, None)
    )
    assert plan.copied_bytes == placed.layout.share(0, 8)
