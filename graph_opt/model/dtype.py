"""Dtypes by their names, and bfloat16, which NumPy knows from the package ml_dtypes alone."""

from __future__ import annotations

from typing import Any

import numpy as np

BFLOAT16 = "bfloat16"


def dtype_named(name: str) -> np.dtype[Any]:
    """Return a dtype; NumPy knows the name of bfloat16 only once its package is imported."""
    if name == BFLOAT16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def real_of(dtype: str | np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the parts of complex numbers; that of others as it is."""
    real: np.dtype[Any] = np.empty(0, dtype).real.dtype
    return real


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is bfloat16, of which NumPy says that it is of kind V."""
    return dtype.name == BFLOAT16


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of a dtype are rounded: real ones or complex ones."""
    return dtype.kind in "fc" or is_bfloat16(dtype)
