"""What make test leaves out, make test-all runs; and every run says what it left out."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest
from hypothesis import given, strategies as st
from tests.support.profiles import examples

counts = {"plain": 0, "many": 0}

def test_plain(): ...

@pytest.mark.slow
def test_slow(): ...

@pytest.mark.gpu
@pytest.mark.slow
def test_gpu(): ...

@given(st.integers())
def test_any(n): counts["plain"] += 1

@examples(200)
@given(st.integers())
def test_many(n): counts["many"] += 1

def test_counts():
    assert counts == {"plain": 10, "many": 20}
"""
CLUSTER = """
import os
def test_process(): print("clusters in", os.getpid())
"""
QUICK = ["7 passed", "1 tests deselected that need a GPU: run", "1 slow tests deselected: run"]
ALL = ["3 passed", "1 tests deselected that need a GPU: run", "5 other tests deselected: run"]


def marks(variable: str) -> str:
    makefile = (ROOT / "Makefile").read_text()
    (found,) = re.findall(rf'^{variable} = .* -m "(.*)"$', makefile, re.MULTILINE)
    (no_gpu,) = re.findall(r"^NO_GPU := (.*)$", makefile, re.MULTILINE)
    return str(found).replace("$(NO_GPU)", no_gpu)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tests = tmp_path / "tests"
    (tests / "cluster").mkdir(parents=True)
    (tests / "support").mkdir()
    (tests / "hosts").mkdir()
    support = ("__init__.py", "browser.py", "gpus.py", "profiles.py")
    copied = [f"support/{name}" for name in support]
    hosts = ("hosts/__init__.py", "hosts/network.py")
    for name in ("conftest.py", "__init__.py", *copied, *hosts):
        shutil.copy(ROOT / "tests" / name, tests / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tests / "test_one.py").write_text(TESTS)
    for name in ("a", "b", "c"):
        (tests / "cluster" / f"test_{name}.py").write_text(CLUSTER)
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout


@pytest.mark.slow
def test_quick_and_all(folder: Path) -> None:
    parallel = ["-n", "2", "--dist", "loadscope", "--hypothesis-profile", "quick"]
    quick = run(folder, *parallel, "-m", marks("QUICK"))
    assert [line for line in QUICK if line not in quick] == []
    assert len(set(re.findall(r"clusters in \d+", quick))) == 1
    rest = run(folder, "-m", marks("THOROUGH"))
    assert [line for line in ALL if line not in rest] == []
