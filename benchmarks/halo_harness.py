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
ROWS = 16
"""That a thread makes one after the other."""
FUSED_STEP = r"""
extern "C" __global__ void fused_step(
    const float* block, float* out, int rows, int columns) {
  const int j = 1 + blockIdx.x * blockDim.x + threadIdx.x;
  const int first = 1 + blockIdx.y * ROWS, last = min(first + ROWS, rows - 1);
  if (j >= columns - 1) return;
  long long at = (long long) first * columns + j;
  float above = block[at - columns], here = block[at];
  for (int i = first; i < last; ++i, at += columns) {
    const float below = block[at + columns];
    out[at] = 0.25f * (above + below + block[at - 1] + block[at + 1]);
    above = here;
    here = below;
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

    Returns
    -------
    array
        Of the same shape; what is at the edges means nothing.
    """
    if isinstance(block, np.ndarray):
        return _on_host()(block)
    import cupy

    block = cupy.ascontiguousarray(block)
    rows, columns = block.shape
    out = cupy.empty_like(block)
    grid = -(-(columns - 2) // THREADS), -(-(rows - 2) // ROWS)
    _on_gpu()(grid, (THREADS,), (block, out, np.int32(rows), np.int32(columns)))
    return out


@cache
def _on_gpu() -> Any:
    import cupy

    return cupy.RawKernel(FUSED_STEP, "fused_step", options=(f"-DROWS={ROWS}",))


@cache
def _on_host() -> Any:
    import numba

    @numba.njit
    def step(block: Array) -> Array:
        out = np.zeros_like(block)
        for i in range(1, out.shape[0] - 1):
            for j in range(1, out.shape[1] - 1):
                around = block[i - 1, j] + block[i + 1, j] + block[i, j - 1]
                out[i, j] = 0.25 * (around + block[i, j + 1])
        return out

    return step
