"""The memory that NumPy's Fourier transforms of a block allocate is at most as planned."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest

from tests.support.clusters import explained
from tests.support.memory import assert_peak

SIDE = 512
SMALL = 1 << 18
"""Bytes of lines and of Python's own objects."""

FROM_REAL = ("rfft", "rfft2", "rfftn", "ihfft")
ALONG_ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
ALONG_SEVERAL = ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")
DTYPES = ("float32", "float64", "complex64", "complex128", "int16")
QUICK = ("float32", "complex128")
CASES = [
    pytest.param(name, dtype, marks=[] if dtype in QUICK else pytest.mark.slow)
    for name in ALONG_ONE + ALONG_SEVERAL
    for dtype in DTYPES
    if not (dtype.startswith("complex") and name in FROM_REAL)
]


def options_of(name: str) -> list[dict[str, Any]]:
    if name in ALONG_ONE:
        return [{"n": n, "norm": norm} for n in (None, 200, 1000) for norm in (None, "ortho")]
    axes = {"axes": (0, 1)}
    return [axes, {**axes, "s": (180, 220), "norm": "ortho"}, {**axes, "s": (1400, 1000)}]


def planned_bytes(z: da.Array) -> int:
    """Return the bytes that a rank is planned to need for a transform."""
    ((_, prediction),) = explained(z, workers=1, when="always").regions
    return prediction.peak_bytes


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_block_takes_no_more_than_planned(name: str, dtype: str) -> None:
    block = np.ones((SIDE, SIDE), dtype)
    x = da.from_array(block, chunks=(SIDE // 2, SIDE)).persist(scheduler="sync")
    transform = getattr(np.fft, name)
    for options in options_of(name):
        call = partial(transform, block, **options)
        result = call()
        y = x.rechunk(SIDE)
        z = y.map_blocks(transform, **options, dtype=result.dtype, chunks=result.shape)
        most = planned_bytes(z)
        assert_peak(call, most - 2 * block.nbytes + SMALL)
