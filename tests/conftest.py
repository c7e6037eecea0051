"""What runs where, and what a run left out."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import dask
import dask_array  # noqa: F401 - it changes a default of Dask, now instead of in between
import pytest

from tests.hosts.network import impossible
from tests.support.browser import CHROMIUM
from tests.support.gpus import take_own
from tests.support.profiles import register_profiles

HINTS = {
    "tests deselected that need a GPU": "run them with -m 'gpu or multigpu'",
    "tests deselected that need a browser": "install chromium, as with apt-get install chromium",
    "tests deselected that need Bokeh": "run make test-dashboard",
    "tests deselected that need several hosts": "run them as root on Linux with ip and tc",
    "slow tests deselected": "run them with make test-all",
    "other tests deselected": "run them with make test",
}
LEFT_OUT = pytest.StashKey[Counter[str]]()
WORKER_OUTPUT = "left out"
BOKEH = find_spec("bokeh") is not None
CLUSTERS = ("tests/calls/", "tests/cluster/", "tests/hosts/")
SHARED = ("cluster", "hosts") if find_spec("pytest_rerunfailures") else ()
"""Marks of tests that share processors with processes of their own, and so have time limits.

If one fails it runs once more, and the closing lines name it.
"""

register_profiles()
# Dask gives a spawned worker one BLAS thread. A forked one has the threads of its server, and
# those of several processes wait for each other by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")
dask.config.set({"array.rechunk.threshold": 4})  # Dask's default
# it takes two seconds of every cluster, and plans would depend on the machine
dask.config.set({"dgpu.cost.measure": False})
if sys.version_info < (3, 11, 12):  # workers could freeze, as docs/guide/troubleshooting.md says
    dask.config.set({"distributed.worker.profile.enabled": False})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=500, help="rounds of tests/cluster/test_rounds")
    parser.addoption("--trees", type=int, default=300, help="number of random trees of tests/fuzz")
    parser.addoption("--pairs", type=int, default=100, help="number of pairs of tests/fuzz")
    parser.addoption("--seed", type=int, default=0, help="seed of the first tree or pair")
    parser.addoption("--gpus", type=int, help="GPUs of its own for each process of pytest-xdist")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()
    if gpus := config.getoption("gpus"):
        take_own(gpus)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have pytest-xdist deal out whole files, and each of ``CLUSTERS`` in one process.

    Processes with GPUs of their own may share a folder.
    """
    if config.getoption("gpus"):
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((folder for folder in CLUSTERS if file.startswith(folder)), file)

    return Scheduling(config, log)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The launches of the programs that gangs of this process have run."""
    return _recorded(monkeypatch, lambda launch: launch)


@pytest.fixture
def gangs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the programs that gangs of this process have run."""
    return _recorded(monkeypatch, lambda launch: launch.title)


def _recorded(monkeypatch: pytest.MonkeyPatch, value: Callable[[Any], Any]) -> list[Any]:
    from dask_dgpu.runtime import tasks

    ran: list[Any] = []
    original = tasks.run_here

    def run_here(launch: Any, staged: Any) -> Any:
        ran.append(value(launch))
        return original(launch, staged)

    monkeypatch.setattr(tasks, "run_here", run_here)
    return ran


def _reason(item: pytest.Item) -> str:
    if item.get_closest_marker("gpu") or item.get_closest_marker("multigpu"):
        return "tests deselected that need a GPU"
    lacking = _lacking(item)
    if lacking is not None:
        return lacking
    slow = item.get_closest_marker("slow")
    return "slow tests deselected" if slow else "other tests deselected"


def _lacking(item: pytest.Item) -> str | None:
    """Return the reason to deselect a test that needs what this machine lacks."""
    if item.get_closest_marker("browser") and CHROMIUM is None:
        return "tests deselected that need a browser"
    if item.get_closest_marker("dashboard") and not BOKEH:
        return "tests deselected that need Bokeh"
    if item.get_closest_marker("hosts") and impossible():
        return "tests deselected that need several hosts"
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that need what is not there, and mark those that may run again."""
    without = [item for item in items if _lacking(item) is not None]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]
    for item in items:
        if any(map(item.get_closest_marker, SHARED)):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        item.config.stash[LEFT_OUT][_reason(item)] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist
        session.config.workeroutput[WORKER_OUTPUT] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process of pytest-xdist left out; each of them leaves out the same."""
    node.config.stash[LEFT_OUT] |= Counter(getattr(node, "workeroutput", {}).get(WORKER_OUTPUT))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    counts = config.stash[LEFT_OUT]
    for reason, hint in HINTS.items():
        if counts[reason] or "GPU" in reason:
            terminalreporter.write_line(f"{counts[reason]} {reason}: {hint}")
