"""Run the programs of the suite without Dask, each way in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
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
    """Run one way, which appends its lines to a file; return those of its programs."""
    known = out.stat().st_size if out.exists() else 0
    command = [sys.executable, str(SCRIPT), way, *arguments, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with out.open("rb") as lines:
        lines.seek(known)
        every = [json.loads(line) for line in lines]
    return {line["what"].removesuffix(f", {way}"): line for line in every if line["seconds"]}
