"""Loops with sums that all ranks read: exchanges, values, bits and predicted seconds."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.support.clusters import explained
from tests.support.programs import ALWAYS, Ran, joined, launch_of, loaded, run_evenly

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


def ran(z: da.Array, ranks: int) -> Ran:
    """Run an array's program on ranks with even shares."""
    return run_evenly(*loaded(z, ranks), ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_step_of_conjugate_gradients_exchanges_twice_besides_its_product(ranks: int) -> None:
    """Two sums a step; the numbers and vectors made of them take no exchange of their own."""
    z = of_dask(gradients)
    found, alone = ran(z, ranks), ran(of_dask(lambda xp, a, b: a @ b), ranks)
    # small parts travel within their headers
    calls, each = (some.ledgers[0].calls["exchange"] for some in (found, alone))
    assert calls == (2 + each) * STEPS
    values = joined(found.blocks, z.__dask_keys__())
    np.testing.assert_allclose(values, gradients(np, A, B), rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("function", [gradients, centered])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_bits_do_not_depend_on_who_adds(function: Any, ranks: int) -> None:
    """All ranks add in Dask's order."""
    z = of_dask(function)
    once, again = (ran(z, ranks).blocks for _ in range(2))
    assert {*once} == {*again}
    assert all(once[key].tobytes() == again[key].tobytes() for key in once)
    with dgpu.enable(local_ranks=ranks, **ALWAYS):
        found = z.compute(scheduler="sync")
    np.testing.assert_allclose(found, function(np, A, B), rtol=1e-11, atol=1e-14)
    if function is centered:
        plain = z.compute(scheduler="sync")
        np.testing.assert_array_equal(found, plain, strict=True)


def test_only_sums_are_predicted_to_wait_for_other_ranks() -> None:
    latency = 1.0
    z = of_dask(gradients)
    ((_, prediction),) = explained(z, figures={"latency": latency}, when="always").regions
    launch = launch_of(z, 4)
    nodes = launch.program.numbered.items()
    local = {launch.names[number] for number, node in nodes if node.operation is None}
    names = {f"{word}-{token[:8]}" for word, _, token in (name.rpartition("-") for name in local)}
    waiting = [
        step.name for step in prediction.steps if step.name in names and step.seconds >= latency
    ]
    assert len(waiting) == 2 * STEPS
    assert all(name.startswith("sum-aggregate") for name in waiting)
