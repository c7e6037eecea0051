from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings

GPU_MARKERS = ("gpu", "multigpu")
LEFT_OUT = pytest.StashKey[int]()

settings.register_profile(
    "default", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci", settings.get_profile("default"), max_examples=50, derandomize=True, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = 0


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in GPU_MARKERS):
            item.config.stash[LEFT_OUT] += 1


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    count = config.stash[LEFT_OUT]
    terminalreporter.write_line(
        f"{count} tests deselected that need a GPU: run them with -m 'gpu or multigpu'"
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=2000, help="rounds of tests/cluster/test_rounds")
