"""Long chains of layers that share values: the optimizer's work and the tasks grow with them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.base
import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu

STEPS = 24


def mandelbrot(xp: Any, re: Any, im: Any, steps: int) -> Any:
    """Return how many of some steps a point takes to leave the circle."""
    zr, zi, count = re * 0, im * 0, re * 0
    for _ in range(steps):
        r2, i2 = zr * zr, zi * zi
        inside = xp.less(r2 + i2, 4.0)
        count = count + inside
        zi = xp.where(inside, 2 * zr * zi + im, zi)
        zr = xp.where(inside, r2 - i2 + re, zr)
    return count


def points() -> tuple[Any, Any]:
    rng = np.random.default_rng(6)
    re, im = rng.normal(size=(2, 48, 32)).astype("f4")
    return re, im


def calls(function: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of a function, and how many functions of Python it calls."""
    count, before = 0, sys.getprofile()

    def note(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        found = function()
    finally:
        sys.setprofile(before)
    return found, count


def assert_linear(sizes: list[int]) -> None:
    """Fail unless each of some steps adds about as much as any other."""
    added = np.diff(sizes)
    assert 0 < added.max() < 2 * added.min()


def test_a_step_adds_as_much_to_any_chain() -> None:
    re, im = (da.from_array(each, chunks=(24, 32)) for each in points())
    counts, sizes = [], []
    with dgpu.enable(on_error="raise"):
        for steps in range(3, STEPS + 1, 3):
            chain = mandelbrot(da, re, im, steps)
            (found,), count = calls(lambda chain=chain: dask.base.optimize(chain))
            graph = dict(found.dask)
            counts.append(count)
            sizes.append(len(pickle.dumps(graph)))
            assert len(graph) <= 3 * 2  # blocks, perhaps named twice, and results
    assert_linear(counts)
    assert_linear(sizes)


@pytest.mark.parametrize("steps", [12, STEPS, 60])
def test_chains_equal_numpy(steps: int) -> None:
    re, im = points()
    with dgpu.enable(on_error="raise"):
        x, y = (da.from_array(each, chunks=(24, 32)) for each in (re, im))
        found = mandelbrot(da, x, y, steps).compute(scheduler="sync")
    np.testing.assert_array_equal(found, mandelbrot(np, re, im, steps))


@pytest.mark.cluster
def test_chains_equal_numpy_on_a_cluster() -> None:
    re, im = points()
    cluster = Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0")
    with cluster as client, dgpu.enable(client, on_error="raise"):
        x, y = (da.from_array(each, chunks=(24, 32)).persist() for each in (re, im))
        for steps in (12, STEPS, STEPS):
            found = mandelbrot(da, x, y, steps).compute()
            np.testing.assert_array_equal(found, mandelbrot(np, re, im, steps))
