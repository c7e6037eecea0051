"""The project around the code: packaging, contracts and what the README promises."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[1]
PACKAGES = ("dask_dgpu", "graph_opt")
LONGEST_FILE = 330
DOCUMENTS = [".ci/run", "README.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]

SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_import_contracts_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == 0


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_is_short(source: Path) -> None:
    assert len(source.read_text().splitlines()) < LONGEST_FILE


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_are_targets_of_the_makefile(document: str) -> None:
    makefile, text = (ROOT / "Makefile").read_text(), (ROOT / document).read_text()
    targets = set(re.findall(r"^([\w.-]+):", makefile, re.MULTILINE))
    commands = set(re.findall(r"(?:^|`)make ([\w.-]+)", text, re.MULTILINE))
    assert commands <= targets


def test_version_is_the_same_everywhere() -> None:
    version = project()["version"]
    assert metadata.version("dask-dgpu") == version
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in ("Unreleased", version)


def test_backend_is_an_entry_point() -> None:
    (entry_point,) = metadata.entry_points(group="dask.array.backends", name="dgpu")
    assert entry_point.value == "dask_dgpu.backend:array_backend"


def test_environment_has_the_oldest_dask_that_is_allowed() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "ci/constraints.txt").read_text().splitlines()
        if "==" in line
    )
    for requirement in ("dask[array]", "distributed"):
        name = requirement.partition("[")[0]
        assert f"{requirement}>={pins[name]}" in project()["dependencies"]


def test_files_in_the_table_of_algorithms_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    assert "dask_dgpu/algorithms/summa/" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
