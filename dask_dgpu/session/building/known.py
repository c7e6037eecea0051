"""Functions and blocks of which Dask finds out the same each time.

Functions of users are called as ever, since they may do more than return a block. So is what
holds blocks of other types than NumPy's and CuPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from dask.utils import typename

from graph_opt.model.layout import CONTAINERS

Function = Callable[..., Any]

MOST = 4096
"""Number of functions, and of answers of each kind, that are kept."""

VALUES = {bool, int, float, complex, str, bytes, type(None)}
"""Types of arguments that are compared by their values, besides NumPy's own."""


class UnknownError(Exception):
    """The answer may not be the same again."""


def is_operator(function: Any) -> bool:
    """Whether the values of floats do not count for a function's dtype (NEP 50)."""
    return type(function) is np.ufunc or getattr(function, "__module__", "") == "_operator"


def kind_of(block: Any) -> Hashable:
    """Return type, dtype and number of axes of a block."""
    if not is_block(block) or block.dtype.metadata is not None:
        raise UnknownError
    return type(block), block.dtype, block.ndim


def is_block(value: Any) -> bool:
    """Whether a value is a block of NumPy or CuPy."""
    return typename(type(value)) in CONTAINERS
