"""The ranks that compute blocks, and the blocks that travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.operations.operation import Node, Shipment, Value
from dask_dgpu.runtime.placement import PARCEL, SMALL, Placement
from graph_opt.model.layout import Layout

GRID = Value(((0, 4, 8), (0, 4, 8)), "float64")
LINE = Value(((0, 4, 8),), "float64")
SCALAR = Value((), "float64")
ONES = Value(((0, 1, 2), (0, 1, 2)), "float64")
LARGE = Value(((0, 1 << 12, 1 << 13), (0, 4, 8)), "float64")
VALUES = GRID, LINE, SCALAR, LARGE
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
    numbered = [tuple((inputs.index(need), at) for need, at in each) for each in needs.values()]
    placement.make(name, Node(None, tuple(inputs), value, needs=tuple(numbered), once=once))


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


def test_of_equals_the_block_at_the_same_place_stays() -> None:
    placement = placed((0, 0, 1, 1))
    make(placement, "y", GRID, {(i, j): sorted({("x", (i, j)), ("x", (j, i))}) for i, j in BLOCKS})
    assert placement.placed("y").layout.owners == (0, 0, 1, 1)
    assert placement.making("y").shipments == (
        Shipment("x", (1, 0), 1, 0),
        Shipment("x", (0, 1), 0, 1),
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
    ranks = {index: {*ranks} for index, ranks in placement.making("k").ranks.items()}
    assert ranks == {(0,): {0, 1}, (1,): {1, 2}}
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
    needs: dict[str, Any] = {"v0": dict.fromkeys(BLOCKS)}
    alone: set[str] = set()
    for step in range(1, data.draw(st.integers(2, 7))):
        name, value = f"v{step}", data.draw(st.sampled_from(VALUES))
        known = [(each, index) for each, blocks in needs.items() for index in blocks]
        reads = st.lists(st.sampled_from(known), max_size=3)
        needs[name] = {index: data.draw(reads) for index in value.indices()}
        once = data.draw(st.booleans())
        alone |= {name} if once else set()
        make(placement, name, value, needs[name], once)
        if data.draw(st.booleans()):
            placement.placed(data.draw(st.sampled_from(list(needs))))
    final = placement.placed(name)
    there = {("v0", index): {owner} for index, owner in zip(BLOCKS, owners, strict=True)}
    for name in list(needs)[1:]:
        making = placement.making(name)
        received: dict[Any, set[int]] = {}
        for each in making.shipments:
            assert each.source in there[each.value, each.index]
            received.setdefault((each.value, each.index), set()).add(each.target)
        for index, makers in making.ranks.items():
            assert len(makers) <= 1 or name not in alone
            for need in needs[name][index]:
                assert set(makers) <= there.get(need, set()) | received.get(need, set())
            there[name, index] = set(makers)
    assert all(owner in there[name, index] for index, owner in final.owners())


def dot(placement: Placement, name: str, *factors: str) -> None:
    """Add partial sums of blocks with the same index, and their sum."""
    parts = {index: [(each, index) for each in factors] for index in BLOCKS}
    make(placement, f"{name} in parts", ONES, parts)
    make(placement, name, SCALAR, {(): [(f"{name} in parts", index) for index in BLOCKS]})


EVERYWHERE = [("s in parts", BLOCKS[at], at, to) for at in range(4) for to in range(4) if at != to]


def scaled(by: str) -> dict[Any, Any]:
    """Return the needs of blocks times a number."""
    return {index: [("x", index), (by, ())] for index in BLOCKS}


def shipped(placement: Placement, name: str) -> list[tuple[Any, ...]]:
    shipments = placement.making(name).shipments
    return sorted((each.value, each.index, each.source, each.target) for each in shipments)


def test_a_sum_that_all_read_is_computed_by_all() -> None:
    """The parts travel to everybody, in the step of the sum; nothing travels afterwards."""
    placement = placed((0, 1, 2, 3), size=4)
    dot(placement, "s", "x")
    make(placement, "y", GRID, scaled("s"))
    assert placement.making("s").ranks == {(): (0, 1, 2, 3)}
    assert shipped(placement, "s") == EVERYWHERE
    assert placement.making("y").shipments == ()


def test_numbers_made_of_sums_are_computed_by_all() -> None:
    placement = placed((0, 1, 2, 3), size=4)
    dot(placement, "s", "x")
    dot(placement, "t", "x", "x")
    make(placement, "alpha", SCALAR, {(): [("s", ()), ("t", ())]})
    make(placement, "y", GRID, scaled("alpha"))
    dot(placement, "u", "y")
    make(placement, "beta", SCALAR, {(): [("u", ()), ("s", ())]})  # of a sum that all have by now
    make(placement, "z", GRID, {index: [("y", index), ("beta", ())] for index in BLOCKS})
    for name in ("s", "t", "alpha", "u", "beta"):
        assert placement.making(name).ranks == {(): (0, 1, 2, 3)}
    made = [*"stuyz", "alpha", "beta", *(f"{name} in parts" for name in "stu")]
    assert {name for name in made if shipped(placement, name)} == {"s", "t", "u"}


def test_a_tree_of_sums_takes_one_exchange() -> None:
    placement = placed((0, 1, 2, 3), size=4)
    make(placement, "parts", ONES, same("x"))
    rows = {(i,): [("parts", (i, j)) for j in range(2)] for i in range(2)}
    make(placement, "rows", Value(((0, 1, 2),), "float64"), rows)
    make(placement, "s", SCALAR, {(): [("rows", (0,)), ("rows", (1,))]})
    make(placement, "y", GRID, scaled("s"))
    assert set(placement.making("rows").ranks.values()) == {(0, 1, 2, 3)}
    assert len(shipped(placement, "rows")) == 4 * 3
    assert shipped(placement, "s") == shipped(placement, "y") == []


def test_the_sum_of_a_users_function_is_computed_once() -> None:
    placement = placed((0, 1, 2, 3), size=4)
    make(placement, "parts", ONES, same("x"))
    make(placement, "s", SCALAR, {(): [("parts", index) for index in BLOCKS]}, once=True)
    make(placement, "y", GRID, scaled("s"))
    assert placement.making("s").ranks == {(): (0,)}
    assert len(shipped(placement, "s")) == len(shipped(placement, "y")) == 3


def test_large_parts_meet_on_one_rank() -> None:
    """Up to the limit everybody receives all parts; beyond it one rank does and sends the sum."""
    fits = (SMALL - SCALAR.nbytes(())) // (4 * 8) // 2 * 2
    for length, ranks in ((fits, (0, 1, 2, 3)), (fits + 2, (0,))):
        parts = Value(((0, length // 2, length), (0, 2, 4)), "float64")
        assert parts.nbytes((0, 0)) > PARCEL
        placement = placed((0, 1, 2, 3), size=4)
        placement.put("parts", parts, Layout(parts.cuts, (0, 1, 2, 3)))
        make(placement, "s", SCALAR, {(): [("parts", index) for index in BLOCKS]})
        make(placement, "y", GRID, scaled("s"))
        assert placement.making("s").ranks == {(): ranks}
        assert len(shipped(placement, "y")) == 4 - len(ranks)


def test_many_parts_meet_on_one_rank() -> None:
    """Each counts as a message, however small it is."""
    for count, ranks in ((SMALL // PARCEL - 1, (0, 1)), (SMALL // PARCEL, (0,))):
        line = Value((tuple(range(count + 1)),), "float64")
        placement = Placement(2)
        owners = tuple(at % 2 for at in range(count))
        placement.put("x", line, Layout(line.cuts, owners))
        make(placement, "s", SCALAR, {(): [("x", (at,)) for at in range(count)]})
        make(placement, "y", line, {(at,): [("x", (at,)), ("s", ())] for at in range(count)})
        assert placement.making("s").ranks == {(): ranks}


def test_many_free_sums_are_added_where_their_parts_are() -> None:
    """Together they are large: each is computed by one rank, as if it were read there."""
    count = SMALL // PARCEL // 2
    line = Value((tuple(range(2 * count + 3)),), "float64")
    half = Value((tuple(range(count + 1)),), "float64")
    placement = Placement(2)
    placement.put("x", line, Layout(line.cuts, tuple(at % 2 for at in range(2 * count + 2))))
    pairs = {(at,): [("x", (2 * at + 3,)), ("x", (2 * at + 2,))] for at in range(count)}
    make(placement, "pairs", half, pairs)
    assert set(placement.making("pairs").ranks.values()) == {()}
    make(placement, "s", SCALAR, {(): [("pairs", (at,)) for at in range(count)]})
    assert set(placement.making("pairs").ranks.values()) == {(1,)}
    assert placement.making("s").ranks == {(): (1,)}


def test_a_sum_that_nobody_else_reads_meets_where_most_of_it_is() -> None:
    placement = placed((0, 1, 1, 2))
    dot(placement, "s", "x")
    assert placement.placed("s").layout.owners == (1,)
    assert len(shipped(placement, "s")) == 2


def test_blocks_that_are_not_joined_stay_where_most_of_them_is() -> None:
    """Only reductions wait for their readers; a sum of two arrays does not."""
    placement = placed((0, 0, 1, 1))
    placement.put("z", GRID, Layout(GRID.cuts, (1, 1, 0, 0)))
    make(placement, "y", GRID, {index: [("x", index), ("z", index)] for index in BLOCKS})
    assert list(placement.making("y").ranks.values()) == [(0,), (0,), (1,), (1,)]
