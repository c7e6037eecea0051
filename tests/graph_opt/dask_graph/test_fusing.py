"""Layers that cannot become one are not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.core import flatten

from graph_opt.dask_graph.fusing import fuse_expressions
from graph_opt.dask_graph.parse import parse
from graph_opt.dask_graph.reader import may_fuse
from tests.runtime import test_fused as fused
from tests.runtime import test_fused_slices as slices

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
TOGETHER: dict[str, Callable[[], da.Array]] = {
    **{name: lambda f=f: f(*fused.arrays()) for name, f in fused.ELEMENTWISE.items()},
    **{name: lambda f=f: f(*fused.arrays()) for name, f in fused.REDUCTIONS.items()},
    **{name: lambda f=f: f(*fused.arrays((3, 2))) for name, f in fused.TREES.items()},
}


def combined(x: da.Array) -> tuple[bool, bool]:
    """Return whether layers may become one, and whether some do."""
    arrays = parse(x.dask, x.__dask_keys__(), fused=True)
    found = fuse_expressions(x.dask, arrays, (), set(flatten(x.__dask_keys__())), lambda work: work)
    return may_fuse(x.dask, arrays), found.layers != x.dask.layers


@pytest.mark.parametrize("form", SEPARATE)
def test_nothing_is_read_where_nothing_fuses(form: str) -> None:
    assert combined(SEPARATE[form]()) == (False, False)


@pytest.mark.parametrize("form", TOGETHER)
def test_all_that_fuses_is_read(form: str) -> None:
    may, does = combined(TOGETHER[form]())
    assert may or not does


@pytest.mark.parametrize("form", slices.PROGRAMS)
def test_slices_that_fuse_are_read(form: str) -> None:
    may, does = combined(slices.PROGRAMS[form](*slices.arrays((4, 4))))
    assert may or not does


@pytest.mark.parametrize(
    ("array", "fuses"), [(X.sum(axis=1), True), (X - X[0], True), (X.T, False), (X[1:], False)]
)
def test_one_function_on_a_gpu_is_one_kernel(array: da.Array, fuses: bool) -> None:
    x: Any = array
    for layer in x.dask.layers.values():
        layer.collection_annotations["chunk_type"] = "cupy.ndarray"
    assert combined(x) == (True, fuses)
