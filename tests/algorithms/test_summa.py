"""The product on ranks against NumPy, and its cost against its plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.summa.choose import (
    cost,
    owners_along,
    plan_summa,
    summed,
    traffic,
    workspace,
)
from dask_dgpu.algorithms.summa.plan import Operand, PanelStep, SummaPlan, schedule
from dask_dgpu.algorithms.summa.rank import summa_rank
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from graph_opt.model.cost import HOST, Machine
from graph_opt.model.layout import block_spans, cuts_of
from tests.support.calls import calls_of
from tests.support.memory import assert_peak
from tests.support.profiles import examples
from tests.support.recording import Ledger, RecordingComm

Array = Any
Blocks = dict[tuple[int, int], Array]

INTEGERS = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
FLOATS = ["float16", "float32", "float64", "complex64", "complex128"]
LENGTHS = [0, 1, 2, 3, 5, 7, 8, 13, 17, 23]


class CountingDevice(HostDevice):
    """Remembers the bytes of everything it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated: list[int] = []

    def empty(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        return self._counted(super().empty(shape, dtype))

    def zeros(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        return self._counted(super().zeros(shape, dtype))

    def workspace(self, name: str, size: int, dtype: str) -> Array:
        return self._counted(super().workspace(name, size, dtype))

    def _counted(self, array: Array) -> Array:
        self.allocated.append(array.nbytes)
        return array


@dataclass(frozen=True)
class Problem:
    """Operands, cut up and dealt to ranks, and the plan of their product."""

    a: Array
    b: Array
    plan: SummaPlan

    def blocks(self, which: int) -> Blocks:
        """All blocks of an operand, as views of it."""
        operand, whole = ((self.plan.a, self.a), (self.plan.b, self.b))[which]
        rows, columns = operand.rows, operand.columns
        return {
            (i, j): whole[rows[i] : rows[i + 1], columns[j] : columns[j + 1]]
            for i in range(len(rows) - 1)
            for j in range(len(columns) - 1)
        }

    def owned(self, which: int, rank: int) -> Blocks:
        """The blocks of an operand that a rank has."""
        operand = (self.plan.a, self.plan.b)[which]
        return {
            index: block
            for index, block in self.blocks(which).items()
            if operand.owner(index) == rank
        }

    @property
    def expected(self) -> Array:
        """NumPy's product, accumulated in the dtype of the result."""
        dtype = self.plan.dtype
        with np.errstate(all="ignore"):
            wide = self.plan.accumulator
            return np.matmul(self.a.astype(wide), self.b.astype(wide)).astype(dtype)

    @property
    def bound(self) -> Array:
        """What rounding may change: K additions and products, and one conversion."""
        k, dtype = self.a.shape[1], np.dtype(self.plan.dtype)
        eps = np.finfo(np.dtype(self.plan.accumulator)).eps
        left, right = (  # widened first: the least int8 has no absolute value
            np.abs(x.astype(np.result_type(x.dtype, np.float64))) for x in (self.a, self.b)
        )
        magnitude = left @ right
        return (2 * (k + 2) * float(eps) + 2 * float(np.finfo(dtype).eps)) * magnitude + float(
            np.finfo(dtype).smallest_subnormal
        )

    def run(self) -> list[tuple[Blocks, Ledger, CountingDevice]]:
        """Multiply on ranks that are threads."""

        def rank_program(comm: Comm) -> tuple[Blocks, Ledger, CountingDevice]:
            recording, device = RecordingComm(comm), CountingDevice()
            mine = self.owned(0, comm.rank), self.owned(1, comm.rank)
            with np.errstate(all="ignore"):  # a thread starts with NumPy's own choice
                blocks = summa_rank(self.plan, recording, device, *mine)
            return blocks, recording.ledger, device

        return run_local(self.plan.size, rank_program)

    def whole(self, blocks: Blocks) -> Array:
        """Put the blocks of the product together."""
        rows, columns = self.plan.a.rows, self.plan.b.columns
        result = np.empty((rows[-1], columns[-1]), self.plan.dtype)
        assert set(blocks) == {
            (i, j) for i in range(len(rows) - 1) for j in range(len(columns) - 1)
        }
        for (i, j), block in blocks.items():
            result[rows[i] : rows[i + 1], columns[j] : columns[j + 1]] = block
        return result


def matrix(rng: np.random.Generator, shape: tuple[int, int], dtype: str, order: str = "C") -> Array:
    """Random values of any dtype, in C or F order, or every second element of more."""
    height, width = shape if order != "gaps" else (2 * shape[0], 2 * shape[1])
    kind = np.dtype(dtype).kind
    if kind == "b":
        values = rng.random((height, width)) < 0.3
    elif kind in "iu":
        values = rng.integers(
            np.iinfo(dtype).min, np.iinfo(dtype).max, (height, width), dtype, endpoint=True
        )
    else:
        values = rng.standard_normal((height, width))
        if kind == "c":
            values = values + 1j * rng.standard_normal((height, width))
    values = np.asarray(values, dtype=dtype, order="F" if order == "F" else "C")
    return values[::2, 1::2] if order == "gaps" else values


def operand(
    rows: tuple[int, ...], columns: tuple[int, ...], dtype: str, owners: Any, size: int
) -> Operand:
    count = len(rows) * len(columns)
    if owners == "even":
        spans = block_spans(tuple(range(count + 1)), size)
        owners = [rank for rank, (lo, hi) in enumerate(spans) for _ in range(lo, hi)]
    return Operand((cuts_of(rows), cuts_of(columns)), tuple(owners), dtype)


@st.composite
def chunks(draw: st.DrawFn, length: int) -> tuple[int, ...]:
    """Uneven chunks of an axis; some may be empty."""
    edges = sorted(draw(st.lists(st.integers(0, length), max_size=4)))
    return tuple(hi - lo for lo, hi in zip([0, *edges], [*edges, length], strict=True))


@st.composite
def problems(draw: st.DrawFn, dtypes: list[str]) -> Problem:
    m, k, n = (draw(st.sampled_from(LENGTHS)) for _ in range(3))
    size = draw(st.integers(1, 7))
    left, right = draw(st.sampled_from(dtypes)), draw(st.sampled_from(dtypes))
    result = np.result_type(left, right)
    if result.kind in "biu" and draw(st.booleans()):
        result = np.zeros(1, result).sum().dtype  # as Dask declares it for several chunks
    operands = []
    for shape, dtype in (((m, k), left), ((k, n), right)):
        rows, columns = draw(chunks(shape[0])), draw(chunks(shape[1]))
        count = len(rows) * len(columns)
        owners = draw(
            st.just("even")
            | st.lists(st.integers(0, size - 1), min_size=count, max_size=count)
            | st.integers(0, size - 1).map(lambda rank, count=count: [rank] * count)
        )
        operands.append(operand(rows, columns, dtype, owners, size))
    mesh = None
    if draw(st.booleans()):
        rows_ = draw(st.integers(1, size))
        columns_ = draw(st.integers(1, size // rows_))
        mesh = (rows_, columns_, draw(st.integers(1, size // (rows_ * columns_))))
    steps = draw(st.none() | st.integers(1, 9))
    machine = replace(HOST, one_sided=draw(st.booleans()))
    plan = plan_summa(*operands, result.name, size, machine, mesh=mesh, steps=steps)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    orders = st.sampled_from(["C", "F", "gaps"])
    return Problem(
        matrix(rng, (m, k), left, draw(orders)), matrix(rng, (k, n), right, draw(orders)), plan
    )


def problem(
    shape: tuple[int, int, int],
    size: int,
    dtype: str = "float64",
    parts: tuple[int, int, int] = (4, 4, 4),
    owners: Any = "even",
    **choices: Any,
) -> Problem:
    """A product of near evenly cut operands of one dtype."""
    m, k, n = (
        tuple(hi - lo for lo, hi in pairwise(edges))
        for length, count in zip(shape, parts, strict=True)
        for edges in [[length * part // count for part in range(count + 1)]]
    )
    a, b = operand(m, k, dtype, owners, size), operand(k, n, dtype, owners, size)
    rng = np.random.default_rng(7)
    return Problem(
        matrix(rng, (shape[0], shape[1]), dtype),
        matrix(rng, (shape[1], shape[2]), dtype),
        plan_summa(a, b, dtype, size, HOST, **choices),
    )


def check(problem: Problem) -> None:
    """Value, layout and cost of one product."""
    plan = problem.plan
    results = problem.run()
    blocks = {index: block for part, *_ in results for index, block in part.items()}
    assert sum(len(part) for part, *_ in results) == len(blocks)
    whole = problem.whole(blocks)
    if np.dtype(plan.dtype).kind in "biu":
        np.testing.assert_array_equal(whole, problem.expected, strict=True)
    else:
        assert np.all(np.abs(whole - problem.expected.astype(whole.dtype)) <= problem.bound)
    owners = dict(zip(plan.result.indices(), plan.result.owners, strict=True))
    for rank, (part, ledger, device) in enumerate(results):
        assert all(owners[index] == rank for index in part)
        check_memory_is_own(problem, list(part.values()))
        check_traffic(plan, rank, ledger)
        check_workspace(plan, rank, device)


def check_memory_is_own(problem: Problem, blocks: list[Array]) -> None:
    for block in blocks:
        base = block if block.base is None else block.base
        assert block.flags.c_contiguous
        assert base.nbytes == block.nbytes
        assert not np.shares_memory(block, problem.a)
        assert not np.shares_memory(block, problem.b)
    bases = [block if block.base is None else block.base for block in blocks if block.size]
    assert len({id(base) for base in bases}) == len(bases)


def check_traffic(plan: SummaPlan, rank: int, ledger: Ledger) -> None:
    moving = sum(moves(step) for step in schedule(plan, rank))
    layers = plan.mesh[2] > 1 and rank in plan.positions
    layers = layers and all(start < stop for start, stop in plan.rectangle(rank))
    if plan.one_sided and plan.a.dtype == plan.b.dtype == plan.accumulator:
        reads = sum(len(pieces) for step in schedule(plan, rank) for pieces in step.receives)
        wanted = Counter({"window": 1, "get": reads, "close": 1, "exchange": layers})
        sent = 0
        pieces = [
            piece for step in schedule(plan, rank) for each in step.receives for piece in each
        ]
        received = sum(piece.nbytes for piece in pieces)
    else:
        wanted = Counter({"exchange": moving + layers})
        sent, received = (sum(step[way][rank] for step in traffic(plan)) for way in (0, 1))
    assert ledger.calls == +wanted
    if layers:
        (r0, r1), (c0, c1) = plan.rectangle(rank)
        mine = kept(plan, rank)
        sent += (r1 - r0) * (c1 - c0) * np.dtype(plan.accumulator).itemsize - mine
        received += summed(plan)[rank]
        assert summed(plan)[rank] == mine * (plan.mesh[2] - 1)
    assert (ledger.bytes_sent, ledger.bytes_received) == (sent, received)


def moves(step: PanelStep) -> bool:
    """Whether a rank sends or receives in a step."""
    return bool(step.sends.nbytes or step.receives.nbytes)


def kept(plan: SummaPlan, rank: int) -> int:
    """Bytes of the blocks of C that a rank ends up with, as they are summed."""
    return plan.result.share(rank, np.dtype(plan.accumulator).itemsize)


def check_workspace(plan: SummaPlan, rank: int, device: CountingDevice) -> None:
    """Everything that was asked for in the steps, C and four panels hold it."""
    (r0, r1), (c0, c1) = plan.rectangle(rank)
    sums = (r1 - r0) * (c1 - c0) * np.dtype(plan.accumulator).itemsize
    layers = plan.mesh[2] > 1
    messages = sum(device.allocated[-2:]) if layers else 0
    buffers = sum(device.allocated) - sums - messages
    assert buffers <= workspace(plan) - (plan.sum_bytes if layers else 0)
    assert sums + messages <= plan.reduction_bytes + kept(plan, rank) or not layers
    deepest = max(hi - lo for lo, hi in plan.spans[2])
    assert workspace(plan) <= plan.workspace_limit or plan.steps >= deepest or layers


@examples(150)
@given(problems(INTEGERS + FLOATS))
def test_integers_are_exact_and_floats_within_rounding(case: Problem) -> None:
    check(case)


@examples(100)
@given(problems(["float32", "float64", "complex64"]), st.integers(0, 2**32))
def test_nan_and_infinity_are_where_numpy_has_them(case: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for values in (case.a, case.b):
        if np.dtype(values.dtype).kind == "f":
            special = rng.choice([np.nan, np.inf, -np.inf, 0.0], values.shape)
            values[...] = np.where(rng.random(values.shape) < 0.1, special, values)
    whole = case.whole({i: block for part, *_ in case.run() for i, block in part.items()})
    expected = case.expected
    np.testing.assert_array_equal(np.isfinite(whole), np.isfinite(expected))
    # Of a complex infinity BLAS makes NaN or not, with the shape, in NumPy too.
    if np.dtype(case.plan.dtype).kind == "f":
        np.testing.assert_array_equal(np.isnan(whole), np.isnan(expected))
        np.testing.assert_array_equal(whole[np.isinf(expected)], expected[np.isinf(expected)])
        np.testing.assert_array_equal(np.isinf(whole), np.isinf(expected))


def test_float16_is_summed_in_float32() -> None:
    case = problem((1, 4099, 1), 3, "float16", parts=(1, 7, 1))
    case.a[...], case.b[...] = 1, 1
    for block in (block for part, *_ in case.run() for block in part.values()):
        assert block[0, 0] == np.float16(4099)  # 2048 if it were summed in halves


@pytest.mark.parametrize("mesh", [(5, 1, 1), (1, 5, 1), (1, 1, 5), (2, 2, 1), (2, 1, 2), (1, 1, 1)])
@pytest.mark.parametrize("steps", [1, 2, 3, pytest.param(50, marks=pytest.mark.slow)])
def test_every_mesh(mesh: tuple[int, int, int], steps: int) -> None:
    case = problem((23, 29, 31), 5, mesh=mesh, steps=steps)
    assert case.plan.mesh == mesh
    assert case.plan.steps >= steps
    check(case)


@pytest.mark.parametrize("size", [4, 6])
def test_square_takes_a_mesh_of_two_axes(size: int) -> None:
    plan = problem((4096, 4096, 4096), 1, "bool", parts=(8, 8, 8)).plan
    a, b = (replace(side, dtype="float64") for side in (plan.a, plan.b))
    owners = tuple(rank for rank in range(size) for _ in range(64))[: 64 * size]
    owners = tuple(owners[at * size] for at in range(64))
    a, b = replace(a, owners=owners), replace(b, owners=owners)
    rows, columns, depth = plan_summa(a, b, "float64", size, HOST).mesh
    assert (rows * columns, depth) == (size, 1)


@pytest.mark.parametrize("size", [2, 3, 5, 7])
def test_covariance_of_tall_operands_stays_in_place(size: int) -> None:
    """Of X (long, narrow), X.T @ X: every rank has its rows of X, and only sums travel."""
    rows = (1000,) * size
    owners = tuple(range(size))
    a = Operand((cuts_of((16, 16)), cuts_of(rows)), owners * 2, "float64")
    b = Operand((cuts_of(rows), cuts_of((16, 16))), tuple(np.repeat(owners, 2).tolist()), "float64")
    plan = plan_summa(a, b, "float64", size, HOST)
    assert plan.mesh == (1, 1, size)
    assert not any(sum(step[0]) for step in traffic(plan))


@st.composite
def owned_along(draw: st.DrawFn) -> Problem:
    """A product whose ranks own whole blocks along the contraction, or all along it."""
    size = draw(st.integers(1, 5))
    inner = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=7)))
    ranks = sorted(draw(st.integers(0, size - 1)) for _ in inner)
    m, n = (draw(chunks(draw(st.integers(0, 5)))) for _ in range(2))
    dtype = draw(st.sampled_from(["int32", "float32", "complex128"]))
    owners_a: Any = ranks * len(m)
    owners_b: Any = [rank for rank in ranks for _ in n]
    rows, columns = inner, inner
    if draw(st.booleans()):  # rows or columns of the result are owned instead
        owners_a = [at * size // len(m) for at in range(len(m)) for _ in inner]
    a, b = operand(m, columns, dtype, owners_a, size), operand(rows, n, dtype, owners_b, size)
    machine = replace(HOST, one_sided=draw(st.booleans()))
    steps = draw(st.none() | st.integers(1, 3))
    plan = plan_summa(a, b, dtype, size, machine, steps=steps)
    rng = np.random.default_rng(0)
    order = draw(st.sampled_from(["C", "F", "gaps"]))
    return Problem(
        matrix(rng, (sum(m), sum(inner)), dtype, order),
        matrix(rng, (sum(inner), sum(n)), dtype, order),
        plan,
    )


@examples(200)
@given(owned_along())
def test_blocks_in_place(case: Problem) -> None:
    check(case)


@pytest.mark.parametrize(
    ("shape", "parts", "along", "in_place"),
    [
        ((16, 4000, 12), (1, 7, 2), "inner", (True, True)),
        ((4000, 16, 3), (7, 1, 1), "rows", (True, False)),
        ((3, 16, 4000), (1, 1, 7), "columns", (False, True)),
        ((4000, 16, 1), (4, 1, 1), "rows", (True, False)),
    ],
)
@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_skinny_products_copy_no_block(
    shape: tuple[int, int, int],
    parts: tuple[int, int, int],
    along: str,
    in_place: tuple[bool, bool],
    dtype: str,
) -> None:
    """Only the small operand travels into panels; the large one is read where it lies."""
    case = problem(shape, 3, dtype, parts=parts)
    ranks = [at * 3 // 7 for at in range(7)] if max(parts) == 7 else [0, 1, 1, 2]
    dealt = tuple(np.sort(np.arange(parts[1] * parts[2 if along != "rows" else 0]) % 3).tolist())
    a, b = case.plan.a, case.plan.b
    if along == "inner":
        a = replace(a, owners=tuple(ranks))
        b = replace(b, owners=tuple(np.repeat(ranks, 2).tolist()))
    elif along == "rows":
        a, b = replace(a, owners=tuple(ranks)), replace(b, owners=dealt[: parts[1] * parts[2]])
    else:
        a, b = replace(a, owners=dealt[:1]), replace(b, owners=tuple(ranks))
    plan = plan_summa(a, b, dtype, 3, HOST)
    assert plan.in_place == in_place
    check(replace(case, plan=plan))
    panels = 2 * sum(plan.panel_extents) * plan.deepest
    assert panels <= (0 if all(in_place) else 2 * 16 * 3)
    moved = sum(sum(step[1]) for step in traffic(plan))
    assert moved <= (0 if all(in_place) else 3 * (16 * 3 + 2) * 8)


def test_square_products_use_panels() -> None:
    """Blocks that are small next to the result would be multiplied one by one."""
    assert problem((512, 512, 512), 4, parts=(8, 8, 8)).plan.in_place == (False, False)


def test_float16_is_widened_in_panels() -> None:
    plan = problem((16, 4000, 16), 1, "float16", parts=(1, 4, 1)).plan
    assert plan.in_place == (False, False)


def test_largest_share_of_a_block_row_decides_its_owner() -> None:
    inner = cuts_of((5, 5, 0, 5))
    a = Operand(((0, 3, 4), inner), (2, 0, 1, 2, 1, 1, 1, 0), "float64")
    b = Operand((inner, (0, 2)), (2, 0, 0, 1), "float64")
    rows, columns, along = (owners.tolist() for owners in owners_along(a, b, 3))
    assert (rows, columns, along) == ([2, 1], [0], [2, 0, 0, 2])
    assert len(owners_along(a, replace(b, cuts=((0, 5, 15), (0, 2)), owners=(0, 0)), 3)[2]) == 0


@pytest.mark.parametrize("seed", range(5))
def test_more_panels_cost_more_latency_and_hide_more_transfer(seed: int) -> None:
    plan = problem((64, 64, 64), 4, mesh=(2, 2, 1), steps=1).plan
    received = 1e6
    slow_link = Machine(flops=1e9, bandwidth=1e6, latency=1e-9, memory_bandwidth=1e12)
    slow_start = Machine(flops=1e12, bandwidth=1e12, latency=1.0, memory_bandwidth=1e12)
    more = replace(plan, steps=4 + seed)
    part = received / more.steps
    assert cost(more, slow_link, received, part) <= cost(plan, slow_link, received, received)
    assert cost(more, slow_start, received, part) > cost(plan, slow_start, received, received)
    reading = replace(more, one_sided=True)
    assert cost(reading, slow_start, received, part) < cost(more, slow_start, received, part)


def test_planning_does_not_go_through_blocks_one_by_one() -> None:
    """Sixty-four times the blocks for each of eight ranks: twice the work at most."""

    def planned(blocks: int) -> int:
        cuts = cuts_of([4] * blocks)
        owners = tuple(at * 8 // blocks**2 for at in range(blocks**2))
        operand = Operand((cuts, cuts), owners, "float64")
        return calls_of(lambda: plan_summa(operand, operand, "float64", 8, HOST))

    assert planned(32) < 2 * planned(4)


def test_what_is_needed_first() -> None:
    """The ring begins with its own rows of the right operand, a flat mesh with what it finds."""
    ring = problem((64, 64, 64), 4, mesh=(4, 1, 1), steps=4).plan
    assert traffic(ring)[0][1].tolist() == [0] * 4
    flat = problem((64, 64, 64), 4, mesh=(2, 2, 1), steps=2).plan
    assert min(traffic(flat)[0][1]) > 0


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((512, 512, 512), (4, 4, 4)),
        ((1024, 64, 1024), (1, 2, 8)),
        ((1024, 64, 1024), (8, 2, 1)),
        ((64, 4096, 64), (2, 8, 2)),
    ],
)
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_peak_of_memory(
    shape: tuple[int, int, int], parts: tuple[int, int, int], size: int, dtype: str
) -> None:
    """All ranks together take no more than C and what their plan grants them."""
    case = problem(shape, size, dtype, parts=parts)
    plan = case.plan
    itemsize = np.dtype(dtype).itemsize
    small = 200_000  # schedules, messages' descriptors, threads
    assert_peak(case.run, shape[0] * shape[2] * itemsize + size * plan.workspace_limit + small)


def test_progress_is_reported_and_may_give_up() -> None:
    case = problem((5, 60, 5), 3, steps=4)
    seen: list[tuple[int, int]] = []

    def program(comm: Comm) -> None:
        def progress(done: int, steps: int) -> None:
            if comm.rank == 0:
                seen.append((done, steps))
                if done == 2:
                    raise KeyError("given up")

        mine = case.owned(0, comm.rank), case.owned(1, comm.rank)
        summa_rank(case.plan, comm, HostDevice(), *mine, progress)

    with pytest.raises(KeyError, match="given up"):
        run_local(3, program)
    assert seen == [(1, case.plan.steps), (2, case.plan.steps)]
