"""Graphs that differ in one constant have their own results, whichever of them comes first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.graph_opt.dask_graph.test_texts import held
from tests.optimizer.test_structures import Kept
from tests.support.constants import PROGRAMS, WAYS, same
from tests.support.places import PLACES

X = np.random.default_rng(3).random((8, 8))


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        yield


TABLE = PROGRAMS | PLACES
QUICK = ("assignment", "before a gang")
"""Programs and the way that are no slow tests."""


def cases() -> Iterator[Any]:
    for name in TABLE:
        for way in WAYS:
            quick = (name.partition(":")[0], way) == QUICK
            yield pytest.param(name, way, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("name", "way"), [*cases()])
def test_each_constant_has_its_own_result(name: str, way: str) -> None:
    def make(x: da.Array, k: int) -> da.Array:
        return WAYS[way](TABLE[name], x, k)

    with dask.config.set(array_optimize=da.optimize):
        expected = [make(da.from_array(X, 4), k).compute(scheduler="sync") for k in (0, 1)]
    for persisted in (True, False):
        for order in ((0, 1, 0), (1, 0, 1)):
            kept = Kept()
            for k in order:
                x = held(X, 4) if persisted else da.from_array(X, 4)
                same(kept.compute(make(x, k), *([x] if persisted else ())), expected[k])
