"""Pytest plugin for ``tests.compat``: writes down outcomes, with dask_dgpu enabled if asked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import dask
import pytest

OUTCOMES = "DGPU_COMPAT_OUTCOMES"
ENABLE = "DGPU_COMPAT_ENABLE"

outcomes: dict[str, str] = {}
rewritten = 0


def pytest_configure(config: pytest.Config) -> None:
    if ENABLE in os.environ:
        import dask_dgpu as dgpu
        from dask_dgpu.optimizer import GraphOptimizer

        original = GraphOptimizer.rewrite

        def counting(self: GraphOptimizer, graph: Any, keys: Any) -> Any:
            global rewritten
            result = original(self, graph, keys)
            rewritten += len(result.rewritten)
            return result

        GraphOptimizer.rewrite = counting  # type: ignore[method-assign]
        dgpu.enable(local_ranks=3, on_error="raise", when="always")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.outcome == "skipped" else "xpassed"  # type: ignore[assignment]
        outcomes[report.nodeid] = outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    result = {"outcomes": outcomes, "rewritten": rewritten}
    Path(os.environ[OUTCOMES]).write_text(json.dumps(result))
    assert ENABLE not in os.environ or "array_optimize" in dask.config.config
