"""Programs are planned once; where blocks are computed, and which of them travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device.host import HostDevice
from dask_dgpu.operations.value import Shipment, Value
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.placement import Placement
from dask_dgpu.runtime.plans import Owners, Plans, plans, received
from dask_dgpu.runtime.program import Program
from graph_opt.model.layout import Layout, dealt

RANKS = 3


def program_of(array: da.Array) -> Program:
    with dgpu.enable(local_ranks=RANKS, when="always", on_error="raise") as enabled:
        optimizer = enabled.optimizer
        ((region, _),) = optimizer.rewrite(array.dask, array.__dask_keys__()).regions
        return optimizer.program(region)


def owners_of(program: Program, shift: int = 0) -> Owners:
    counts = {name: len(value.indices()) for name, value in program.inputs}
    return {
        name: tuple((rank + shift) % RANKS for rank in dealt(count, RANKS))
        for name, count in counts.items()
    }


def product(seed: int, size: int = 12) -> da.Array:
    x, y = (da.from_array(each, 4) for each in np.random.default_rng(seed).random((2, size, size)))
    return (x @ y + 1) @ x


def test_the_same_structure_is_planned_once() -> None:
    first, second = program_of(product(0)), program_of(product(1))
    assert not {*first.names} & {*second.names}
    found = plans(first, owners_of(first), RANKS)
    again = plans(second, owners_of(second), RANKS)
    assert again.fixed is found.fixed
    assert {*again.collectives} == {
        each.output for each in second.steps if each.output in again.collectives
    }
    assert [*again.values] != [*found.values]


@pytest.mark.parametrize("change", ["owners", "ranks", "shape"])
def test_what_plans_depend_on(change: str) -> None:
    program = program_of(product(0))
    found = plans(program, owners_of(program), RANKS).fixed
    if change == "owners":
        other = plans(program, owners_of(program, shift=1), RANKS)
    elif change == "ranks":
        other = plans(program, owners_of(program), RANKS + 1)
    else:
        larger = program_of(product(0, size=16))
        other = plans(larger, owners_of(larger), RANKS)
    assert other.fixed is not found


def test_ranks_run_what_they_have_received() -> None:
    program = program_of(product(0))
    owners = owners_of(program)
    sent = plans(program, owners, RANKS)
    assert received(sent.fixed.payload) is received(bytes(bytearray(sent.fixed.payload)))
    assert sent.fixed.payload is sent.fixed.payload
    arrays = dict(zip((name for name, _ in program.inputs), [*_inputs(product(0))], strict=True))

    def rank_program(comm: Comm) -> dict[Any, Any]:
        mine = {
            name: {
                index: arrays[name][_slices(value, index)].copy()
                for index, owner in zip(value.indices(), owners[name], strict=True)
                if owner == comm.rank
            }
            for name, value in program.inputs
        }
        fixed = Plans(program, received(sent.fixed.payload))
        return execute(program, fixed, comm, HostDevice(), mine)

    made = {}
    for part in run_local(RANKS, rank_program):
        made |= part
    assert {*made} == {*sent.placed()}
    x, y = _inputs(product(0))
    expected = (x @ y + 1) @ x
    last = program.steps[-1]
    for index in last.result.indices():
        wanted = expected[_slices(last.result, index)]
        np.testing.assert_allclose(made[last.output, *index], wanted, rtol=1e-12)


def _inputs(array: da.Array) -> list[np.ndarray]:
    return list(np.random.default_rng(0).random((2, *array.shape)))


def _slices(value: Value, index: tuple[int, ...]) -> tuple[slice, ...]:
    cuts = value.cuts
    return tuple(slice(c[i], c[i + 1]) for c, i in zip(cuts, index, strict=True))


GRID = Value(((0, 4, 8), (0, 4, 8)), "float64")
LINE = Value(((0, 4, 8),), "float64")
SCALAR = Value((), "float64")
BLOCKS = GRID.indices()


def same(name: str) -> dict[Any, Any]:
    """Each block is made of the one in the same place."""
    return {index: [(name, index)] for index in BLOCKS}


def placed(owners: tuple[int, ...], size: int = 3) -> Placement:
    placement = Placement(size)
    placement.put("x", GRID, Layout(GRID.cuts, owners))
    return placement


def make(
    placement: Placement, name: str, value: Value, needs: Mapping[Any, Any], once: bool = False
) -> None:
    """Make each block of blocks that are given by name and place."""
    inputs = sorted({need for blocks in needs.values() for need, _ in blocks})
    numbered = {
        index: [(inputs.index(need), at) for need, at in blocks] for index, blocks in needs.items()
    }
    placement.make(name, value, inputs, numbered, once)


def test_elementwise_work_stays_where_its_blocks_are() -> None:
    placement = placed((2, 1, 0, 2))
    make(placement, "y", GRID, same("x"))
    assert placement.placed("y").layout.owners == (2, 1, 0, 2)
    assert placement.making("y").shipments == ()


def test_of_two_blocks_in_two_places_the_second_travels() -> None:
    placement = placed((0, 0, 1, 1))
    placement.put("z", GRID, Layout(GRID.cuts, (1, 0, 1, 2)))
    make(placement, "y", GRID, {index: [("x", index), ("z", index)] for index in BLOCKS})
    assert placement.placed("y").layout.owners == (0, 0, 1, 1)
    assert placement.making("y").shipments == (
        Shipment("z", (0, 0), 1, 0),
        Shipment("z", (1, 1), 2, 1),
    )


def test_what_is_made_of_nothing_is_made_where_it_is_read() -> None:
    placement = placed((2, 1, 0, 2))
    make(placement, "k", GRID, {index: [] for index in BLOCKS})
    make(placement, "mask", GRID, same("k"))
    assert set(placement.making("mask").ranks.values()) == {()}
    make(placement, "y", GRID, {index: [("x", index), ("mask", index)] for index in BLOCKS})
    for name in ("k", "mask", "y"):
        assert list(placement.making(name).ranks.values()) == [(2,), (1,), (0,), (2,)]
        assert placement.making(name).shipments == ()


def test_broadcast_blocks_are_made_by_all_who_read_them() -> None:
    placement = placed((0, 1, 2, 1))
    make(placement, "k", LINE, {(0,): [], (1,): []})
    rows = {(i, j): [("x", (i, j)), ("k", (i,))] for i, j in BLOCKS}
    make(placement, "y", GRID, rows)
    assert dict(placement.making("k").ranks) == {(0,): (0, 1), (1,): (1, 2)}
    assert placement.making("y").shipments == ()


def test_what_must_be_made_once_is_sent_to_who_else_reads_it() -> None:
    placement = placed((0, 1, 2, 1))
    make(placement, "k", LINE, {(0,): [], (1,): []}, once=True)
    make(placement, "y", GRID, {(i, j): [("x", (i, j)), ("k", (i,))] for i, j in BLOCKS})
    assert dict(placement.making("k").ranks) == {(0,): (0,), (1,): (2,)}
    assert placement.making("y").shipments == (
        Shipment("k", (0,), 0, 1),
        Shipment("k", (1,), 2, 1),
    )


def test_little_does_not_bind() -> None:
    """A grid made of a line that is somewhere has no place yet."""
    placement = Placement(3)
    placement.put("k", LINE, Layout(LINE.cuts, (1, 1)))
    make(placement, "grid", GRID, {(i, j): [("k", (i,))] for i, j in BLOCKS})
    assert set(placement.making("grid").ranks.values()) == {()}
    assert placement.placed("grid").layout.owners == (0, 1, 1, 2)
    assert {(each.value, each.target) for each in placement.making("grid").shipments} == {
        ("k", 0),
        ("k", 2),
    }


def test_a_reduction_gathers_where_most_is() -> None:
    placement = placed((0, 1, 1, 2))
    make(placement, "sum", SCALAR, {(): [("x", index) for index in BLOCKS]})
    assert placement.placed("sum").layout.owners == (1,)
    assert {each.source for each in placement.making("sum").shipments} == {0, 2}


def test_readers_of_readers() -> None:
    """Who is placed by another reader of the same block is known before that block is."""
    placement = placed((0, 1, 1, 2))
    make(placement, "k", GRID, {index: [] for index in BLOCKS})
    make(placement, "l", GRID, same("k"))
    turned = {(i, j): [("x", (i, j)), ("k", (i, j)), ("l", (j, i))] for i, j in BLOCKS}
    make(placement, "y", GRID, turned)
    holders = placement.making("k").ranks
    for index, ranks in placement.making("l").ranks.items():
        sent = {e.target for e in placement.making("l").shipments if e.index == index}
        assert set(ranks) <= set(holders[index]) | sent
    for (i, j), (rank,) in placement.making("y").ranks.items():
        assert rank in holders[i, j]
        assert rank in placement.making("l").ranks[j, i]


@given(st.data())
def test_every_block_is_there_when_it_is_read(data: st.DataObject) -> None:
    """Follow a program of any steps as the ranks would."""
    size = data.draw(st.integers(1, 4))
    ranks = st.integers(0, size - 1)
    placement = Placement(size)
    owners = tuple(data.draw(ranks) for _ in BLOCKS)
    placement.put("v0", GRID, Layout(GRID.cuts, owners))
    needs: dict[str, Any] = {"v0": None}
    alone: set[str] = set()
    for step in range(1, data.draw(st.integers(2, 7))):
        name, known = f"v{step}", list(needs)
        needs[name] = {
            index: data.draw(
                st.lists(st.tuples(st.sampled_from(known), st.sampled_from(BLOCKS)), max_size=3)
            )
            for index in BLOCKS
        }
        once = data.draw(st.booleans())
        alone |= {name} if once else set()
        make(placement, name, GRID, needs[name], once)
        if data.draw(st.booleans()):
            placement.placed(data.draw(st.sampled_from(list(needs))))
    final = placement.placed(name)
    there = {("v0", index): {owner} for index, owner in zip(BLOCKS, owners, strict=True)}
    for name in list(needs)[1:]:
        making = placement.making(name)
        came: dict[Any, set[int]] = {}
        for each in making.shipments:
            assert each.source in there[each.value, each.index]
            came.setdefault((each.value, each.index), set()).add(each.target)
        for index, makers in making.ranks.items():
            assert len(makers) <= 1 or name not in alone
            for need in needs[name][index]:
                assert set(makers) <= there.get(need, set()) | came.get(need, set())
            there[name, index] = set(makers)
    assert all(owner in there[name, index] for index, owner in final.owners())
