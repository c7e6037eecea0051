"""Dtypes by name, bfloat16 of ml_dtypes included."""

from __future__ import annotations

from typing import Any

import numpy as np

BFLOAT16 = "bfloat16"


def dtype_named(name: str) -> np.dtype[Any]:
    """Return a dtype; NumPy knows bfloat16 only after the import of ml_dtypes."""
    if name == BFLOAT16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def real_of(dtype: str | np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of real and imaginary parts; a real dtype is returned as it is."""
    real: np.dtype[Any] = np.empty(0, dtype).real.dtype
    return real


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is bfloat16; its NumPy kind is V."""
    return dtype.name == BFLOAT16


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is of real or complex floating-point numbers."""
    return dtype.kind in "fc" or is_bfloat16(dtype)
