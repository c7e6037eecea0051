"""Axes of which a block may have only a few elements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dask_dgpu.array.fft import long_axis


@contextmanager
def largest_of_a_block(nbytes: int) -> Iterator[None]:
    """Split an axis into several blocks if one block would have more bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_axis, "SMALL", nbytes)
        yield


@pytest.fixture(scope="module")
def long_axes() -> Iterator[None]:
    """Split each axis: no block is small enough."""
    with largest_of_a_block(0):
        yield
