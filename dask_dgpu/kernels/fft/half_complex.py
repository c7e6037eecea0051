"""Spectra of real numbers, of which one half is stored, for NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def one_sided(block: Array, axis: int, start: int, n: int, dtype: str) -> Array:
    """Make a spectrum whose transform's real part is that of the half that is stored.

    A spectrum with Hermitian symmetry is the mean of such a one-sided spectrum and its
    reflection. So elements are doubled, but for those that are their own reflection: of
    these the real part is taken.

    Parameters
    ----------
    block : numpy.ndarray or cupy.ndarray
        Elements 0 to ``n // 2`` of a spectrum along the axis, or some of them.
    axis : int
        The axis.
    start : int
        Where the block begins along it.
    n : int
        Length of the transform.
    dtype : str
        Complex dtype of the result.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        A new array; its elements beyond ``n // 2`` are taken to be zeros.
    """
    result = np.multiply(block, 2, dtype=dtype)
    for own in {0, n // 2} if n % 2 == 0 else {0}:
        if start <= own < start + block.shape[axis]:
            at = (slice(None),) * axis + (own - start,)
            result[at] = block[at].real
    return result


def real_part(block: Array, out: str) -> Array:
    """Return the real part in memory of its own.

    Parameters
    ----------
    block : numpy.ndarray or cupy.ndarray
        Of a complex dtype.
    out : str
        Real dtype of the result.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        Of the shape of ``block``.
    """
    return block.real.astype(out)
