"""Inputs that several collectives read move once, if that takes less time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.runtime.program import Launch
from graph_opt.model.layout import dealt
from tests.support.profiles import examples
from tests.support.programs import (
    Ran,
    cut,
    even,
    launch_of,
    planned,
    run_at,
    scattered,
    slices,
)

N, CHUNK, STEPS = 24, 6, 5
BLOCK_BYTES = CHUNK * CHUNK * 8


def slow(array: da.Array, ranks: int) -> Launch:
    """Return the launch for a slow network, where bytes count even for small blocks."""
    launch = launch_of(array, ranks)
    machine = replace(launch.program.machine, latency=1e-9, bandwidth=1e6)
    return replace(launch, program=replace(launch.program, machine=machine))


def powers(
    steps: int, matrix_of: Callable[[da.Array], da.Array] = lambda x: x
) -> tuple[da.Array, list[np.ndarray[Any, Any]]]:
    """Return repeated products of a matrix, made of another, with a vector; and these two."""
    rng = np.random.default_rng(0)
    a, v = rng.random((N, N)) / N, rng.random((N, 1))
    result, matrix = da.from_array(v, (CHUNK, 1)), matrix_of(da.from_array(a, CHUNK))
    for _ in range(steps):
        result = matrix @ result
    return result, [a, v]


def check(launch: Launch, owners: Any, ranks: int, arrays: Any, expected: Any) -> Ran:
    """Run a program of arrays with different shapes, compare its result, and return it."""
    by_shape = {array.shape: array for array in arrays}
    program = launch.program
    shapes = (tuple(cuts[-1] for cuts in value.cuts) for value in program.inputs)
    staged = [cut(by_shape[x], value) for x, value in zip(shapes, program.inputs, strict=True)]
    ran = run_at(launch, owners, staged, ranks)
    result, name = program.values[-1], launch.names[-1]
    for index in result.indices():
        found, wanted = ran.blocks[name, *index], expected[slices(result, index)]
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    return ran


@given(ranks=st.integers(1, 7), seed=st.integers(0, 2**16), steps=st.integers(1, 3))
@examples(25)
def test_the_result_is_right_wherever_blocks_lie(ranks: int, seed: int, steps: int) -> None:
    array, (a, v) = powers(steps)
    launch = slow(array, ranks)
    owners = scattered(launch.program, ranks, seed)
    check(launch, owners, ranks, [a, v], np.linalg.matrix_power(a, steps) @ v)


def test_a_matrix_of_a_loop_moves_once() -> None:
    ranks, (array, (a, v)) = 4, powers(STEPS)
    launch = slow(array, ranks)
    owners = list(even(launch.program, ranks))
    matrix = [len(places) for places in owners].index(16)
    owners[matrix] = tuple(np.random.default_rng(0).permutation(owners[matrix]).tolist())
    misplaced = sum(
        here != there for here, there in zip(owners[matrix], dealt(16, ranks), strict=True)
    )
    (moved,) = planned(launch.program, owners, ranks).moves.values()
    assert len(moved) == misplaced >= 8
    sent = check(launch, owners, ranks, [a, v], np.linalg.matrix_power(a, STEPS) @ v).sent
    vectors = STEPS * N * 8 * (ranks - 1)
    headers = 1024 * misplaced
    assert sent <= misplaced * BLOCK_BYTES + headers + 2 * vectors
    assert misplaced * BLOCK_BYTES < sent


@pytest.mark.parametrize("first", ["as it is", "transposed"])
def test_a_symmetric_matrix_lies_where_its_products_read_it(first: str) -> None:
    def symmetric(x: da.Array) -> da.Array:
        return x + x.T if first == "as it is" else x.T + x

    ranks, (array, (a, v)) = 4, powers(STEPS, symmetric)
    launch = slow(array, ranks)
    owners = even(launch.program, ranks)
    fixed = planned(launch.program, owners, ranks)
    products = [node for node in launch.program.nodes if node.operation is not None]
    assert len(products) == STEPS
    for product in products:
        assert fixed.values[product.reads[0]].layout.owners == dealt(16, ranks)
    check(launch, owners, ranks, [a, v], np.linalg.matrix_power(a + a.T, STEPS) @ v)


@pytest.mark.parametrize("why", ["in order", "one step", "no room"])
def test_nothing_moves_where_it_does_not_pay(why: str) -> None:
    ranks = 4
    program = slow(powers(1 if why == "one step" else STEPS)[0], ranks).program
    in_order = why == "in order"
    owners = even(program, ranks) if in_order else scattered(program, ranks, seed=0)
    if why == "no room":
        program = replace(program, room=BLOCK_BYTES)
    assert not planned(program, owners, ranks).moves
