"""Solvers that read numbers in each iteration: programs are those of the iteration before.

The first iterations have other arrays: the solution is zero, and two vectors are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

from tests.cluster.observe import PLUGIN, forget_structures, nothing_left, structures
from tests.cluster.test_kept_programs import counted, watch_launches, watch_no_more
from tests.support.benchmarks import benchmark

rounds = benchmark("rounds")

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SIDE, CHUNK, ITERATIONS = 48, 13, 10
TOLERANCE = 1e-30

Arrays = tuple[da.Array, da.Array]


def by_numbers(a: da.Array, b: da.Array) -> Iterator[Arrays]:
    """Conjugate gradients: yield the solution and the direction after each iteration."""
    x, r = da.zeros_like(b), b
    p, square = r, float((r * r).sum().compute())
    while square > TOLERANCE:
        q = (a @ p).persist()
        step = square / float((p * q).sum().compute())
        x, r = dask.persist(x + step * p, r - step * q)
        before, square = square, float((r * r).sum().compute())
        p = (r + (square / before) * p).persist()
        yield x, p


def by_compute(a: da.Array, b: da.Array) -> Iterator[Arrays]:
    """The same with both numbers of an iteration at once, after Chronopoulos and Gear."""
    x, r = da.zeros_like(b), b
    p = s = da.zeros_like(b)
    before = step = 1.0
    share = 0.0
    while True:
        w = (a @ r).persist()
        square, inner = map(float, dask.compute((r * r).sum(), (r * w).sum()))
        if square <= TOLERANCE:
            return
        share = 0.0 if p is s else square / before
        step = square / (inner - share * square / step)
        p, s = (r, w) if p is s else dask.persist(r + share * p, w + share * s)
        x, r = dask.persist(x + step * p, r - step * s)
        before = square
        yield x, p


def received(dask_worker: Any) -> tuple[int, int]:
    """Return the programs that a worker got, with launches or by asking."""
    counted = dask_worker.plugins[PLUGIN].counted
    return counted["programs"], counted["asked"]


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize(("solve", "first"), [(by_numbers, 1), (by_compute, 2)])
def test_each_iteration_is_the_program_of_the_one_before(
    client: Client,
    in_memory: Callable[..., da.Array],
    solve: Callable[[da.Array, da.Array], Iterator[Arrays]],
    first: int,
) -> None:
    """From the iteration after the ``first`` that has all arrays of its own."""
    rng = np.random.default_rng(SIDE)
    matrix = rng.random((SIDE, SIDE))
    matrix, right = matrix + matrix.T + SIDE * np.eye(SIDE), rng.random(SIDE)
    a, b = in_memory(matrix, CHUNK), in_memory(right, CHUNK)
    client.run(watch_launches)
    forget_structures(client)
    found = []
    for x, p in islice(solve(a, b), ITERATIONS):
        wait([x, p])
        found.append((structures(client), client.run(received)))
    np.testing.assert_allclose(x.compute(), np.linalg.solve(matrix, right), rtol=1e-9)
    assert len(found) > 5
    optimized, programs = zip(*found[first:], strict=True)
    assert all(each == programs[0] for each in programs)
    # whether the blocks of a residual are in memory yet, or where they will be, is the same
    assert optimized[-1] == optimized[0]
    assert found[0][0] < optimized[0]  # structures are counted at all
    client.run(watch_no_more)
    del x, p
    nothing_left(client, a, b)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_the_benchmark_reads_two_numbers_at_once(client: Client) -> None:
    """A step takes three gangs: the product, both numbers, the vectors.

    The numbers are two gangs if the blocks of one are in memory and of the other not yet.
    """
    small = rounds.Rounds(client, "cpu")
    matrix, right = small.x.compute(), small.b.compute()
    wanted = np.linalg.solve(matrix + matrix.T + rounds.N * np.eye(rounds.N), right)
    for at in range(2):
        client.run(watch_launches)
        found = small.gradients_together(at)
        np.testing.assert_allclose(found.compute() / (1 + at), wanted, rtol=1e-9)
    counts = counted(client)
    (launches,), (programs,) = counts["launches"], counts["programs"]
    assert rounds.ITERATIONS < launches <= 1 + 4 * rounds.ITERATIONS
    assert programs < launches / 2  # nothing waits, so which blocks are in memory varies a little
    client.run(watch_no_more)
    del found
    nothing_left(client, small.x, small.y, small.b)
