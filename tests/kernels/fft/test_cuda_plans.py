"""That CuPy's plans are ready when they are made, with classes that only take notes."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

MODULE = "dask_dgpu.kernels.fft.cuda"


class Plan1d:
    """Notes what it was made of."""

    def __init__(self, done: list[Any], n: int, *, batch: int = 1) -> None:
        done.append((n, batch))


class PlanNd(Plan1d):
    pass


@pytest.fixture
def done() -> list[Any]:
    return []


@pytest.fixture
def cufft(monkeypatch: pytest.MonkeyPatch, done: list[Any]) -> Any:
    cupy: Any = ModuleType("cupy")
    cupy.cuda = cuda = ModuleType("cupy.cuda")
    null = SimpleNamespace(synchronize=lambda: done.append("waited"))
    cuda.Stream = SimpleNamespace(null=null)  # type: ignore[attr-defined]
    cuda.cufft = cufft = SimpleNamespace(  # type: ignore[attr-defined]
        Plan1d=Plan1d, PlanNd=PlanNd, CUFFT_C2C=0, CUFFT_Z2Z=1
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    module = importlib.import_module(MODULE)
    module.wait_for_plans()
    module.wait_for_plans()  # the second time changes nothing
    sys.modules.pop(MODULE)
    return cufft


@pytest.mark.parametrize("kind", [Plan1d, PlanNd])
def test_made_then_waited_for(cufft: Any, done: list[Any], kind: type) -> None:
    plan = getattr(cufft, kind.__name__)(done, 36, batch=3)
    assert type(plan) is kind
    assert done == [(36, 3), "waited"]


def test_plans_of_both_classes_count(cufft: Any, done: list[Any]) -> None:
    before = Plan1d(done, 5)  # as of a user who has made it earlier
    assert isinstance(before, cufft.Plan1d)
    assert not isinstance(before, cufft.PlanNd)
    assert isinstance(cufft.Plan1d(done, 7), cufft.Plan1d)
    assert not isinstance(7, cufft.Plan1d)
