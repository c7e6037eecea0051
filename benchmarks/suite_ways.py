"""Run the programs of the suite without Dask, each way in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import Report

SCRIPT = Path(__file__).parent / "peers" / "suite_alone.py"
WAYS = {"cpu": ("numpy", "jax"), "cuda": ("cupy", "jax")}
"""The ways without Dask that a device has."""

Lines = dict[str, dict[str, Any]]


def installed(ways: Iterable[str]) -> list[str]:
    """Return the ways whose packages are installed; this imports none."""
    return [way for way in ways if find_spec(way)]


def run_alone(ways: Iterable[str], arguments: list[str], report: Report) -> dict[str, Lines]:
    """Run the ways one after another; return for each the lines of its programs by their names.

    A way that is not installed has a line that says so, and a program that failed one with the
    error.
    """
    found: dict[str, Lines] = {}
    for way in ways:
        if installed([way]):
            with report.guard(f"all programs, {way}"):
                found[way] = _run(way, arguments, report.out)
        else:
            report.add(f"all programs, {way}", not_installed=way)
            print(f"{way}: not installed")
    return found


def _run(way: str, arguments: list[str], out: Path) -> Lines:
    """Run one way, and append its lines to a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        command = [sys.executable, str(SCRIPT), way, *arguments, "--out", str(path)]
        try:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        finally:  # what was measured before an error or an interrupt counts
            text = path.read_text() if path.exists() else ""
            with out.open("a") as lines:
                lines.write(text)
    every = [json.loads(line) for line in text.splitlines()]
    return {line["what"].removesuffix(f", {way}"): line for line in every if line["seconds"]}
