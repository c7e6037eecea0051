"""More sweeps than an axis of one chunk is long, by plain Dask."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from scipy.ndimage import correlate

import dask_dgpu as dgpu

MODES = {"zero": "constant", "reflect": "reflect", "nearest": "nearest", "periodic": "wrap"}


@pytest.mark.parametrize("boundary", MODES)
@pytest.mark.parametrize("chunks", [8, (8, 3), (3, 5)])
@pytest.mark.parametrize("sweeps", [1, 9, 20])
def test_many_sweeps(boundary: str, chunks: int | tuple[int, int], sweeps: int) -> None:
    x = np.random.default_rng(0).random((8, 5))
    wanted = x
    for _ in range(sweeps):
        wanted = correlate(wanted, dgpu.LAPLACIAN_9PT / 8, mode=MODES[boundary], cval=0)
    lazy = da.from_array(x, chunks=chunks)
    found = dgpu.stencil(lazy, dgpu.LAPLACIAN_9PT / 8, boundary=boundary, iterations=sweeps)
    np.testing.assert_allclose(found.compute(scheduler="sync"), wanted, rtol=1e-9, atol=1e-9)
