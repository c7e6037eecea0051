"""Loops with sums that all ranks read: exchanges, values, bits and predicted seconds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.kernels.device.host import HostDevice
from dask_dgpu.operations.value import Local
from dask_dgpu.planner.optimizer import GraphOptimizer
from dask_dgpu.planner.predict import Prediction
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.plans import plans
from dask_dgpu.runtime.program import Program
from graph_opt.model.layout import dealt, label
from tests.support.recording import RecordingComm

ALWAYS = {"when": "always", "on_error": "raise"}
N, CHUNK, STEPS = 24, 6, 10
RNG = np.random.default_rng(3)
HALF = RNG.random((N, N)) / N
A, B = np.eye(N) + HALF @ HALF.T, RNG.random(N)


def gradients(xp: Any, a: Any, b: Any) -> Any:
    """Solve by conjugate gradients: two sums a step, and numbers made of them."""
    x = xp.zeros_like(b)
    p = r = b
    square = (r * r).sum()
    for _ in range(STEPS):
        q = a @ p
        step = square / (p * q).sum()
        x, r = x + step * p, r - step * q
        before, square = square, (r * r).sum()
        p = r + (square / before) * p
    return x


def centered(xp: Any, a: Any, b: Any) -> Any:
    """Scale columns by their means and deviations: dicts of partial sums travel."""
    return (a - a.mean(axis=0)) / (a.std(axis=0) + 1)


def of_dask(function: Any) -> da.Array:
    return function(da, da.from_array(A, CHUNK), da.from_array(B, CHUNK))


def program_of(z: da.Array, ranks: int) -> Program:
    with dgpu.enable(local_ranks=ranks, **ALWAYS) as enabled:
        ((region, _),) = enabled.optimizer.rewrite(z.dask, z.__dask_keys__()).regions
        return enabled.optimizer.program(region)


def run(program: Program, ranks: int) -> tuple[dict[Any, Any], Counter[str], int]:
    """Return the blocks, the calls of the first rank, and the local steps that exchange."""
    owners = {name: dealt(len(value.indices()), ranks) for name, value in program.inputs}
    fixed = plans(program, owners, ranks)
    given = {2: A, 1: B}

    def rank_program(comm: Comm) -> tuple[dict[Any, Any], Counter[str]]:
        recorded = RecordingComm(comm)
        mine: dict[str, dict[Any, Any]] = {name: {} for name, _ in program.inputs}
        for name, value in program.inputs:
            for index, owner in zip(value.indices(), owners[name], strict=True):
                if owner == comm.rank:
                    places = zip(value.cuts, index, strict=True)
                    cut = tuple(slice(cuts[at], cuts[at + 1]) for cuts, at in places)
                    mine[name][index] = given[len(index)][cut].copy()
        return execute(program, fixed, recorded, HostDevice(), mine), recorded.ledger.calls

    found = run_local(ranks, rank_program)
    exchanging = sum(bool(making.shipments) for making in fixed.makings.values())
    return {key: block for part, _ in found for key, block in part.items()}, found[0][1], exchanging


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_step_of_conjugate_gradients_exchanges_twice_besides_its_product(ranks: int) -> None:
    """Two sums a step; the numbers and vectors made of them take no exchange of their own."""
    program = program_of(of_dask(gradients), ranks)
    blocks, calls, exchanging = run(program, ranks)
    assert exchanging == 2 * STEPS
    products = program_of(of_dask(lambda xp, a, b: a @ b), ranks)
    _, alone, others = run(products, ranks)
    assert others == 0
    # small parts travel within their headers
    assert calls["exchange"] == exchanging + STEPS * alone["exchange"]
    found = np.concatenate([blocks[key] for key in sorted(blocks, key=lambda key: key[1:])])
    np.testing.assert_allclose(found, gradients(np, A, B), rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("function", [gradients, centered])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_bits_do_not_depend_on_who_adds(function: Any, ranks: int) -> None:
    """All ranks add in Dask's order."""
    program = program_of(of_dask(function), ranks)
    once, again = (run(program, ranks)[0] for _ in range(2))
    assert {*once} == {*again}
    assert all(once[key].tobytes() == again[key].tobytes() for key in once)
    with dgpu.enable(local_ranks=ranks, **ALWAYS):
        found = of_dask(function).compute(scheduler="sync")
    np.testing.assert_allclose(found, function(np, A, B), rtol=1e-11, atol=1e-14)
    if function is centered:
        plain = of_dask(function).compute(scheduler="sync")
        np.testing.assert_array_equal(found, plain, strict=True)


def predicted(z: da.Array, latency: float) -> Prediction:
    facts = ClusterFacts(4, "cpu", None, figures=(("latency", latency),))
    optimizer = GraphOptimizer(read(ALWAYS), facts)
    ((_, prediction),) = optimizer.rewrite(z.dask, z.__dask_keys__()).regions
    return prediction


def test_only_sums_are_predicted_to_wait_for_other_ranks() -> None:
    latency = 1.0
    z = of_dask(gradients)
    prediction = predicted(z, latency)
    program = program_of(z, 4)
    local = {label(step.output) for step in program.steps if isinstance(step, Local)}
    waiting = [
        step.name for step in prediction.steps if step.name in local and step.seconds >= latency
    ]
    assert len(waiting) == 2 * STEPS
    assert all(name.startswith("sum-aggregate") for name in waiting)
