"""How many tests use what users use: the public API alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import dask_dgpu as dgpu

ROOT = Path(__file__).parents[2]
SHARE = 0.62
"""Of all test functions, so many are in public files. It may only rise."""
SHARE_OF_LINES = 0.6
"""The same of lines."""
PROTOCOLS = (
    "dask_dgpu.comm.protocol",
    "dask_dgpu.kernels.device.Device",
    "dask_dgpu.operations.OPERATIONS",
    "dask_dgpu.operations.operation",
    "dask_dgpu.runtime.program",
    "graph_opt.model.cost",
    "graph_opt.model.expression",
    "graph_opt.model.layout",
    "graph_opt.model.piece",
    "graph_opt.model.reader",
    "graph_opt.model.window",
)
"""Documented protocols: transports, operations (docs/contributing.md), and what these consist of;
and the forms of a graph that they meet.
"""
PUBLIC = {*dgpu.__all__, "max", "min", "sum", "__version__"}
HELPERS: dict[str, set[str]] = {
    "tests/array/fft/conftest.py": {"dask_dgpu.array.fft.long_axis"},
    "tests/batches/conftest.py": {
        "dask_dgpu.batches.held",
        "dask_dgpu.batches.whole",
    },
    "tests/cluster/conftest.py": {"graph_opt.dask_graph.sent.SentGraph"},
    "tests/cluster/faults.py": {
        "dask_dgpu.algorithms.probe",
        "dask_dgpu.batches.whole",
        "dask_dgpu.comm.bootstrap",
        "dask_dgpu.environment.facts",
        "dask_dgpu.kernels.gemm",
        "dask_dgpu.runtime.scheduler.run.Run",
        "dask_dgpu.runtime.worker.plugin",
        "dask_dgpu.session.enable",
        "graph_opt.model.names.is_gang",
    },
    "tests/cluster/observe.py": {
        "dask_dgpu.kernels.stencil.host",
        "dask_dgpu.kernels.sums.host",
        "dask_dgpu.runtime.plans",
    },
    "tests/comm/cases.py": {
        "dask_dgpu.comm.common.exchange",
        "dask_dgpu.comm.point_to_point.PointToPointComm",
    },
    "tests/comm/processes.py": {"dask_dgpu.comm.sockets"},
    "tests/comm/transports.py": {
        "dask_dgpu.comm.bootstrap.connect",
        "dask_dgpu.comm.local.run_local",
        "dask_dgpu.comm.timed.TimedComm",
    },
    "tests/support/clusters.py": {
        "dask_dgpu.environment.facts.ClusterFacts",
        "dask_dgpu.environment.settings.read",
        "dask_dgpu.observe.explain.Explanation",
        "dask_dgpu.observe.explain.present_on",
        "dask_dgpu.optimizer.GraphOptimizer",
        "dask_dgpu.planner.present.Present",
    },
    "tests/support/lanes.py": {
        "dask_dgpu.kernels.device.HostDevice",
        "dask_dgpu.kernels.gemm",
        "dask_dgpu.kernels.pack",
        "dask_dgpu.kernels.pack.InMessage",
        "dask_dgpu.kernels.pack.Pieces",
        "dask_dgpu.runtime.execute.Rank",
        "dask_dgpu.runtime.tasks",
    },
    "tests/support/programs.py": {
        "dask_dgpu.comm.local.run_local",
        "dask_dgpu.kernels.device.HostDevice",
        "dask_dgpu.runtime.execute.execute",
        "dask_dgpu.runtime.plans.Owners",
        "dask_dgpu.runtime.plans.Plans",
        "dask_dgpu.runtime.plans.costs_of",
        "dask_dgpu.runtime.plans.plans",
        "dask_dgpu.runtime.prepared.Prepared",
        "dask_dgpu.runtime.prepared.RankStep",
        "dask_dgpu.runtime.prepared.prepared",
        "dask_dgpu.runtime.ship.HEADER",
        "graph_opt.model.names.is_gang",
    },
    "tests/support/recording.py": {"dask_dgpu.comm.common.even_counts"},
    "tests/support/forked.py": {
        "dask_dgpu.runtime.worker.plugin",
        "dask_dgpu.kernels.conv.host",
    },
}
"""What helpers of public tests may import: to count tasks, plans and opened graphs, to make workers
slow or fail, to find unordered work on two lanes of a device, to explain graphs for clusters that
are not there, to connect ranks and to run programs on them, and for workers that fork.
"""


def is_internal(name: str) -> bool:
    package, _, rest = name.partition(".")
    if name.startswith(PROTOCOLS):
        return False
    return package == "graph_opt" or (
        package == "dask_dgpu" and rest.split(".")[0] not in {*PUBLIC, ""}
    )


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imported(path: Path) -> set[str]:
    """Return what a file imports anywhere, and the dotted names in its texts."""
    names = set()
    for node in nodes(path):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module)):
                names |= {f"{module}.{alias.name}" for alias in node.names}
            case ast.Constant(value=str(text)) if re.fullmatch(r"\w+(\.\w+)+", text):
                names.add(text)
    return names


def file_of(name: str) -> Path | None:
    """Return the file of a module of ``tests``, or of the module that has this name."""
    path = ROOT / name.replace(".", "/")
    places = path.with_suffix(".py"), path.parent.with_suffix(".py")
    return next((place for place in places if place.exists()), None)


@cache
def internals(path: Path) -> frozenset[str]:
    """Return the internal names that a file imports, itself or through other tests."""
    found, seen, todo = set(), set(), [path]
    while todo:
        file = todo.pop()
        seen.add(file)
        names = imported(file)
        allowed = HELPERS.get(str(file.relative_to(ROOT)), set())
        found |= {name for name in names if is_internal(name)} - allowed
        tests = (file_of(name) for name in names if name.startswith("tests."))
        todo += [each for each in tests if each is not None and each not in seen]
    return frozenset(found)


def count(path: Path) -> int:
    kinds = ast.FunctionDef, ast.AsyncFunctionDef
    return sum(isinstance(node, kinds) and node.name.startswith("test") for node in nodes(path))


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize(("counted", "least"), [(count, SHARE), (lines, SHARE_OF_LINES)])
def test_share_of_public_tests(counted: Callable[[Path], int], least: float) -> None:
    files = {path: counted(path) for path in (ROOT / "tests").rglob("test_*.py")}
    public = sum(number for path, number in files.items() if not internals(path))
    assert public / sum(files.values()) >= least


def test_helpers_import_what_they_may() -> None:
    for path, allowed in HELPERS.items():
        assert {name for name in imported(ROOT / path) if is_internal(name)} == allowed
