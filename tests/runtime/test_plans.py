"""Programs are planned once."""

from __future__ import annotations

import pickle

import dask.array as da
import numpy as np
import pytest

from tests.support.programs import even, joined, launch_of, loaded, planned, run

RANKS = 3


def product(seed: int, size: int = 12) -> da.Array:
    x, y = (da.from_array(each, 4) for each in np.random.default_rng(seed).random((2, size, size)))
    return (x @ y + 1) @ x


def test_the_same_structure_is_planned_once() -> None:
    first, second = (launch_of(product(seed), RANKS) for seed in range(2))
    assert not {*first.names} & {*second.names}
    assert first.program == second.program
    owners = even(first.program, RANKS)
    assert planned(second.program, owners, RANKS) is planned(first.program, owners, RANKS)


@pytest.mark.parametrize("change", ["owners", "ranks", "shape"])
def test_what_plans_depend_on(change: str) -> None:
    program = other = launch_of(product(0), RANKS).program
    ranks = RANKS + (change == "ranks")
    owners = even(program, RANKS)
    found = planned(program, owners, RANKS)
    if change == "shape":
        other = launch_of(product(0, size=16), RANKS).program
        owners = even(other, RANKS)
    if change == "owners":
        owners = [tuple((rank + 1) % RANKS for rank in places) for places in owners]
    assert planned(other, owners, ranks) is not found


def test_ranks_run_what_they_have_received() -> None:
    z = product(0)
    launch, staged = loaded(z, RANKS)
    owners = even(launch.program, RANKS)
    sent = planned(launch.program, owners, RANKS)
    assert sent.payload is sent.payload
    blocks = run(launch, pickle.loads(sent.payload), owners, staged, RANKS).blocks
    x, y = np.random.default_rng(0).random((2, *z.shape))
    np.testing.assert_allclose(joined(blocks, z.__dask_keys__()), (x @ y + 1) @ x, rtol=1e-12)
