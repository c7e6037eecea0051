"""Stencils on ranks against SciPy and a whole-array reference, and their cost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import prod
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.halo.plan import traffic
from dask_dgpu.algorithms.stencil import rank
from dask_dgpu.algorithms.stencil.plan import (
    StencilTask,
    SweepPlan,
    cost,
    even_tiles,
    passes_of,
    peak,
    plan_sweeps,
)
from dask_dgpu.algorithms.stencil.rank import stencil_rank
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels import stencil
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.kernels.stencil import LAPLACIAN_5PT, LAPLACIAN_9PT, Taps
from graph_opt.model.cost import CUDA, HOST
from graph_opt.model.layout import Layout, dealt
from tests.algorithms.test_redistribute import layouts
from tests.support.profiles import examples
from tests.support.recording import Ledger, RecordingComm
from tests.support.reference.halo import Blocks, blocks_of
from tests.support.reference.stencil import stencil_reference

Array = Any

SCIPY = {"periodic": "grid-wrap", "reflect": "reflect", "mirror": "mirror", "nearest": "nearest"}
BOUNDARIES = ["periodic", "reflect", "mirror", "nearest", 0.0, 1.5]
DTYPES = ["float32", "float64", "complex64", "complex128"]


def run(plan: SweepPlan, whole: Array, device: Any = HostDevice) -> tuple[Array, list[Ledger]]:
    """Sweep an array on ranks that are threads."""
    every, iterations = blocks_of(whole, plan.source), plan.task.iterations

    def rank_program(comm: Comm) -> tuple[Blocks, Ledger]:
        recording, seen = RecordingComm(comm), []
        mine = {index: every[index] for index in plan.source.owned(comm.rank)}
        made = stencil_rank(
            plan, recording, made_by(), mine, progress=lambda *step: seen.append(step)
        )
        assert set(made) == set(mine)
        assert len(seen) == -(-iterations // plan.steps)
        assert all(block.flags.c_contiguous for block in made.values())
        return made, recording.ledger

    before = whole.copy()
    with kernels_of(device) as made_by:
        results = run_local(plan.size, rank_program)
    np.testing.assert_array_equal(whole, before)
    result = np.empty_like(whole)
    for made, _ in results:
        for index, block in made.items():
            blocks_of(result, plan.source)[index][...] = block
    return result, [ledger for _, ledger in results]


def close(result: Array, wanted: Array, taps: Taps, iterations: int) -> None:
    """Compare up to rounding: sums of some terms, again and again."""
    growth = max(1.0, float(np.abs(taps.weights).sum())) if taps.weights else 1.0
    eps = float(np.finfo(result.dtype).eps)
    bound = 8 * eps * (len(taps.weights) + 1) * max(1, iterations) * growth**iterations
    np.testing.assert_allclose(result, wanted, rtol=0, atol=2 * bound)


def random(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, shape)
    if dtype.startswith("c"):
        values = values + 1j * rng.uniform(-1, 1, shape)
    return values.astype(dtype)


@dataclass(frozen=True)
class Problem:
    """An array and a plan."""

    whole: Array
    plan: SweepPlan


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    ndim = draw(st.integers(1, 4))
    shape = tuple(draw(st.sampled_from([1, 2, 3, 5, 7, 11])) for _ in range(ndim))
    if prod(shape) > 1000:
        shape = (*shape[:-2], 2, 3)
    size = draw(st.integers(1, 7))
    source = draw(layouts(shape, st.integers(0, size - 1)))
    tiles = source
    if draw(st.booleans()):
        tiles = draw(layouts(shape, st.integers(0, size - 1)))
    radius = [draw(st.integers(0, min(n, 2))) for n in shape]
    weights = random(tuple(2 * reach + 1 for reach in radius), "float64", draw(st.integers(0, 9)))
    weights[np.abs(weights) < draw(st.sampled_from([0.0, 0.5]))] = 0
    boundary = tuple(draw(st.sampled_from(BOUNDARIES)) for _ in shape)
    dtype, steps = draw(st.sampled_from(DTYPES)), draw(st.integers(1, 4))
    task = StencilTask(dtype, Taps.of(weights), boundary, draw(st.integers(0, 12)))
    plan = SweepPlan(source, tiles, task, size, steps)
    return Problem(random(shape, dtype, draw(st.integers(0, 9))), plan)


class SeveralAtOnce(HostDevice):
    """Makes up to three sweeps in one pass, which leaves the source as it is, as GPUs do."""

    def sweeps_at_once(self, taps: Taps) -> int:
        return 3

    def sweeps(
        self,
        source: Array,
        target: Array,
        taps: Taps,
        regions: Any,
        added: Array | None = None,
        change: Array | None = None,
    ) -> bool:
        u, out, turned = source, target, False
        for at in range(0, len(regions), 3):
            several = regions[at : at + 3]
            last = change if at + 3 >= len(regions) else None
            pair = u.copy(), u.copy()
            made = pair[stencil.sweeps(*pair, taps, several, added, last)]
            out[several[-1]] = made[several[-1]]
            u, out, turned = out, u, not turned
        return turned


class Replaying(SeveralAtOnce):
    """Does what it did when it first met a key, as a GPU replays launches."""

    def again(self, known: dict[Any, Any], key: Any, work: Any) -> Any:
        return known.setdefault(key, work)()


class Spoiled(SeveralAtOnce):
    """Has recordings fail at each of their launches, none of which has happened."""

    left = -1

    def sweeps(self, *arguments: Any) -> bool:
        self.left -= 1
        if self.left == 0:
            raise InterruptedError
        if self.left > 0:
            return len(arguments[3]) % 6 in (1, 2, 3)
        return super().sweeps(*arguments)

    def again(self, known: dict[Any, Any], key: Any, work: Any) -> Any:
        for launch in range(1, 6):
            self.left = launch
            with suppress(InterruptedError):
                work()
        self.left = -1
        return work()


@contextmanager
def kernels_of(device: type[HostDevice]) -> Iterator[Callable[[], HostDevice]]:
    """Have ranks sweep by the methods of a class of devices; makes the device of a rank."""
    if not issubclass(device, SeveralAtOnce):
        yield device
        return
    local = threading.local()

    def made() -> HostDevice:
        local.device = device()
        return cast("HostDevice", local.device)

    kernels = SimpleNamespace(
        sweeps=lambda *arguments: local.device.sweeps(*arguments),
        sweeps_at_once=lambda kind, taps: local.device.sweeps_at_once(taps),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank, "stencil", kernels)
        yield made


@pytest.mark.parametrize("device", [HostDevice, SeveralAtOnce, Replaying, Spoiled])
@examples(100)
@given(problem=problems())
def test_equals_the_reference(device: type[HostDevice], problem: Problem) -> None:
    plan, task = problem.plan, problem.plan.task
    taps, iterations = task.taps, task.iterations
    result, ledgers = run(plan, problem.whole, device)
    wanted = stencil_reference(problem.whole, taps, task.boundary, iterations)
    close(result, wanted, taps, iterations)
    if plan.tiles == plan.source:
        rounds, table = -(-iterations // plan.steps), traffic(plan.halo)
        for rank, ledger in enumerate(ledgers):
            assert ledger.bytes_sent == rounds * sum(table[rank])
            assert ledger.calls["exchange"] <= rounds


def even_plan(
    n: int, mesh: tuple[int, int], weights: Array, steps: int, edge: Any, iterations: int = 1
) -> SweepPlan:
    tiles = even_tiles((n, n), mesh)
    task = StencilTask("float64", Taps.of(weights), (edge, edge), iterations)
    return SweepPlan(tiles, tiles, task, prod(mesh), steps)


@pytest.mark.parametrize("weights", [LAPLACIAN_5PT, LAPLACIAN_9PT], ids=["5pt", "9pt"])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_messages_are_divided_by_the_sweeps_of_an_exchange(weights: Array, steps: int) -> None:
    iterations, n = 8, 36
    plan = even_plan(n, (3, 3), 0.1 * weights, steps, "periodic", iterations)
    _, ledgers = run(plan, random((n, n), "float64", 1))
    neighbours, side = 8, n // 3
    surface = 4 * side * steps + 4 * steps**2
    for ledger in ledgers:
        assert ledger.calls == {"exchange": iterations // steps}
        assert len(ledger.sent) == neighbours
        assert ledger.messages_sent.total() == neighbours * iterations // steps
        assert ledger.bytes_sent == surface * 8 * iterations // steps


@pytest.mark.parametrize("edge", [0.0, "periodic"])
@given(
    n=st.integers(8, 31),
    sweeps=st.integers(1, 4),
    first=st.integers(1, 4),
    others=st.integers(1, 4),
)
def test_passes_make_every_cell_of_a_sweep_once(
    edge: Any, n: int, sweeps: int, first: int, others: int
) -> None:
    first = min(first, sweeps)
    plan = even_plan(n, (2, 2), LAPLACIAN_5PT, 4, edge)
    tiles = plan.tiles_of(0)
    passes = passes_of(tiles, sweeps, first=first, others=others)
    assert [len(regions) for made in passes.rest for regions in made.values()] == [
        min(others, sweeps - done) for done in range(first, sweeps, others)
    ]
    for index, tile in tiles.items():
        made = np.zeros(tile.shape, int)
        for regions in (passes.early[index], *passes.late[index]):
            assert len(regions) == first
            if all(along.start < along.stop for along in regions[-1]):
                made[regions[-1]] += 1
        wanted = np.zeros(tile.shape, int)
        wanted[tile.region(sweeps - first)] = 1
        np.testing.assert_array_equal(made, wanted)
        if passes.rest:
            assert passes.rest[-1][index][-1] == tile.inside


def test_bands_and_whole_arrays_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = even_plan(60, (2, 1), 0.1 * LAPLACIAN_9PT, 6, 0.5, 12)
    whole = random((60, 60), "float64", 2)
    wide, _ = run(plan, whole)
    monkeypatch.setattr("dask_dgpu.kernels.stencil.CACHE_BYTES", 1)
    narrow, _ = run(plan, whole)
    np.testing.assert_array_equal(wide, narrow)


def test_values_that_are_not_numbers_stay_where_they_belong() -> None:
    whole = np.zeros((12, 12))
    whole[5, 5] = np.nan
    plan = even_plan(12, (2, 2), LAPLACIAN_5PT, 2, 0.0, 2)
    result, _ = run(plan, whole)
    wanted = stencil_reference(whole, plan.task.taps, plan.task.boundary, 2)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(wanted))
    assert 1 < np.isnan(result).sum() < 16


class TestChoice:
    """Which tiles, and how many sweeps an exchange."""

    taps = Taps.of(LAPLACIAN_5PT)

    def choose(self, source: Layout, iterations: int, machine: Any = HOST) -> SweepPlan:
        size = max(source.owners) + 1
        return plan_sweeps(source, self.task(iterations), size, machine)

    def task(self, iterations: int) -> StencilTask:
        return StencilTask("float64", self.taps, (0.0, 0.0), iterations)

    def test_one_sweep_moves_nothing_but_ghost_cells(self) -> None:
        source = Layout((tuple(range(0, 2049, 256)),) * 2, dealt(64, 4))
        plan = self.choose(source, 1)
        assert plan.tiles == source
        assert plan.steps == 1
        assert plan.into is None

    @pytest.mark.parametrize("machine", [HOST, CUDA])
    def test_many_sweeps_of_small_blocks_are_worth_larger_tiles(self, machine: Any) -> None:
        source = Layout((tuple(range(0, 2049, 128)),) * 2, tuple(i % 4 for i in range(256)))
        plan = self.choose(source, 1000, machine)
        assert plan.tiles.grid in ((2, 2), (4, 1))
        assert plan.steps > 1

    def test_even_tiles_stay(self) -> None:
        source = even_tiles((2048, 2048), (2, 2))
        plan = self.choose(source, 1000)
        assert plan.tiles == source
        assert cost(plan, HOST) < cost(replace(plan, steps=1), HOST)
        assert peak(plan) > 3 * 8 * 1024**2

    def test_what_does_not_fit_is_made_smaller(self) -> None:
        source = even_tiles((512, 512), (2, 2))
        rich = plan_sweeps(source, self.task(1000), 4, HOST)
        room = peak(rich) - 1
        poor = plan_sweeps(source, self.task(1000), 4, HOST, room=room)
        assert poor.steps < rich.steps
        assert peak(poor) <= room

    @pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7])
    def test_any_number_of_ranks(self, size: int) -> None:
        source = Layout(((0, 3, 40), (0, 17, 30)), (0, size - 1, 0, 0))
        task = StencilTask("float32", self.taps, (0.0, 0.0), 100)
        plan = plan_sweeps(source, task, size, HOST)
        whole = random((40, 30), "float32", 3)
        small = replace(task, taps=Taps.of(0.1 * LAPLACIAN_5PT), iterations=7)
        result, _ = run(replace(plan, task=small), whole)
        wanted = stencil_reference(whole.astype("float64"), small.taps, small.boundary, 7)
        close(result, wanted, small.taps, 7)
