"""Products of stacks on ranks against NumPy, and their cost against their plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.contract.plan import OwnerPlan, cost, plan_owners
from dask_dgpu.algorithms.contract.rank import contract_rank, schedule
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Layout, cuts_of
from tests.support.profiles import examples
from tests.support.recording import Ledger, RecordingComm

Array = Any
Blocks = dict[tuple[int, ...], Array]
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex128"]


def blocks_of(layout: Layout, whole: Array) -> Blocks:
    """All blocks of an array, as views of it."""
    spans = [[slice(*span) for span in pairwise(cuts)] for cuts in layout.cuts]
    return {
        index: whole[tuple(along[at] for along, at in zip(spans, index, strict=True))]
        for index in layout.indices()
    }


@dataclass(frozen=True)
class Problem:
    """Two stacks and the plan of their product."""

    a: Array
    b: Array
    plan: OwnerPlan

    def run(self) -> list[tuple[Blocks, Ledger]]:
        """Multiply on ranks that are threads."""
        operands = (self.plan.a, self.a), (self.plan.b, self.b)

        def rank_program(comm: Comm) -> tuple[Blocks, Ledger]:
            recording = RecordingComm(comm)
            mine = (
                {
                    at: block
                    for at, block in blocks_of(*each).items()
                    if each[0].owner(at) == comm.rank
                }
                for each in operands
            )
            with np.errstate(all="ignore"):
                return contract_rank(self.plan, recording, HostDevice(), *mine), recording.ledger

        return run_local(self.plan.size, rank_program)

    def check(self, found: list[tuple[Blocks, Ledger]]) -> None:
        """Compare each block with NumPy's."""
        dtype, wide = np.dtype(self.plan.dtype), self.plan.accumulator
        with np.errstate(all="ignore"):
            whole = np.matmul(self.a.astype(wide), self.b.astype(wide)).astype(dtype)
        expected = blocks_of(self.plan.result, whole)
        made = {index: block for blocks, _ in found for index, block in blocks.items()}
        assert made.keys() == expected.keys()
        for index, block in made.items():
            assert block.dtype == dtype
            assert block.flags.c_contiguous
            np.testing.assert_array_equal(block, expected[index])  # small integers are exact


@st.composite
def chunks(draw: st.DrawFn, longest: int) -> tuple[int, ...]:
    """Uneven chunks of an axis; some may be empty."""
    return tuple(draw(st.lists(st.integers(0, longest), min_size=1, max_size=4)))


def layout(draw: st.DrawFn, size: int, *along: tuple[int, ...]) -> Layout:
    count = int(np.prod([len(each) for each in along]))
    owners = draw(
        st.just([rank * size // count for rank in range(count)])
        | st.lists(st.integers(0, size - 1), min_size=count, max_size=count)
    )
    return Layout(tuple(map(cuts_of, along)), tuple(owners))


def values(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    low = 0 if dtype[0] in "bu" else -3
    return np.random.default_rng(seed).integers(low, 4, shape).astype(dtype)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    size = draw(st.integers(1, 7))
    batch, rows, inner, columns = (draw(chunks(longest)) for longest in (3, 5, 5, 5))
    a, b = layout(draw, size, batch, rows, inner), layout(draw, size, batch, inner, columns)
    left, right = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(DTYPES))
    dtype = np.result_type(left, right).name
    plan = plan_owners(a, b, (left, right), dtype, size, HOST, draw(st.none() | st.just(100.0)))
    plan = replace(plan, rounds=draw(st.sampled_from([plan.rounds, 1, 2, 3])))
    order = draw(st.sampled_from([(0, 1, 2), (0, 2, 1), (2, 1, 0)]))
    arrays = (values(each.shape, dt, 3) for each, dt in ((a, left), (b, right)))
    return Problem(*(x.transpose(order).copy().transpose(np.argsort(order)) for x in arrays), plan)


@given(problems())
@examples(200)
def test_every_product_is_that_of_numpy_and_costs_what_is_planned(problem: Problem) -> None:
    found, plan = problem.run(), problem.plan
    problem.check(found)
    received = [ledger.bytes_received for _, ledger in found]
    assert received == plan.received.sum(axis=1).tolist()
    assert sum(ledger.bytes_sent for _, ledger in found) == sum(received)
    calls = [sum(ledger.calls.values()) for _, ledger in found]
    assert max(calls) <= plan.rounds


@given(problems())
@examples(50)
def test_each_block_arrives_once_before_its_first_use_and_leaves_after_its_last(
    problem: Problem,
) -> None:
    plan = problem.plan
    for rank in range(plan.size):
        seen, gone = set(), set()
        for step in schedule(plan, rank):
            arrived = {message[1:] for message in step.receives}
            assert not arrived & seen
            seen |= arrived
            for batch, i, j in step.blocks:
                for k in range(plan.a.grid[2]):
                    for operand, index in ((0, (batch, i, k)), (1, (batch, k, j))):
                        which = (plan.a, plan.b)[operand]
                        there = which.owner(index) == rank or not all(which.block_shape(index))
                        assert there or (operand, index) in seen - gone
            gone |= {message[1:] for message in step.spent}
        assert gone == seen


def even(size: int, batch: int, rows: int = 2, inner: int = 2, columns: int = 2) -> OwnerPlan:
    """A plan for operands whose blocks are dealt out in order, all of 4 x 4."""
    cuts = tuple(cuts_of([length] * n) for length, n in ((1, batch), (4, rows), (4, inner)))
    count = batch * rows * inner
    owners = tuple(at * size // count for at in range(count))
    a = Layout(cuts, owners)
    count = batch * inner * columns
    owners = tuple(at * size // count for at in range(count))
    b = Layout((cuts[0], cuts[2], cuts_of([4] * columns)), owners)
    return plan_owners(a, b, ("float64", "float64"), "float64", size, HOST)


def test_few_blocks_of_the_batch_are_split_among_ranks() -> None:
    plan = even(4, 1, rows=4, columns=4)
    assert np.bincount(plan.owners).tolist() == [4] * 4
    assert plan.received.any()


def test_memory_is_bounded_by_rounds() -> None:
    plan = even(2, 1, rows=16, inner=1, columns=1)
    a = Layout(plan.a.cuts, (0,) * 16)
    free = plan_owners(a, plan.b, plan.dtypes, plan.dtype, 2, HOST)
    bounded = plan_owners(a, plan.b, plan.dtypes, plan.dtype, 2, HOST, room=1.0)
    assert bounded.rounds > 1
    assert bounded.peak_bytes <= replace(bounded, rounds=1).peak_bytes
    assert cost(free, HOST) <= cost(replace(free, rounds=4), HOST)
