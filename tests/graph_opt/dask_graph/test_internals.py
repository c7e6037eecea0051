"""Dask's internals have one door, and a renamed one breaks no import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graph_opt.dask_graph import internals

ROOT = Path(__file__).parents[3]
DOOR = ROOT / "graph_opt/dask_graph/internals.py"
SOURCES = sorted(
    path
    for package in ("dask_dgpu", "graph_opt")
    for path in (ROOT / package).rglob("*.py")
    if path != DOOR
)
PACKAGES = ("dask", "tlz", "toolz", "cytoolz")
PUBLIC = {
    "dask",
    "dask.array",
    "dask.array.backends.ArrayBackendEntrypoint",
    "dask.array.backends.NumpyBackendEntrypoint",
    "dask.array.backends.array_creation_dispatch",
    "dask.array.core.Array",
    "dask.array.core.map_blocks",
    "dask.array.core.normalize_chunks",
    "dask.array.cupy_entry_point.CupyBackendEntrypoint",
    "dask.array.fft.fftfreq",
    "dask.array.fft.fftshift",
    "dask.array.fft.ifftshift",
    "dask.array.fft.rfftfreq",
    "dask.array.optimization",
    "dask.array.optimization.optimize",
    "dask.array.overlap.overlap",
    "dask.base.get_annotations",
    "dask.base.is_dask_collection",
    "dask.base.normalize_token",
    "dask.base.persist",
    "dask.blockwise.Blockwise",
    "dask.callbacks.Callback",
    "dask.core.flatten",
    "dask.core.reverse_dict",
    "dask.highlevelgraph.HighLevelGraph",
    "dask.highlevelgraph.Layer",
    "dask.highlevelgraph.MaterializedLayer",
    "dask.order.order",
    "dask.system.CPU_COUNT",
    "dask.threaded.get",
    "dask.tokenize.tokenize",
    "dask.typing.no_default",
    "dask.utils.disable_gc",
    "dask.utils.format_bytes",
    "dask.utils.format_time",
    "dask.utils.funcname",
    "dask.utils.key_split",
    "dask.utils.parse_bytes",
    "dask.utils.parse_timedelta",
    "dask.utils.typename",
}


def imported(source: Path) -> Iterator[str]:
    """Yield the full names that a file imports from Dask, and private ones reached by dots."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node).replace("da.", "dask.array.", 1)
            names = [dotted] if "._" in dotted.replace(".__", "") else []
        else:
            names = []
        yield from (name for name in names if name.partition(".")[0] in PACKAGES)


def test_only_the_door_imports_internals() -> None:
    found = {source: set(imported(source)) - PUBLIC for source in SOURCES}
    assert not {source: names for source, names in found.items() if names}


def test_internals_are_found_in_the_installed_dask() -> None:
    assert internals.MISSING == []
    for names in internals.NAMES.values():
        assert all(hasattr(internals, name) for name in names.split())


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60
    )


RENAMED = """
import dask._task_spec, dask.array.routines, distributed
del dask._task_spec.Alias, dask.array.routines._matmul
import dask_dgpu
"""
ALL_RENAMED = f"""
from importlib import import_module
import dask.array, distributed
names = {internals.NAMES}
for module in names:
    for name in names[module].split():
        delattr(import_module(module), name)
import dask_dgpu
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [RENAMED, ALL_RENAMED], ids=["two", "all"])
def test_import_works_without_internals(script: str) -> None:
    result = run(script)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_enable_names_the_missing_internals_in_one_sentence() -> None:
    result = run(RENAMED + "dask_dgpu.enable()")
    assert result.returncode != 0
    last_line = result.stderr.strip().splitlines()[-1]
    assert last_line.startswith(
        "dask_dgpu.errors.DgpuError: expected a dask with dask._task_spec.Alias "
        "and dask.array.routines._matmul, got dask 20"
    )


def test_call_of_a_placeholder_names_the_internal() -> None:
    placeholder = internals._placeholder("dask._task_spec.Task")
    assert not isinstance(1, placeholder)
    with pytest.raises(ImportError, match=r"expected a dask with dask\._task_spec\.Task"):
        placeholder("key", 1)
