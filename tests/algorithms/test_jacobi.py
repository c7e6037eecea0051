"""Jacobi's iteration on ranks: against a whole-array reference and direct solutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.halo.plan import traffic
from dask_dgpu.algorithms.stencil import jacobi
from dask_dgpu.algorithms.stencil.jacobi import Outcome, jacobi_rank
from dask_dgpu.algorithms.stencil.plan import (
    JacobiTask,
    SweepPlan,
    cost,
    even_tiles,
    peak,
    plan_sweeps,
)
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from graph_opt.model.cost import CUDA, HOST
from graph_opt.model.layout import Layout
from tests.algorithms.test_redistribute import layouts
from tests.algorithms.test_stencil import random
from tests.support.profiles import examples
from tests.support.recording import Ledger, RecordingComm
from tests.support.reference.elimination import direct
from tests.support.reference.halo import Blocks, blocks_of
from tests.support.reference.jacobi import jacobi_reference

Array = Any


def run(plan: SweepPlan, u0: Array, rhs: Array) -> tuple[Array, Outcome, list[Ledger]]:
    """Iterate on ranks that are threads."""
    assert plan.added is not None
    first, right = blocks_of(u0, plan.source), blocks_of(rhs, plan.added)

    def rank_program(comm: Comm) -> tuple[Blocks, Outcome, Ledger]:
        recording = RecordingComm(comm)
        made, outcome = jacobi_rank(
            plan,
            recording,
            HostDevice(),
            {index: first[index] for index in plan.source.owned(comm.rank)},
            {index: right[index] for index in plan.added.owned(comm.rank)},
        )
        return made, outcome, recording.ledger

    results = run_local(plan.size, rank_program)
    result = np.empty_like(u0)
    for made, _, _ in results:
        for index, block in made.items():
            blocks_of(result, plan.source)[index][...] = block
    assert len({repr(outcome) for _, outcome, _ in results}) == 1  # nan is unlike itself
    return result, results[0][1], [ledger for _, _, ledger in results]


def plan_of(task: JacobiTask, shape: tuple[int, ...], size: int, **more: Any) -> SweepPlan:
    tiles = even_tiles(shape, (size, *(1,) * (len(shape) - 1)))
    return replace(plan_sweeps(tiles, task, size, HOST, added=tiles), **more)


@pytest.mark.parametrize("shape", [(13,), (9, 11), (5, 6, 4), (3, 4, 3, 2)])
@pytest.mark.parametrize("edge", [pytest.param(0.0, marks=pytest.mark.slow), 2.0])
@pytest.mark.parametrize(
    "size", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(7, marks=pytest.mark.slow)]
)
def test_converges_to_the_direct_solution(shape: tuple[int, ...], edge: float, size: int) -> None:
    rhs, dx = random(shape, "float64", 4), 0.25
    task = JacobiTask.of("float64", dx, (edge,) * len(shape), 100_000, 1e-10)
    u, outcome, _ = run(plan_of(task, shape, size), np.zeros(shape), rhs)
    assert outcome.reason == "converged"
    assert outcome.history[-1][1] <= task.tol
    wanted = direct(rhs, dx, edge)
    np.testing.assert_allclose(u, wanted, rtol=0, atol=1e-7 * np.abs(wanted).max())


@pytest.mark.slow
@examples(100)
@given(data=st.data(), size=st.integers(1, 7))
def test_equals_the_reference(data: st.DataObject, size: int) -> None:
    ndim = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.sampled_from([1, 2, 3, 5, 6])) for _ in range(ndim))
    boundary = tuple(
        data.draw(st.sampled_from(["periodic", "reflect", "nearest", 0.0, -1.0])) for _ in shape
    )
    dtype = data.draw(st.sampled_from(["float32", "float64", "complex64", "complex128"]))
    iterations = data.draw(st.integers(0, 30))
    task = JacobiTask.of(dtype, 0.5, boundary, iterations, 1e-3)
    owners = st.integers(0, size - 1)
    source, rhs_source = data.draw(layouts(shape, owners)), data.draw(layouts(shape, owners))
    machine = data.draw(st.sampled_from([HOST, CUDA]))
    plan = plan_sweeps(source, task, size, machine, added=rhs_source)
    plan = replace(plan, steps=data.draw(st.integers(1, 4)))
    u0, rhs = random(shape, dtype, 1), random(shape, dtype, 2)
    u, outcome, _ = run(plan, u0, rhs)
    count, residual = outcome.history[-1]
    alike, known = jacobi_reference(replace(task, iterations=count, tol=-1.0), u0, rhs)
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(u, alike, rtol=0, atol=60 * eps * (count + 1))
    wanted = dict(known.history)
    for at, value in outcome.history:
        assert value == pytest.approx(wanted[at], rel=1e-3, abs=100 * eps)
    assert (outcome.reason == "converged") == (residual <= task.tol)
    assert outcome.reason in ("converged", "max_iterations")
    assert count <= iterations


def test_residuals_never_grow() -> None:
    task = JacobiTask.of("float64", 1.0, (0.0, 0.0), 3000, 1e-9)
    _, outcome, _ = run(plan_of(task, (24, 20), 3, every=1), *random((2, 24, 20), "float64", 5))
    counts, residuals = np.array(outcome.history).T
    assert outcome.reason == "converged"
    assert (np.diff(counts) > 0).all()
    assert (np.diff(residuals) <= 0).all()
    assert len(residuals) > 10


@pytest.mark.parametrize("every", [1, 3])
def test_residuals_cost_one_all_reduce_each(every: int) -> None:
    shape, steps, rounds = (24, 20), 4, 12
    task = JacobiTask.of("float64", 1.0, (0.0, 0.0), steps * rounds, 0.0)
    plan = plan_of(task, shape, 2, every=every)
    plan = replace(plan, steps=steps)
    _, outcome, ledgers = run(plan, *random((2, *shape), "float64", 6))
    assert outcome.reason == "max_iterations"
    asked = rounds // every
    assert [at for at, _ in outcome.history] == [
        0,
        *(every * steps * (check + 1) - 1 for check in range(asked)),
        steps * rounds,
    ]
    for rank, ledger in enumerate(ledgers):
        # that of u = 0, the first and the last one are waited for
        assert ledger.calls["all_reduce"] == asked + 3
        # and the right-hand side has ghost cells once
        assert ledger.calls["exchange"] == rounds + 3 + 1
        surface = sum(traffic(plan.halo)[rank])
        assert ledger.bytes_sent - surface * (rounds + 4) <= 8 * 2 * (asked + 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("where", ["u0", "rhs"])
def test_what_is_not_finite_ends_at_once(bad: float, where: str) -> None:
    task = JacobiTask.of("float64", 1.0, (0.0, 0.0), 10_000, 1e-6)
    arrays = {"u0": np.zeros((9, 8)), "rhs": np.ones((9, 8))}
    arrays[where][4, 4] = bad
    with np.errstate(all="ignore"):
        _, outcome, _ = run(plan_of(task, (9, 8), 2), *arrays.values())
    assert outcome.reason != "converged"
    assert outcome.history[-1][0] == 0


def test_a_singular_problem_without_a_solution_is_not_converged() -> None:
    task = JacobiTask.of("float64", 1.0, ("periodic", "reflect"), 2000, 1e-6)
    _, outcome, _ = run(plan_of(task, (8, 9), 2), np.zeros((8, 9)), np.ones((8, 9)))
    assert outcome.reason == "max_iterations"
    assert outcome.history[-1][1] == pytest.approx(1.0)


def test_nothing_to_do() -> None:
    task = JacobiTask.of("float64", 1.0, (0.0,), 100, 1e-6)
    u, outcome, _ = run(plan_of(task, (12,), 2), np.zeros(12), np.zeros(12))
    assert outcome == Outcome("converged", ((0, 0.0),))
    np.testing.assert_array_equal(u, 0)
    task = replace(task, iterations=0)
    _, outcome, _ = run(plan_of(task, (12,), 2), np.ones(12), np.zeros(12))
    assert outcome.reason == "max_iterations"


@pytest.mark.parametrize("size", [1, 2])
def test_it_is_over_soon_however_many_sweeps_are_allowed(size: int) -> None:
    task = JacobiTask.of("float64", 1.0, (0.0, 0.0), 10**9, 1e-8)
    plan = plan_of(task, (12, 10), size)
    _, outcome, _ = run(plan, *random((2, 12, 10), "float64", 7))
    assert outcome.reason == "converged"
    assert outcome.history[-1][0] < 5000
    rounds = checks = 0
    while rounds < 10**8:
        rounds += plan.pause(rounds)
        checks += 1
    assert checks < 10_000


def test_a_look_that_was_too_hopeful_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual that ends the iteration is recomputed, and it goes on if that is large."""
    original, lies = jacobi._Run._read, []

    def hopeful(self: Any, done: int, sums: Any) -> bool:
        over = original(self, done, sums)
        lies.append(not over)
        return True

    monkeypatch.setattr(jacobi._Run, "_read", hopeful)
    task = JacobiTask.of("float64", 1.0, (0.0, 0.0), 5000, 1e-8)
    _, outcome, _ = run(plan_of(task, (12, 10), 2, every=1), *random((2, 12, 10), "float64", 7))
    assert any(lies)
    assert outcome.reason == "converged"
    assert outcome.history[-1][1] <= 1e-8


@pytest.mark.parametrize("machine", [HOST, CUDA])
def test_the_plan_of_a_large_grid(machine: Any) -> None:
    tiles = even_tiles((2048, 2048), (2, 2))
    task = JacobiTask.of("float64", 1.0, (0.0, 0.0), 1000, 1e-6)
    plan = plan_sweeps(tiles, task, 4, machine, added=tiles)
    assert plan.steps > 1
    assert plan.added_into is None
    assert cost(plan, machine) > 0
    assert peak(plan) > 4 * 8 * 1024**2
    assert plan.every * plan.steps <= 100


def test_a_right_hand_side_elsewhere_is_moved() -> None:
    task = JacobiTask.of("float64", 1.0, (0.0,), 50, 1e-12)
    here, there = Layout(((0, 5, 11),), (0, 1)), Layout(((0, 5, 11),), (1, 0))
    plan = plan_sweeps(here, task, 2, HOST, added=there)
    assert plan.added_into is not None
    u0, rhs = random((11,), "float64", 0), random((11,), "float64", 1)
    u, _, _ = run(plan, u0, rhs)
    alike, _ = jacobi_reference(replace(task, tol=-1.0), u0, rhs)
    np.testing.assert_allclose(u, alike, atol=1e-13)
