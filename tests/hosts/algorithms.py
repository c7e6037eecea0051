"""Arrays and algorithms for several hosts, long enough on a slow link to be hit by a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from distributed import Client
from scipy.ndimage import correlate, laplace

import dask_dgpu as dgpu

N, CHUNK, SWEEPS = 600, 200, 40
RNG = np.random.default_rng(3)
SQUARE = RNG.random((N, N))
WIDE = RNG.random((12, 100_000))
BOX = RNG.random((1, 1, 5, 5))


class Algorithm(NamedTuple):
    """An input in chunks, what is computed of it, and NumPy's result."""

    array: Any
    chunks: Any
    compute: Callable[[da.Array], da.Array]
    expected: Callable[[Any], Any]

    def input(self) -> da.Array:
        """Return the input as a Dask array."""
        return da.from_array(self.array, chunks=self.chunks)


def _sweeps(a: Any) -> Any:
    for _ in range(SWEEPS):
        a = laplace(a, mode="wrap")
    return a


ALGORITHMS = {
    "matmul": Algorithm(SQUARE, CHUNK, lambda x: x @ x, lambda a: a @ a),
    "fft": Algorithm(SQUARE, CHUNK, lambda x: da.fft.fft2(x), np.fft.fft2),
    "rechunk": Algorithm(SQUARE, CHUNK, lambda x: x.rechunk((N, 7)), lambda a: a),
    "stencil": Algorithm(
        SQUARE,
        CHUNK,
        lambda x: dgpu.stencil(x, boundary="periodic", iterations=SWEEPS),
        _sweeps,
    ),
    "sum": Algorithm(WIDE, (2, 50_000), lambda x: dgpu.sum(x, axis=0), lambda a: a.sum(axis=0)),
}
"""One of each pattern of messages: panels, transposes, moves, ghost cells, and a tree."""


def _rolled(x: da.Array) -> da.Array:
    for _ in range(10):
        x = x.map_overlap(lambda block: np.roll(block, 1, 0), depth=1, boundary="periodic")
    return x


OTHERS = {
    "contract": Algorithm(
        SQUARE,
        CHUNK,
        lambda x: da.einsum("ij,kj->ik", x, x),
        lambda a: a @ a.T,
    ),
    "overlap": Algorithm(SQUARE, CHUNK, _rolled, lambda a: np.roll(a, 10, 0)),
    "conv2d": Algorithm(
        SQUARE,
        CHUNK,
        lambda x: dgpu.conv2d(x[None, None], BOX, padding=2)[0, 0],
        lambda a: correlate(a, BOX[0, 0], mode="constant"),
    ),
    "region": Algorithm(
        SQUARE,
        CHUNK,
        lambda x: (x @ x + x.T - x.mean(axis=0)).sum(axis=1),
        lambda a: (a @ a + a.T - a.mean(axis=0)).sum(axis=1),
    ),
}
"""More algorithms with these patterns."""


def compute(client: Client, algorithm: Algorithm) -> None:
    """Compute with an algorithm, and compare the result."""
    result = client.compute(algorithm.compute(algorithm.input())).result(timeout=60)
    assert_right(result, algorithm.expected(algorithm.array))


def assert_right(result: Any, expected: Any) -> None:
    """Compare a result with NumPy's, relative to its largest element."""
    scale = np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(result), expected, rtol=0, atol=1e-11 * scale)
