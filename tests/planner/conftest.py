"""What gangs of this process allocate and in which order, and what is estimated for them."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dask_dgpu import optimizer
from dask_dgpu.planner import decisions
from dask_dgpu.runtime import tasks
from graph_opt.dask_graph import blockwork, reader
from graph_opt.dask_graph.emit import TaskFunctions

ESTIMATES = (
    (reader, "blockwork"),
    (blockwork, "form_of"),
    (decisions, "predict"),
)
"""What estimates tasks, regions, and their time in plain Dask."""


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most bytes of each gang on all ranks, with its inputs, while memory is traced."""
    found: list[int] = []
    original = tasks.run_here

    def run_here(launch: Any, staged: Sequence[list[Any]]) -> Any:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        result = original(launch, staged)
        inputs = sum(value.nbytes(at) for value in launch.program.inputs for at in value.indices())
        found.append(tracemalloc.get_traced_memory()[1] - before + inputs)
        return result

    monkeypatch.setattr(tasks, "run_here", run_here)
    return found


@pytest.fixture
def estimates(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of calls of each function that estimates."""
    found: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    for module, name in ESTIMATES:
        count(module, name)
    return found


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks of gangs as they run: ``stage`` for a block of an input, ``gang`` at its end."""
    events: list[str] = []
    gang, stage = tasks.gang, tasks.stage

    def staged(*args: Any) -> Any:
        events.append("stage")
        return stage(*args)

    def ran(*args: Any) -> Any:
        result = gang(*args)
        events.append("gang")
        return result

    functions = TaskFunctions(staged, ran, tasks.out)
    monkeypatch.setattr(optimizer, "RUNTIME", replace(optimizer.RUNTIME, tasks=functions))
    return events
