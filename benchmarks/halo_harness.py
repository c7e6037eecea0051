"""What the benchmarks of Jacobi's iteration on GPUs share: an eigenvector, and fused steps.

The steps run on workers, where this module is imported.
"""

from __future__ import annotations

from functools import cache
from math import cos, pi, sqrt
from typing import Any

import numpy as np

Array = Any

DECAY = 0.7
"""An eigenvector is chosen that loses this power of e in the given number of sweeps."""
THREADS = 256
ROWS = 32768
"""Of a launch at most; each multiprocessor gets many."""
FUSED_STEP = r"""
extern "C" __global__ void fused_step(
    const float* block, float* out, long long rows, long long columns) {
  const long long j = blockIdx.x * (long long) blockDim.x + threadIdx.x;
  if (j >= columns) return;
  const long long pitch = columns + 2;
  for (long long i = blockIdx.y; i < rows; i += gridDim.y) {
    const float* at = block + (i + 1) * pitch + j + 1;
    out[i * columns + j] = 0.25f * (at[-pitch] + at[pitch] + at[-1] + at[1]);
  }
}
"""


def eigenvector(shape: tuple[int, int], sweeps: int) -> tuple[list[Array], float]:
    """Return an eigenvector of a sweep, zero beyond the grid, and its eigenvalue.

    Parameters
    ----------
    shape : tuple of int
        Of the grid.
    sweeps : int
        After which neither all of it nor nothing is left.

    Returns
    -------
    factors : list of numpy.ndarray
        One an axis, float64; the eigenvector is their outer product.
    rate : float
        What a sweep multiplies it with: the mean of the cosines of its modes' angles.
    """
    angles = [max(1, round((n + 1) / pi * sqrt(2 * DECAY / sweeps))) * pi / (n + 1) for n in shape]
    factors = [np.sin(angle * np.arange(1, n + 1)) for angle, n in zip(angles, shape, strict=True)]
    return factors, sum(map(cos, angles)) / 2


def jacobis_case(shape: tuple[int, int], iterations: int) -> tuple[list[Array], float, float]:
    """Return what Jacobi's iteration makes of an eigenvector, exactly.

    The first iterate is the eigenvector. The right-hand side is the Laplacian of twice the
    eigenvector, so what is left of it goes over into its double.

    Returns
    -------
    factors : list of numpy.ndarray
        Of the first iterate.
    rhs, last : float
        The right-hand side and the last iterate are the first one times these.
    """
    factors, rate = eigenvector(shape, iterations)
    return factors, 8 * (rate - 1), 2 - rate**iterations


def fused_step(block: Array) -> Array:
    """Return the mean of the four neighbours of each inner cell, in one pass over memory.

    Parameters
    ----------
    block : array
        float32, with a ghost cell on every side; of NumPy or CuPy.
    """
    if isinstance(block, np.ndarray):
        return _on_host()(block)
    import cupy

    block = cupy.ascontiguousarray(block)
    rows, columns = (length - 2 for length in block.shape)
    out = cupy.empty((rows, columns), block.dtype)
    grid = (-(-columns // THREADS), min(rows, ROWS))
    _on_gpu()(grid, (THREADS,), (block, out, np.int64(rows), np.int64(columns)))
    return out


@cache
def _on_gpu() -> Any:
    import cupy

    return cupy.RawKernel(FUSED_STEP, "fused_step")


@cache
def _on_host() -> Any:
    import numba

    @numba.njit
    def step(block: Array) -> Array:
        out = np.empty((block.shape[0] - 2, block.shape[1] - 2), block.dtype)
        for i in range(out.shape[0]):
            for j in range(out.shape[1]):
                around = block[i, j + 1] + block[i + 2, j + 1] + block[i + 1, j]
                out[i, j] = 0.25 * (around + block[i + 1, j + 2])
        return out

    return step
