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

import dask_dgpu as dgpu
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device.host import HostDevice
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.plans import Plans, plans
from dask_dgpu.runtime.program import Program
from graph_opt.model.layout import Cuts, Index, dealt
from tests.support.profiles import examples
from tests.support.recording import RecordingComm

N, CHUNK, STEPS = 24, 6, 5
BLOCK_BYTES = CHUNK * CHUNK * 8


def program_of(array: da.Array, ranks: int) -> Program:
    """Return a program for a slow network, where bytes count even for small blocks."""
    with dgpu.enable(local_ranks=ranks, when="always", on_error="raise") as enabled:
        ((region, _),) = enabled.optimizer.rewrite(array.dask, array.__dask_keys__()).regions
        program = enabled.optimizer.program(region)
        return replace(program, machine=replace(program.machine, latency=1e-9, bandwidth=1e6))


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


def run(
    program: Program, arrays: list[np.ndarray[Any, Any]], fixed: Plans, owners: Any, ranks: int
) -> tuple[dict[Any, Any], int]:
    """Return all blocks of the result, and the bytes that ranks sent."""
    by_shape = {array.shape: array for array in arrays}
    sent = [0] * ranks

    def rank_program(comm: Comm) -> dict[Any, Any]:
        recorded = RecordingComm(comm)
        mine: dict[str, dict[Any, Any]] = {}
        for name, value in program.inputs:
            whole = by_shape[tuple(cuts[-1] for cuts in value.cuts)]
            places = zip(value.indices(), owners[name], strict=True)
            mine[name] = {
                index: whole[slices(value.cuts, index)].copy()
                for index, owner in places
                if owner == comm.rank
            }
        made = execute(program, fixed, recorded, HostDevice(), mine)
        sent[comm.rank] = recorded.ledger.bytes_sent
        return made

    made: dict[Any, Any] = {}
    for part in run_local(ranks, rank_program):
        made |= part
    return made, sum(sent)


def check(made: dict[Any, Any], program: Program, expected: np.ndarray[Any, Any]) -> None:
    """Compare the blocks of the last step."""
    result = program.steps[-1].result
    for index in result.indices():
        found = made[program.steps[-1].output, *index]
        np.testing.assert_allclose(found, expected[slices(result.cuts, index)], rtol=1e-12)


def slices(cuts: tuple[Cuts, ...], index: Index) -> tuple[slice, ...]:
    return tuple(slice(each[at], each[at + 1]) for each, at in zip(cuts, index, strict=True))


def scattered(program: Program, ranks: int, seed: int) -> dict[str, tuple[int, ...]]:
    """Return random places of all blocks."""
    rng = np.random.default_rng(seed)
    return {
        name: tuple(rng.integers(ranks, size=len(value.indices())).tolist())
        for name, value in program.inputs
    }


@given(ranks=st.integers(1, 7), seed=st.integers(0, 2**16), steps=st.integers(1, 3))
@examples(25)
def test_the_result_is_right_wherever_blocks_lie(ranks: int, seed: int, steps: int) -> None:
    array, (a, v) = powers(steps)
    program = program_of(array, ranks)
    owners = scattered(program, ranks, seed)
    fixed = plans(program, owners, ranks)
    made, _ = run(program, [a, v], fixed, owners, ranks)
    check(made, program, np.linalg.matrix_power(a, steps) @ v)


def test_a_matrix_of_a_loop_moves_once() -> None:
    ranks, (array, arrays) = 4, powers(STEPS)
    program = program_of(array, ranks)
    (matrix,) = (name for name, value in program.inputs if len(value.indices()) == 16)
    owners = {name: dealt(len(value.indices()), ranks) for name, value in program.inputs}
    owners[matrix] = tuple(np.random.default_rng(0).permutation(owners[matrix]).tolist())
    misplaced = sum(
        here != there for here, there in zip(owners[matrix], dealt(16, ranks), strict=True)
    )
    fixed = plans(program, owners, ranks)
    (moved,) = fixed.fixed.moves.values()
    assert len(moved) == misplaced >= 8
    _, sent = run(program, arrays, fixed, owners, ranks)
    vectors = STEPS * N * 8 * (ranks - 1)
    headers = 1024 * misplaced
    assert sent <= misplaced * BLOCK_BYTES + headers + 2 * vectors
    assert misplaced * BLOCK_BYTES < sent


@pytest.mark.parametrize("first", ["as it is", "transposed"])
def test_a_symmetric_matrix_lies_where_its_products_read_it(first: str) -> None:
    def symmetric(x: da.Array) -> da.Array:
        return x + x.T if first == "as it is" else x.T + x

    ranks, (array, (a, v)) = 4, powers(STEPS, symmetric)
    program = program_of(array, ranks)
    owners = {name: dealt(len(value.indices()), ranks) for name, value in program.inputs}
    fixed = plans(program, owners, ranks)
    products = [step for step in program.steps if step.output in fixed.collectives]
    assert len(products) == STEPS
    for product in products:
        assert fixed.values[product.inputs[0]].layout.owners == dealt(16, ranks)
    made, _ = run(program, [a, v], fixed, owners, ranks)
    check(made, program, np.linalg.matrix_power(a + a.T, STEPS) @ v)


@pytest.mark.parametrize("why", ["in order", "one step", "no room"])
def test_nothing_moves_where_it_does_not_pay(why: str) -> None:
    ranks = 4
    program = program_of(powers(1 if why == "one step" else STEPS)[0], ranks)
    owners = scattered(program, ranks, seed=0)
    if why == "in order":
        owners = {name: dealt(len(places), ranks) for name, places in owners.items()}
    if why == "no room":
        program = replace(program, room=BLOCK_BYTES)
    assert not plans(program, owners, ranks).fixed.moves
