"""Ghost cells on ranks against NumPy's pad and SciPy's, and their cost against their plan."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.halo.plan import HaloPlan, cost, plan_halo, traffic, workspace
from dask_dgpu.algorithms.halo.rank import Exchange, halo_rank
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels import pack
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.kernels.pack import Pieces
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Index, Layout, dealt
from tests.algorithms.test_redistribute import DTYPES, array, even, layouts
from tests.support.profiles import examples
from tests.support.recording import Ledger, RecordingComm
from tests.support.reference.halo import halo_reference

Array = Any
Blocks = dict[Index, Array]

LENGTHS = [0, 1, 2, 3, 5, 7, 11]
PAD = {"periodic": "wrap", "reflect": "symmetric", "mirror": "reflect", "nearest": "edge"}
BOUNDARIES = [None, "periodic", "reflect", "mirror", "nearest", 0, 3, -2.5]


class LaunchingDevice(HostDevice):
    """Has the number of launches of its copies."""

    launches = 0


@pytest.fixture(autouse=True, scope="module")
def count_launches() -> Iterator[None]:
    def counting(device: Any, *batches: Pieces) -> None:
        if isinstance(device, LaunchingDevice):
            device.launches += any(len(pieces.shapes) for pieces in batches)
        copy(device, *batches)

    copy = pack.copy_pieces
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "copy_pieces", counting)
        yield


def blocks_of(whole: Array, layout: Layout) -> Blocks:
    """All blocks that somebody has, as views."""
    return {
        index: whole[
            ..., *(slice(c[at], c[at + 1]) for c, at in zip(layout.cuts, index, strict=True))
        ]
        for index in layout.indices()
        if layout.owner(index) >= 0
    }


def padded(whole: Array, plan: HaloPlan) -> Array:
    """The array with all that lies beyond it, along one axis after the other."""
    for axis, (depth, boundary) in enumerate(zip(plan.depth, plan.boundary, strict=True)):
        width = [(0, 0)] * whole.ndim
        width[axis] = depth
        if boundary is None:
            continue
        if isinstance(boundary, str):
            whole = np.pad(whole, width, PAD[boundary])
        else:
            value = np.asarray(boundary).astype(whole.dtype)
            whole = np.pad(whole, width, constant_values=value)
    return whole


def expected(whole: Array, plan: HaloPlan) -> Blocks:
    """Each extended block, cut out of the padded array."""
    everything, found = padded(whole, plan), {}
    for index in plan.target.indices():
        if plan.target.owner(index) < 0:
            continue
        part = []
        for along, cuts, (before, after), boundary in zip(
            index, plan.layout.cuts, plan.depth, plan.boundary, strict=True
        ):
            lo, hi = cuts[along] - before, cuts[along + 1] + after
            if boundary is None:
                part.append(slice(max(0, lo), min(cuts[-1], hi)))
            else:
                part.append(slice(lo + before, hi + before))
        found[index] = everything[..., *part]
    return found


def run(plan: HaloPlan, whole: Array) -> tuple[Blocks, list[Ledger], list[LaunchingDevice]]:
    """Extend the blocks of an array on ranks that are threads."""
    every = blocks_of(whole, plan.layout)

    def rank_program(comm: Comm) -> tuple[Blocks, Ledger, LaunchingDevice]:
        recording, device = RecordingComm(comm), LaunchingDevice()
        mine = {index: every[index] for index in plan.layout.owned(comm.rank)}
        made = halo_rank(plan, recording, device, mine)
        assert list(made) == list(plan.target.owned(comm.rank))
        assert all(block.flags.c_contiguous and block.base is None for block in made.values())
        return made, recording.ledger, device

    results = run_local(plan.size, rank_program)
    blocks = {index: block for made, _, _ in results for index, block in made.items()}
    return blocks, [ledger for _, ledger, _ in results], [device for _, _, device in results]


@dataclass(frozen=True)
class Problem:
    """An array and the plan of its ghost cells."""

    whole: Array
    plan: HaloPlan


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    shape = tuple(draw(st.lists(st.sampled_from(LENGTHS), max_size=4)))
    while prod(shape) > 400:
        shape = shape[1:]
    size = draw(st.integers(1, 7))
    layout = draw(layouts(shape, st.integers(0, size - 1)))
    most = 4 if len(shape) < 3 else 2
    depth = tuple((draw(st.integers(0, most)), draw(st.integers(0, most))) for _ in shape)
    boundary = tuple(draw(st.sampled_from(BOUNDARIES if length else [None, 1])) for length in shape)
    dtype = draw(st.sampled_from(DTYPES))
    if dtype == "bool" or dtype.startswith("u"):
        boundary = tuple(0 if each == -2.5 else each for each in boundary)
    wanted = None
    if draw(st.booleans()):
        wanted = draw(st.lists(st.sampled_from(list(layout.indices())), unique=True))
    plan = plan_halo(layout, dtype, depth, boundary, size, wanted=wanted)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return Problem(array(rng, shape, dtype, draw(st.sampled_from(["C", "F", "gaps"]))), plan)


@examples(300)
@given(problem=problems())
def test_equals_numpy(problem: Problem) -> None:
    whole, plan = problem.whole, problem.plan
    before = whole.copy()
    blocks, ledgers, devices = run(plan, whole)
    np.testing.assert_array_equal(whole, before)
    wanted = expected(whole, plan)
    alike = halo_reference(plan, blocks_of(whole, plan.layout))
    assert blocks.keys() == wanted.keys() == alike.keys()
    for index, block in blocks.items():
        assert block.dtype == whole.dtype
        assert block.shape == plan.target.block_shape(index)
        np.testing.assert_array_equal(block, wanted[index])
        np.testing.assert_array_equal(alike[index], wanted[index])
        middle = block[..., *plan.interior(index)]
        np.testing.assert_array_equal(middle, blocks_of(whole, plan.layout)[index])
    table = traffic(plan)
    for rank, (ledger, device) in enumerate(zip(ledgers, devices, strict=True)):
        out = {peer: n for peer, n in enumerate(table[rank]) if n}
        into = {peer: row[rank] for peer, row in enumerate(table) if row[rank]}
        assert (dict(ledger.sent), dict(ledger.received)) == (out, into)
        assert set(ledger.messages_sent.values()) <= {1}  # one for each neighbour
        assert ledger.calls["exchange"] == bool(out or into)
        assert device.launches <= 3
    assert cost(plan, HOST) >= cost(plan, HOST, copied=False) >= 0


def grid_plan(
    shape: tuple[int, ...], parts: tuple[int, ...], depth: int, boundary: Any, **more: Any
) -> HaloPlan:
    """A plan for even blocks, one for each rank."""
    cuts = tuple(even(length, count) for length, count in zip(shape, parts, strict=True))
    size = prod(parts)
    both = ((depth, depth),) * len(shape)
    layout = Layout(cuts, dealt(size, size))
    return plan_halo(layout, "float64", both, (boundary,) * len(shape), size, **more)


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("boundary", [None, "periodic", "reflect", 0.0])
def test_what_travels_is_the_surface(depth: int, boundary: Any) -> None:
    plan = grid_plan((36, 48), (3, 3), depth, boundary, corners=False)
    whole = np.arange(36.0 * 48).reshape(36, 48)
    _, ledgers, _ = run(plan, whole)
    middle = ledgers[4]
    assert middle.bytes_sent == middle.bytes_received == 2 * (12 + 16) * depth * 8
    assert set(middle.messages_sent) == {1, 3, 5, 7}
    corner = ledgers[0]
    neighbours = 4 if boundary == "periodic" else 2
    assert len(corner.sent) == neighbours
    assert corner.bytes_sent == (12 + 16) * depth * 8 * neighbours // 2
    assert workspace(plan) == 4 * (12 + 16) * depth * 8


@pytest.mark.parametrize("shape", [(13,), (13, 11), (7, 6, 5), (4, 5, 4, 3)])
def test_without_corners(shape: tuple[int, ...]) -> None:
    parts = (2,) * len(shape)
    whole = np.random.default_rng(0).random(shape)
    full, _, _ = run(grid_plan(shape, parts, 1, "periodic"), whole)
    plan = grid_plan(shape, parts, 1, "periodic", corners=False)
    star, ledgers, _ = run(plan, whole)
    alike = halo_reference(plan, blocks_of(whole, plan.layout))
    for index, block in star.items():
        inside = np.ones(block.shape, int)
        for axis in range(block.ndim):
            lead = (slice(None),) * axis
            inside[(*lead, [0, -1])] += 1
        known = inside <= 2
        np.testing.assert_array_equal(block[known], full[index][known])
        np.testing.assert_array_equal(block[~known], 0)
        np.testing.assert_array_equal(alike[index], block)
    # with two blocks along each axis both faces are the same neighbour's: one message
    assert all(set(ledger.messages_sent.values()) == {1} for ledger in ledgers)
    assert all(len(ledger.sent) == len(shape) for ledger in ledgers)


def test_blocks_in_the_middle_of_their_storage_are_exchanged_again_and_again() -> None:
    plan = grid_plan((10, 9), (2, 3), 2, "periodic")
    rng = np.random.default_rng(1)
    arrays = [rng.random((10, 9)) for _ in range(3)]

    def rank_program(comm: Comm) -> list[Blocks]:
        device, recording = LaunchingDevice(), RecordingComm(comm)
        storage = {
            index: np.zeros(plan.target.block_shape(index))
            for index in plan.target.owned(comm.rank)
        }
        blocks = {index: kept[plan.interior(index)] for index, kept in storage.items()}
        exchange = Exchange(plan, recording, device, blocks, storage)
        found = []
        for whole in arrays:
            for index, part in blocks_of(whole, plan.layout).items():
                if index in blocks:
                    blocks[index][...] = part
            exchange.start()
            exchange.finish()
            found.append({index: kept.copy() for index, kept in storage.items()})
        assert recording.ledger.calls["exchange"] == len(arrays)
        assert device.launches == 2 * len(arrays)
        return found

    results = run_local(plan.size, rank_program)
    for step, whole in enumerate(arrays):
        wanted = expected(whole, plan)
        for made in results:
            for index, block in made[step].items():
                np.testing.assert_array_equal(block, wanted[index])


class Held:
    """Somebody who holds an array."""

    def __init__(self, array: Array) -> None:
        self.array = array


@pytest.mark.parametrize("boundary", [None, "periodic", "reflect", 3])
@pytest.mark.parametrize("held", ["nothing", "the block", "what is around", "another view"])
def test_room_around_blocks_is_used_if_nobody_can_see_it(boundary: Any, held: str) -> None:
    plan = grid_plan((10, 9), (2, 3), 1, boundary)
    whole = np.random.default_rng(1).random((10, 9))
    wanted = expected(whole, plan)

    def rank_program(comm: Comm) -> None:
        device, own = HostDevice(), plan.target.owned(comm.rank)
        storage = {index: np.zeros(plan.target.block_shape(index)) for index in own}
        blocks = {index: kept[plan.interior(index)] for index, kept in storage.items()}
        for index, part in blocks_of(whole, plan.layout).items():
            if index in blocks:
                blocks[index][...] = part
        places = {index: kept.ctypes.data for index, kept in storage.items()}
        seen = {
            "nothing": [],
            "the block": [Held(block) for block in blocks.values()],
            "what is around": [Held(kept) for kept in storage.values()],
            "another view": [Held(kept[:1]) for kept in storage.values()],
        }[held]
        before = [each.array.copy() for each in seen]
        storage.clear()
        extended = halo_rank(plan, comm, device, blocks)
        for index, block in extended.items():
            np.testing.assert_array_equal(block, wanted[index])
            assert (block.ctypes.data == places[index]) == (held == "nothing")
        for each, earlier in zip(seen, before, strict=True):
            np.testing.assert_array_equal(each.array, earlier)

    run_local(plan.size, rank_program)


def test_room_that_is_not_alike_is_not_used() -> None:
    plan = grid_plan((6, 6), (1, 1), 1, 0)
    block = np.random.default_rng(2).random((6, 6))
    others = [
        np.zeros((8, 8))[2:, 2:],  # not the middle
        np.zeros((9, 8))[1:7, 1:7],
        np.zeros((8, 8)).T[1:-1, 1:-1],
        np.frombuffer(bytearray(8 * 64)).reshape(8, 8)[1:-1, 1:-1],
    ]
    for view in others:
        view[...] = block
        kept = view.base.copy() if isinstance(view.base, np.ndarray) else None
        (extended,) = run_local(
            1, lambda comm, v=view: halo_rank(plan, comm, HostDevice(), {(0, 0): v})
        )
        np.testing.assert_array_equal(extended[0, 0], np.pad(block, 1))
        assert not np.shares_memory(extended[0, 0], view)
        if kept is not None:
            np.testing.assert_array_equal(view.base, kept)


def test_a_plan_travels_without_what_follows_from_it() -> None:
    plan = grid_plan((36, 48), (3, 3), 2, "reflect")
    run(plan, np.zeros((36, 48)))
    assert len(pickle.dumps(plan)) < 1000
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert again.target == plan.target


def test_many_blocks_are_planned_quickly() -> None:
    plan = grid_plan((400, 400), (40, 40), 3, "periodic")
    assert len(plan.cells.length) == 9 * 1600


def test_a_wanted_block_has_an_owner() -> None:
    layout = Layout(((0, 2, 4),), (0, -1))
    plan = plan_halo(layout, "float64", ((1, 0),), (None,), 1, wanted=[(0,)])
    assert plan.target.owners == (0, -1)
    with pytest.raises(ValueError, match=r"expected an owner of block \(1,\)"):
        plan_halo(layout, "float64", ((1, 1),), (None,), 1)
