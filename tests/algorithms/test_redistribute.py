"""Redistribution on ranks against NumPy, and its cost against its plan."""

from __future__ import annotations

import pickle
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.redistribute.plan import (
    ROUND_SECONDS,
    RedistributePlan,
    cost,
    plan_redistribute,
    traffic,
    workspace,
)
from dask_dgpu.algorithms.redistribute.rank import redistribute_rank
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from graph_opt.model.cost import HOST, Machine
from graph_opt.model.layout import Index, Layout, dealt
from tests.support.memory import assert_peak
from tests.support.profiles import examples
from tests.support.recording import Ledger, RecordingComm

Array = Any
Blocks = dict[Index, Array]

DTYPES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128", "longdouble"),
]
LENGTHS = [0, 1, 2, 3, 5, 7, 11, 13]


class CountingDevice(HostDevice):
    """Remembers the bytes of everything it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.messages = 0

    def empty(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        array = super().empty(shape, dtype)
        self.made += array.nbytes
        return array

    def workspace(self, name: str, size: int, dtype: str) -> Array:
        array = super().workspace(name, size, dtype)
        self.messages += array.nbytes
        return array


class ExchangeComm(RecordingComm):
    """Remembers the peers of each exchange."""

    def __init__(self, inner: Comm) -> None:
        super().__init__(inner)
        self.peers: list[tuple[list[int], list[int]]] = []

    def exchange(self, sends: Any, recvs: Any) -> Any:
        self.peers.append(([peer for peer, _ in sends], [peer for peer, _ in recvs]))
        return super().exchange(sends, recvs)


def corners(layout: Layout, index: Index) -> tuple[list[int], list[int]]:
    """Where a block begins and ends."""
    pairs = list(zip(layout.cuts, index, strict=True))
    return [cuts[at] for cuts, at in pairs], [cuts[at + 1] for cuts, at in pairs]


@dataclass
class Outcome:
    """What one rank did."""

    blocks: Blocks
    given: Blocks
    comm: ExchangeComm
    device: CountingDevice
    read: list[tuple[Index, tuple[slice, ...]]] = field(default_factory=list)
    seen: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Problem:
    """An array and the plan of its redistribution."""

    whole: Array
    plan: RedistributePlan
    whole_axes: tuple[int, ...] = ()

    def cut(self, layout: Layout, whole: Array | None = None) -> Blocks:
        """All blocks that a rank has or wants, as views."""
        whole = self.whole if whole is None else whole
        return {
            index: whole[..., *map(slice, *corners(layout, index))]
            for index in layout.indices()
            if layout.owner(index) >= 0
        }

    def run(self, *, read: bool = False) -> list[Outcome]:
        """Redistribute on ranks that are threads; ``read`` negates what it reads."""
        source = self.cut(self.plan.source)

        def rank_program(comm: Comm) -> Outcome:
            owned = self.plan.source.owned(comm.rank)
            mine = {index: source[index] for index in owned}
            outcome = Outcome({}, mine, ExchangeComm(comm), CountingDevice())

            def reading(index: Index, slices: tuple[slice, ...]) -> Array:
                outcome.read.append((index, slices))
                return changed(mine[index][..., *slices])

            outcome.blocks = redistribute_rank(
                self.plan,
                outcome.comm,
                outcome.device,
                {} if read else mine,
                read=reading if read else None,
                progress=lambda done, rounds: outcome.seen.append((done, rounds)),
            )
            return outcome

        return run_local(self.plan.size, rank_program)


def changed(values: Array) -> Array:
    """What the tests' ``read`` makes of values."""
    return np.logical_not(values) if values.dtype == bool else values + values.dtype.type(1)


