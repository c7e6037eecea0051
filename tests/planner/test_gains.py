"""A region that gains too little, beside the gangs of its collectives alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask.array as da
import pytest

from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.optimizer import GraphOptimizer
from dask_dgpu.planner.predict import Gang

X = da.ones((4000, 4000), chunks=500)
FACTS = ClusterFacts(workers=4, device="cpu", device_memory=None)


@pytest.mark.parametrize(
    ("whole", "alone", "wanted"),
    [
        (0.4, (0.5, 0.5), [2]),
        (0.86, (0.8, 0.99), [2]),  # saves more than the first product alone
        (0.86, (0.5, 0.99), [1]),
        (0.86, (0.8, 0.8), [1, 1]),
        (0.86, (0.99, 0.99), []),
        (1.2, (0.5, 0.5), [1, 1]),
    ],
)
def test_the_gangs_that_save_most(
    monkeypatch: pytest.MonkeyPatch, whole: float, alone: tuple[float, float], wanted: list[int]
) -> None:
    """Shares of plain Dask's time are given for a region of two products, and for each alone."""
    planned, inner = GraphOptimizer.planned, X @ X

    def valued(self: GraphOptimizer, region: Any, *arguments: Any, **options: Any) -> Gang:
        gang, count = planned(self, region, *arguments, **options), len(region.pieces)
        is_inner = region.pieces[0].output.name == inner.name
        share = whole if count > 1 else alone[0 if is_inner else 1]
        valued = replace(gang.prediction, seconds=share * count, dask_seconds=float(count))
        return replace(gang, prediction=valued)

    monkeypatch.setattr(GraphOptimizer, "planned", valued)
    z = inner @ X
    found = GraphOptimizer(read(), FACTS).rewrite(z.dask, z.__dask_keys__())
    assert [len(region.pieces) for region, _ in found.regions] == wanted
