"""Which layers become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.core import flatten

from graph_opt.dask_graph.fusing import fuse_expressions
from graph_opt.dask_graph.parse import parse

RNG = np.random.default_rng(31)
X, Y = (da.from_array(RNG.random((12, 12)), chunks=4) for _ in range(2))
SEPARATE: dict[str, Callable[[], da.Array]] = {
    "one call": lambda: X + Y,
    "sum": lambda: X.sum(),
    "sums of rows": lambda: X.sum(axis=1),
    "spread": lambda: X.std(axis=0),
    "places": lambda: X.argmax(axis=0),
    "joined": lambda: da.concatenate([X, Y + 1]),
    "transpose": lambda: X.T,
    "slices": lambda: X[2:7, ::-1],
    "user": lambda: X.map_blocks(np.sort),
}


def is_fused(x: da.Array) -> bool:
    """Whether some layers become one."""
    arrays = parse(x.dask, x.__dask_keys__(), fused=True)
    found = fuse_expressions(x.dask, arrays, (), set(flatten(x.__dask_keys__())), lambda work: work)
    return bool(found.layers != x.dask.layers)


@pytest.mark.parametrize("form", SEPARATE)
def test_nothing_fuses_alone(form: str) -> None:
    assert not is_fused(SEPARATE[form]())


@pytest.mark.parametrize(
    ("array", "fuses"), [(X.sum(axis=1), True), (X - X[0], True), (X.T, False), (X[1:], False)]
)
def test_one_function_on_a_gpu_is_one_kernel(array: da.Array, fuses: bool) -> None:
    x: Any = array
    for layer in x.dask.layers.values():
        layer.collection_annotations["chunk_type"] = "cupy.ndarray"
    assert is_fused(x) is fuses