def array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, order: str = "C") -> Array:
    """Random bits, as far as all are numbers, in C or F order or with gaps and backwards."""
    wide = shape if order != "gaps" else tuple(2 * n for n in shape)
    values = rng.integers(0, 256, wide).astype(dtype)
    if np.dtype(dtype).kind == "c":
        values = values * (1 + 2j)
    values = np.asarray(values, dtype, order="F" if order == "F" else "C")
    return values[tuple(slice(None, None, -2) for _ in shape)] if order == "gaps" else values


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...], owners: st.SearchStrategy[int]) -> Layout:
    """Uneven chunks, some empty, and owners in no order."""
    cuts = []
    for length in shape:
        edges = sorted(draw(st.lists(st.integers(0, length), max_size=3)))
        cuts.append((0, *edges, length))
    blocks = prod(len(along) - 1 for along in cuts)
    return Layout(tuple(cuts), tuple(draw(st.lists(owners, min_size=blocks, max_size=blocks))))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    shape = tuple(draw(st.lists(st.sampled_from(LENGTHS), max_size=4)))
    while prod(shape) > 1000:
        shape = shape[1:]
    size = draw(st.integers(1, 7))
    owners = st.integers(0, size - 1)
    dtype = draw(st.sampled_from(DTYPES))
    source = draw(layouts(shape, owners))
    if draw(st.booleans()):
        target = draw(layouts(shape, owners | st.just(-1)))
    else:  # some blocks are in place
        new = [draw(st.sampled_from([owner, owner, 0, -1])) for owner in source.owners]
        target = Layout(source.cuts, tuple(new))
    whole_axes = tuple(draw(st.sets(st.integers(0, len(shape) - 1)))) if shape else ()
    plan = plan_redistribute(
        source,
        target,
        dtype,
        size,
        limit=draw(st.sampled_from([1, 64, 256, 1000, 4096, 64 << 20])),
        whole_axes=whole_axes,
        transformed=draw(st.booleans()),
    )
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    order = draw(st.sampled_from(["C", "F", "gaps"]))
    return Problem(array(rng, shape, dtype, order), plan, whole_axes)


