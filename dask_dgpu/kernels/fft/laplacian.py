"""The spectrum of the discrete Laplacian, for NumPy and CuPy alike.

Along one axis the Laplacian has three points: ``(u[j-1] - 2 u[j] + u[j+1]) / dx^2``. Its
eigenvectors are waves, sines or cosines, by the boundary, and its eigenvalues
``-(2 sin(t) / dx)^2``. Those of several axes add up.

References
----------
.. [1] G. Strang, "The discrete cosine transform", SIAM Review 41 (1999).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_dgpu.kernels.fft.four_step import GROUP, spans

Array = Any


@dataclass(frozen=True)
class Axis:
    """The discrete Laplacian along one axis.

    Parameters
    ----------
    n : int
        Grid points.
    dx : float
        Grid spacing.
    boundary : {"periodic", "zero", "reflect"}
        Beyond the ends: the other end, zeros, or the values at the ends again.
    """

    n: int
    dx: float
    boundary: str

    def eigenvalues(self, start: int, stop: int, dtype: Any, like: Array) -> Array:
        """Return the eigenvalues from ``start`` to ``stop``, none of them positive.

        They are in the order of the transform: FFT, type-I sines, type-II cosines. The eigenvalue
        of a constant is exactly 0.
        """
        zero = self.boundary == "zero"
        turn = 2 * (self.n + 1) if zero else self.n if self.boundary == "periodic" else 2 * self.n
        k = np.arange(start + zero, stop + zero, like=like).astype(dtype)
        pi = np.arccos(k.dtype.type(-1))
        return -((2 * np.sin(k / turn * pi) / self.dx) ** 2)


def inverted(block: Array, start: tuple[int, ...], axes: tuple[Axis, ...]) -> Array:
    """Divide a part of a spectrum by the eigenvalues of the Laplacian; a constant becomes 0.

    ``start`` is the position of the block along each axis. The result is a new array of the same
    dtype; factors have at least double precision.
    """
    result = np.empty_like(block)
    if block.size == 0:  # perhaps without the element of a constant
        return result
    dtype = np.result_type(block.real.dtype, np.float64)
    along = max(range(block.ndim), key=lambda axis: block.shape[axis])
    rows = max(1, GROUP * block.shape[along] // max(1, block.size))
    for low, high in spans(block.shape[along], rows):
        total: Array = np.zeros_like(block, shape=(1,) * block.ndim, dtype=dtype)
        for k, axis in enumerate(axes):
            first, count = (low, high - low) if k == along else (0, block.shape[k])
            begin = start[k] + first
            values = axis.eigenvalues(begin, begin + count, dtype, block)
            total = total + values.reshape((-1, *(1,) * (block.ndim - k - 1)))
        part = (slice(None),) * along + (slice(low, high),)
        begins = low == 0 and not any(start)
        if begins and all(axis.boundary != "zero" for axis in axes):
            total[(0,) * block.ndim] = -np.inf
        np.multiply(block[part], 1 / total, out=result[part])
    return result
