"""Loops with sums that all ranks read: exchanges, values, bits and predicted seconds."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.optimizer import GraphOptimizer
from dask_dgpu.planner.predict import Prediction
from dask_dgpu.runtime.plans import plans
from graph_opt.model.names import label
from tests.support.programs import ALWAYS, Ran, even, joined, launch_of, loaded, run

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


def ran(z: da.Array, ranks: int) -> tuple[Ran, int]:
    """Run an array's program; also return the number of local steps that exchange."""
    launch, staged = loaded(z, ranks)
    owners = even(launch.program, ranks)
    fixed = plans(launch.program, owners, ranks)
    exchanging = sum(bool(making.shipments) for making in fixed.makings.values())
    return run(launch, fixed, owners, staged, ranks), exchanging


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_step_of_conjugate_gradients_exchanges_twice_besides_its_product(ranks: int) -> None:
    """Two sums a step; the numbers and vectors made of them take no exchange of their own."""
    z = of_dask(gradients)
    found, exchanging = ran(z, ranks)
    assert exchanging == 2 * STEPS
    alone, others = ran(of_dask(lambda xp, a, b: a @ b), ranks)
    assert others == 0
    # small parts travel within their headers
    calls, each = (some.ledgers[0].calls["exchange"] for some in (found, alone))
    assert calls == exchanging + STEPS * each
    values = joined(found.blocks, z.__dask_keys__())
    np.testing.assert_allclose(values, gradients(np, A, B), rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("function", [gradients, centered])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_bits_do_not_depend_on_who_adds(function: Any, ranks: int) -> None:
    """All ranks add in Dask's order."""
    z = of_dask(function)
    once, again = (ran(z, ranks)[0].blocks for _ in range(2))
    assert {*once} == {*again}
    assert all(once[key].tobytes() == again[key].tobytes() for key in once)
    with dgpu.enable(local_ranks=ranks, **ALWAYS):
        found = z.compute(scheduler="sync")
    np.testing.assert_allclose(found, function(np, A, B), rtol=1e-11, atol=1e-14)
    if function is centered:
        plain = z.compute(scheduler="sync")
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
    launch = launch_of(z, 4)
    nodes = launch.program.numbered.items()
    local = {label(launch.names[number]) for number, node in nodes if node.operation is None}
    waiting = [
        step.name for step in prediction.steps if step.name in local and step.seconds >= latency
    ]
    assert len(waiting) == 2 * STEPS
    assert all(name.startswith("sum-aggregate") for name in waiting)