def even(length: int, parts: int) -> tuple[int, ...]:
    return tuple(length * part // parts for part in range(parts + 1))


def grid(shape: tuple[int, ...], parts: tuple[int, ...], size: int) -> Layout:
    """Near even blocks, dealt to the ranks in their order."""
    cuts = tuple(even(length, count) for length, count in zip(shape, parts, strict=True))
    return Layout(cuts, dealt(prod(parts), size))


def problem(
    source: Layout, target: Layout, size: int, dtype: str = "float64", **choices: Any
) -> Problem:
    rng = np.random.default_rng(7)
    plan = plan_redistribute(source, target, dtype, size, **choices)
    return Problem(array(rng, source.shape, dtype), plan, choices.get("whole_axes", ()))


def check(case: Problem, *, read: bool = False) -> list[Outcome]:
    """Value, layout and cost of one redistribution."""
    plan = case.plan
    results = case.run(read=read)
    whole = changed(case.whole) if read else case.whole
    expected = case.cut(plan.target, whole)
    for rank, outcome in enumerate(results):
        assert set(outcome.blocks) == set(plan.target.owned(rank))
        for index, block in outcome.blocks.items():
            np.testing.assert_array_equal(block, expected[index], strict=True)
        check_memory(case, outcome, read=read)
        check_messages(plan, rank, outcome)
        assert outcome.seen == [(done + 1, plan.rounds) for done in range(plan.rounds)]
    return results


def check_memory(case: Problem, outcome: Outcome, *, read: bool) -> None:
    """Blocks in place are passed on, all others have memory of their own, and that is all."""
    plan, given = case.plan, outcome.given.values()
    fresh = [block for block in outcome.blocks.values() if all(block is not old for old in given)]
    for block in fresh:
        assert read or block.flags.c_contiguous
        assert block.base is None or block.base.nbytes == block.nbytes
        assert not np.shares_memory(block, case.whole)
    kept = in_place(plan)
    rank = outcome.comm.rank
    if not read:
        passed = {i for i, block in outcome.blocks.items() if all(block is not b for b in fresh)}
        assert passed == {target for target, _ in kept if plan.target.owner(target) == rank}
        assert all(outcome.blocks[t] is outcome.given[s] for t, s in kept if t in passed)
    nbytes = plan.target.share(rank, plan.itemsize)
    for target, _ in kept:
        if plan.target.owner(target) == rank:
            nbytes -= prod(plan.target.block_shape(target)) * plan.itemsize
    assert outcome.device.made == nbytes
    assert outcome.device.messages <= workspace(plan)
    assert workspace(plan) <= max(plan.limit, 2 * smallest_unit(case))


def in_place(plan: RedistributePlan) -> set[tuple[Index, Index]]:
    """Target and source blocks that are the same on the same rank, by comparing all."""

    return {
        (t, s)
        for t in plan.target.indices()
        for s in plan.source.indices()
        if corners(plan.source, s) == corners(plan.target, t)
        and plan.source.owner(s) == plan.target.owner(t) >= 0
        and prod(plan.source.block_shape(s))
    }


def smallest_unit(case: Problem) -> int:
    """Bytes of a unit that cannot be cut, as it is sent and, if units count, also held."""
    lengths = [max(np.diff(cuts), default=0) for cuts in case.plan.source.cuts]
    elements = prod(max(1, int(lengths[axis])) for axis in case.whole_axes)
    return elements * case.plan.itemsize * (2 if case.plan.transformed else 1)


def check_messages(plan: RedistributePlan, rank: int, outcome: Outcome) -> None:
    ledger: Ledger = outcome.comm.ledger
    wanted = traffic(plan)
    assert +ledger.sent == +Counter({q: wanted[rank][q] for q in range(plan.size)})
    assert +ledger.received == +Counter({q: wanted[q][rank] for q in range(plan.size)})
    assert set(ledger.calls) <= {"exchange"}
    assert ledger.calls["exchange"] <= plan.rounds
    for peers in outcome.comm.peers:
        assert peers != ([], [])
        for one_way in peers:
            assert len(set(one_way)) == len(one_way)
            assert rank not in one_way


@examples(200)
@given(problems())
def test_any_layout_to_any(case: Problem) -> None:
    check(case)


@examples(200)
@given(problems())
def test_every_unit_is_read_once(case: Problem) -> None:
    plan = case.plan
    results = check(case, read=True)
    for rank, outcome in enumerate(results):
        times = {index: np.zeros(block.shape, int) for index, block in outcome.given.items()}
        for index, slices in outcome.read:
            times[index][slices] += 1
        kept = {source for _, source in in_place(plan) if plan.source.owner(source) == rank}
        wanted = np.zeros(case.whole.shape, bool)
        for index, block in case.cut(plan.target, wanted).items():
            assert plan.target.owner(index) >= 0
            block[...] = True
        for index, part in case.cut(plan.source, wanted).items():
            if plan.source.owner(index) == rank:
                assert times[index].max(initial=0) <= 1
                assert times[index][part].all()
                assert index not in kept or times[index].all()
        whole = [(index, slices) for index, slices in outcome.read if index in kept]
        assert len(whole) == len(kept)


def test_whole_axes_are_not_cut() -> None:
    source, target = grid((64, 48, 8), (1, 3, 2), 3), grid((64, 48, 8), (5, 1, 1), 3)
    for axes in [(0,), (1,), (0, 2), (2, 0), (0, 1, 2)]:
        case = problem(source, target, 3, limit=4000, whole_axes=axes, transformed=True)
        for outcome in check(case, read=True):
            for index, slices in outcome.read:
                shape = source.block_shape(index)
                assert all(slices[axis] == slice(0, shape[axis]) for axis in axes)


def test_units_are_cut_along_the_first_axis_that_may_be() -> None:
    source, target = grid((64, 64), (1, 4), 4), grid((64, 64), (4, 1), 4)
    for axes, cut in [((), 0), ((0,), 1)]:
        plan = plan_redistribute(source, target, "float64", 4, limit=4096, whole_axes=axes)
        assert len(plan.unit_cuts[cut]) > len(source.cuts[cut])
        assert plan.unit_cuts[1 - cut] == source.cuts[1 - cut]


def test_nothing_is_done_where_all_is_in_place() -> None:
    source = grid((10, 10), (2, 5), 3)
    case = problem(source, source, 3)
    assert case.plan.rounds == 0
    assert workspace(case.plan) == cost(case.plan, HOST) == 0
    for outcome in check(case):
        assert outcome.device.messages == 0
        assert not outcome.comm.ledger.calls


SLABS = [((8, 1), (1, 8)), ((1, 8), (8, 1)), ((8, 8), (1, 8)), ((8, 4), (4, 8)), ((16, 16), (8, 1))]


@pytest.mark.parametrize(("source", "target"), SLABS)
@pytest.mark.parametrize("limit", [1 << 16, 1 << 18, 1 << 20])
def test_every_round_takes_an_even_share(
    source: tuple[int, int], target: tuple[int, int], limit: int
) -> None:
    """Rounds are few, and in sum their busiest ranks do hardly more than the busiest rank."""
    shape, size = (512, 512), 8
    plan = plan_redistribute(
        grid(shape, source, size), grid(shape, target, size), "complex64", size, limit=limit
    )
    moves, cells = plan.moves, plan.moves.cells
    loads = np.zeros((2, plan.rounds, size))
    away = cells.sender != cells.receiver
    for way, rank in enumerate((cells.sender, cells.receiver)):
        np.add.at(loads[way], (moves.round[away], rank[away]), cells.length[away])
    ideal = loads.sum(axis=1).max()
    assert loads.max(axis=2).sum(axis=1).max() <= 1.15 * ideal
    both = loads.sum(axis=(0, 1)).max() * plan.itemsize
    assert plan.rounds <= max(1, 1.4 * both / (limit / 2) + 1)


@pytest.mark.parametrize("parts", [((4, 1), (1, 4)), ((7, 5), (3, 8))])
@pytest.mark.parametrize("limit", [1 << 18, 1 << 20, 1 << 24])
def test_peak_of_memory(parts: tuple[tuple[int, int], tuple[int, int]], limit: int) -> None:
    """All ranks together take no more than the result and what their plan grants them."""
    shape, size = (1024, 1024), 4
    before, after = (grid(shape, count, size) for count in parts)
    case = problem(before, after, size, limit=limit)
    assert case.plan.moves  # the plan itself is another matter
    small = 1_500_000  # schedules, messages' descriptors, threads
    assert_peak(case.run, case.whole.nbytes + size * workspace(case.plan) + small)
    assert workspace(case.plan) <= limit


def test_units_made_by_read_are_freed_in_time() -> None:
    """Without any transfer: what is read takes no more than the limit."""
    shape = (1024, 1024)
    source, target = grid(shape, (1, 1), 1), grid(shape, (2, 1), 1)
    case = problem(source, target, 1, limit=1 << 19, transformed=True)
    assert_peak(lambda: case.run(read=True), case.whole.nbytes + (1 << 19) + 600_000)
    assert case.plan.rounds >= 32


def test_the_next_round_is_packed_while_one_travels() -> None:
    shape, size = (64, 64), 2
    case = problem(grid(shape, (2, 1), size), grid(shape, (1, 2), size), size, limit=4096)
    order: list[str] = []

    class Watched(RecordingComm):
        def exchange(self, sends: Any, recvs: Any) -> Any:
            order.append("start")
            work = super().exchange(sends, recvs)

            class Waited:
                def wait(self) -> None:
                    work.wait()
                    order.append("wait")

            return Waited()

    def program(comm: Comm) -> None:
        blocks = case.cut(case.plan.source)
        if comm.rank:
            redistribute_rank(case.plan, comm, HostDevice(), blocks)
            return

        def read(index: Index, slices: tuple[slice, ...]) -> Array:
            if order[-1:] != ["read"]:
                order.append("read")
            return blocks[index][slices]

        redistribute_rank(case.plan, Watched(comm), HostDevice(), {}, read=read)

    run_local(size, program)
    rounds = case.plan.rounds
    assert rounds > 2
    middle = ["read", "wait", "start"] * (rounds - 1)
    assert order == ["read", "start", *middle, "wait"]


def test_ranks_without_messages_wait_for_nobody() -> None:
    """Rank 0 has all it needs, and is done before rank 1 has begun."""
    source = Layout(((0, 4, 8, 12),), (0, 1, 2))
    target = Layout(((0, 2, 4, 12),), (0, 0, 1))
    case = problem(source, target, 3)
    done = threading.Event()

    def program(comm: Comm) -> None:
        blocks = {i: b for i, b in case.cut(source).items() if source.owner(i) == comm.rank}
        if comm.rank == 1:
            assert done.wait(30)
        redistribute_rank(case.plan, comm, HostDevice(), blocks)
        if comm.rank == 0:
            done.set()

    run_local(3, program)


def test_progress_may_give_up() -> None:
    case = problem(grid((60,), (3,), 3), grid((60,), (2,), 3), 3, limit=64)
    assert case.plan.rounds > 2

    def program(comm: Comm) -> None:
        def progress(done: int, rounds: int) -> None:
            if comm.rank == 0 and done == 2:
                raise KeyError("given up")

        blocks = case.cut(case.plan.source)
        redistribute_rank(case.plan, comm, HostDevice(), blocks, progress=progress)

    with pytest.raises(KeyError, match="given up"):
        run_local(3, program)


def test_a_block_that_moves_has_an_owner() -> None:
    source = Layout(((0, 4), (0, 2, 4)), (0, -1))
    with pytest.raises(ValueError, match=r"expected an owner of block \(0, 1\), got none"):
        plan_redistribute(source, grid((4, 4), (1, 2), 2), "float32", 2)


def test_a_plan_is_a_value() -> None:
    def made() -> RedistributePlan:
        return problem(grid((30, 30), (3, 2), 3), grid((30, 30), (2, 5), 3), 3, limit=999).plan

    plan = made()
    assert plan.rounds > 1
    assert plan == made()
    assert hash(plan) == hash(made())
    copy = pickle.loads(pickle.dumps(plan))
    assert copy == plan
    assert len(pickle.dumps(plan)) == len(pickle.dumps(made()))  # nothing computed travels
    np.testing.assert_array_equal(copy.moves.round, plan.moves.round)


def test_planning_looks_at_no_piece_one_by_one() -> None:
    """16,000 pieces of 4,000 blocks; counted in Python calls, not in seconds."""
    before = grid((8192, 8192), (64, 64), 8)
    after = grid((8192, 8192), (63, 67), 8)
    calls = Counter[str]()

    def count(frame: Any, event: str, arg: Any) -> None:
        calls[event] += 1

    sys.setprofile(count)
    try:
        plan = plan_redistribute(before, after, "complex64", 8)
        rounds = plan.rounds
    finally:
        sys.setprofile(None)
    assert rounds
    assert len(plan.moves.cells.length) > 16_000
    assert calls.total() < 5_000


def test_cost_grows_with_bytes_and_rounds() -> None:
    shape, size = (512, 512), 4
    source, target = grid(shape, (4, 1), size), grid(shape, (1, 4), size)
    a_round = 1e-3 + ROUND_SECONDS
    machine = Machine(flops=1e9, bandwidth=1e6, latency=1e-3, memory_bandwidth=1e12)
    seconds = {
        dtype: cost(plan_redistribute(source, target, dtype, size), machine)
        for dtype in ("float32", "float64")
    }
    moved = 512 * 512 // 4 * 3 // 4 * 8
    assert seconds["float64"] == pytest.approx(moved / 1e6 + a_round, rel=1e-3)
    assert seconds["float32"] == pytest.approx(moved / 2e6 + a_round, rel=1e-3)
    many = plan_redistribute(source, target, "float64", size, limit=1 << 16)
    assert cost(many, machine) == pytest.approx(moved / 1e6 + many.rounds * a_round, rel=1e-3)
    slow = replace(machine, bandwidth=1e12, memory_bandwidth=1e6)
    stays = moved // 3
    assert cost(many, slow) == pytest.approx(
        2 * (2 * moved + stays) / 1e6 + many.rounds * a_round, rel=1e-3
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "complex128"])
@pytest.mark.parametrize("limit", [10_000, 64 << 20])
@pytest.mark.parametrize("read", [False, True])
def test_on_a_gpu(dtype: str, limit: int, read: bool) -> None:
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    shape, size = (67, 59, 8), 3
    source, target = grid(shape, (5, 1, 2), size), grid(shape, (1, 4, 2), size)
    plan = plan_redistribute(source, target, dtype, size, limit=limit, transformed=read)
    case = Problem(array(np.random.default_rng(0), shape, dtype, "gaps"), plan)

    def program(comm: Comm) -> Blocks:
        device = CudaDevice()
        whole = cupy.asarray(case.whole.T).T  # strided there too
        blocks = {index: case.cut(source, whole)[index] for index in source.owned(comm.rank)}

        def reading(index: Index, slices: tuple[slice, ...]) -> Array:
            part = blocks[index][slices]
            return ~part if part.dtype == bool else part + part.dtype.type(1)

        device.begin()
        made = redistribute_rank(plan, comm, device, blocks, read=reading if read else None)
        device.synchronize()
        comm.barrier()
        return made

    expected = case.cut(target, changed(case.whole) if read else case.whole)
    found = {index: block for part in run_local(size, program) for index, block in part.items()}
    assert found.keys() == expected.keys()
    for index, block in found.items():
        assert isinstance(block, cupy.ndarray)
        np.testing.assert_array_equal(cupy.asnumpy(block), expected[index], strict=True)
