"""A scheduler gets graphs pickled; it finds the same kernels and gangs in them as the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import dask.array as da
import pytest

import dask_dgpu as dgpu
from benchmarks import programs

X = da.ones((12, 8), chunks=(4, 8))
NAMES = (
    *("sum", "prod", "mean", "var", "std", "min", "max", "any", "all", "argmin", "argmax"),
    *("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmin", "nanmax"),
    *("nanargmin", "nanargmax"),
)
REDUCTIONS: dict[str, Callable[[da.Array], Any]] = {
    f"{name} over axis {axis}": lambda x, name=name, axis=axis: getattr(da, name)(x * 2, axis=axis)
    for name in NAMES
    for axis in ((0, 1) if "arg" in name else (1,))
}
PROGRAMS: dict[str, Callable[[da.Array], Any]] = {
    "argmax_accuracy": lambda x: programs.argmax_accuracy(da, x),
    "covariance": lambda x: programs.covariance(da, x),
    "softmax": lambda x: programs.softmax(da, x),
    "standardise": lambda x: programs.standardise(da, x),
    "fft2": dgpu.fft.fft2,
    "map_overlap": lambda x: da.map_overlap(abs, x, depth=1, boundary="nearest", dtype=float),
    "cumsum": lambda x: x.cumsum(axis=0),
}


def pickled(array: da.Array) -> da.Array:
    """Return the array with the graph that a scheduler gets."""
    graph = cloudpickle.loads(cloudpickle.dumps(array.__dask_graph__()))
    return da.Array(graph, array.name, array.chunks, meta=array._meta)


@pytest.mark.parametrize("name", [*REDUCTIONS, *PROGRAMS])
def test_pickled_graphs_are_rewritten_alike(name: str) -> None:
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        array = (REDUCTIONS | PROGRAMS)[name](X)
        known, found = dgpu.explain(array).to_dict(), dgpu.explain(pickled(array)).to_dict()
    assert found["operations"] == known["operations"]
