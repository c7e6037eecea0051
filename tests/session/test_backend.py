"""The backend ``dgpu`` on GPUs creates equal graphs in equal calls."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu

pytestmark = pytest.mark.gpu

CALLS = {
    "zeros": lambda: da.zeros((6, 4), chunks=2, dtype="float32"),
    "ones": lambda: da.ones(5, chunks=3),
    "full": lambda: da.full((2, 3), 7, chunks=2, dtype="int32"),
    "arange": lambda: da.arange(3, 11, chunks=4),
}


@pytest.mark.parametrize("name", CALLS)
def test_equal_calls_have_equal_graphs_and_cupy_blocks(name: str) -> None:
    import cupy

    create: Any = CALLS[name]
    with dgpu.enable(), dask.config.set({"array.backend": "dgpu"}):
        texts = set()
        for number in (1.5, 2.5, 3.5):
            cupy.full(64, number)  # what memory that is not initialized may hold
            x = create()
            texts.add(pickle.dumps(x.__dask_graph__()))
        value = x.compute()
    assert len(texts) == 1
    assert isinstance(value, cupy.ndarray)
    np.testing.assert_array_equal(value.get(), create().compute())
