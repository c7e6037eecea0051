"""That CuPy's plans are ready when they are made, with classes that only take notes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
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
def module(monkeypatch: pytest.MonkeyPatch, done: list[Any]) -> Iterator[Any]:
    cupy: Any = ModuleType("cupy")
    cupy.cuda = cuda = ModuleType("cupy.cuda")
    null = SimpleNamespace(synchronize=lambda: done.append("waited"))
    cuda.Stream = SimpleNamespace(null=null)  # type: ignore[attr-defined]
    cuda.cufft = SimpleNamespace(  # type: ignore[attr-defined]
        Plan1d=Plan1d, PlanNd=PlanNd, CUFFT_C2C=0, CUFFT_Z2Z=1
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE)


@pytest.mark.parametrize("kind", [Plan1d, PlanNd])
def test_made_then_waited_for(module: Any, done: list[Any], kind: type) -> None:
    with module.ready_plans:
        plan = getattr(module.cufft, kind.__name__)(done, 36, batch=3)
    assert type(plan) is kind
    assert done == [(36, 3), "waited"]


def test_plans_of_both_classes_count(module: Any, done: list[Any]) -> None:
    cufft = module.cufft
    before = Plan1d(done, 5)  # as of a user who has made it earlier
    with module.ready_plans:
        assert isinstance(before, cufft.Plan1d)
        assert not isinstance(before, cufft.PlanNd)
        assert isinstance(cufft.Plan1d(done, 7), cufft.Plan1d)
        assert not isinstance(7, cufft.Plan1d)


def test_nothing_stays_after_the_last_thread(module: Any) -> None:
    cufft = module.cufft
    with module.ready_plans:
        with module.ready_plans:
            pass
        assert cufft.Plan1d is not Plan1d
    assert (cufft.Plan1d, cufft.PlanNd) == (Plan1d, PlanNd)
    with pytest.raises(ValueError, match="of a user"), module.ready_plans:
        raise ValueError("of a user")
    assert (cufft.Plan1d, cufft.PlanNd) == (Plan1d, PlanNd)
