"""Poisson's equation with constants beyond the array, solved by elimination."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.linalg import spsolve

Array = Any


def direct(rhs: Array, dx: float, edge: float) -> Array:
    """Solve with constants beyond the array by elimination."""
    total = sparse.csr_matrix((rhs.size, rhs.size))
    for axis, length in enumerate(rhs.shape):
        line = sparse.diags([1.0, -2.0, 1.0], [-1, 0, 1], shape=(length, length)) / dx**2
        eyes = [sparse.eye(prod(rhs.shape[:axis])), sparse.eye(prod(rhs.shape[axis + 1 :]))]
        total = total + sparse.kron(sparse.kron(eyes[0], line), eyes[1])
    known = rhs - edge * _beyond(rhs.shape) / dx**2
    return spsolve(total.tocsc(), known.ravel()).reshape(rhs.shape)


def _beyond(shape: tuple[int, ...]) -> Array:
    """How many neighbours of each position are beyond the array."""
    padded = np.pad(np.zeros(shape), 1, constant_values=1.0)
    inside = (slice(1, -1),) * len(shape)
    return sum(np.roll(padded, by, axis)[inside] for axis in range(len(shape)) for by in (1, -1))
