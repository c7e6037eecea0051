"""Pytest plugin for ``tests.support.compat``: notes outcomes, with dask_dgpu enabled if asked.

It may run only some of the tests that it collects.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import pytest

import dask_dgpu as dgpu
from dask_dgpu.optimizer import GraphOptimizer

OUTCOMES = "DGPU_COMPAT_OUTCOMES"
ENABLE = "DGPU_COMPAT_ENABLE"
ONLY = "DGPU_COMPAT_ONLY"

UNDECLARED = "test_masked.py"
"""Its products have masked blocks where Dask declares NumPy's, so their gangs are left to Dask."""

collected: list[str] = []
outcomes: dict[str, str] = {}
counts: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    if ENABLE not in os.environ:
        return
    original = GraphOptimizer.rewrite

    def counting(self: GraphOptimizer, graph: Any, keys: Any, *held: Any) -> Any:
        result = original(self, graph, keys, *held)
        counts["rewritten"] += len(result.pieces)
        return result

    GraphOptimizer.rewrite = counting  # type: ignore[method-assign]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    collected.extend(item.nodeid for item in items)
    for item in items:
        if UNDECLARED in item.nodeid:
            for each in ("ignore:dask_dgpu left a gang.*a masked array", "error:dask_dgpu left"):
                item.add_marker(pytest.mark.filterwarnings(each), append=False)
    if ONLY in os.environ:
        only = set(json.loads(Path(os.environ[ONLY]).read_text()))
        items[:] = [item for item in items if item.nodeid in only]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Enable it for each test: some of Dask's tests refresh the configuration."""
    if ENABLE in os.environ and "array_optimize" not in dask.config.config:
        on_error = "fallback" if UNDECLARED in item.nodeid else "raise"
        dgpu.enable(local_ranks=3, on_error=on_error, when="always")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.outcome == "skipped" else "xpassed"  # type: ignore[assignment]
        outcomes[report.nodeid] = outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    result = {"collected": collected, "outcomes": outcomes, "rewritten": counts["rewritten"]}
    Path(os.environ[OUTCOMES]).write_text(json.dumps(result))
