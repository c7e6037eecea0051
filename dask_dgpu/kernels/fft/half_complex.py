"""Spectra of real numbers, stored as one half, for NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def one_sided(block: Array, axis: int, start: int, n: int, dtype: str) -> Array:
    """Return a spectrum whose transform has the real part of the stored half's.

    A spectrum with Hermitian symmetry is the mean of such a one-sided spectrum and its reflection.
    So elements are doubled, except for those that are their own reflection: these become real.

    ``block`` has elements of the spectrum from ``start`` on along the axis, ``n`` is the length of
    the transform, and ``dtype`` the complex dtype of the result. Elements beyond ``n // 2`` count
    as zeros.
    """
    result = np.multiply(block, 2, dtype=dtype)
    for own in {0, n // 2} if n % 2 == 0 else {0}:
        if start <= own < start + block.shape[axis]:
            at = (slice(None),) * axis + (own - start,)
            result[at] = block[at].real
    return result


def real_part(block: Array, out: str) -> Array:
    """Return a copy of the real part in the real dtype ``out``."""
    return block.real.astype(out)
