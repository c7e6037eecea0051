"""The project around the code: packaging, contracts and what the README promises."""

from __future__ import annotations

import builtins
import doctest
import logging.config
import re
import tomllib
from importlib import import_module, metadata
from pathlib import Path

import pytest
from importlinter.cli import lint_imports
from numpydoc.validate import validate

import dask_dgpu as dgpu

ROOT = Path(__file__).parents[2]
PACKAGES = ("dask_dgpu", "graph_opt")
DOCUMENTS = [
    ".ci/run",
    "CONTRIBUTING.md",
    "README.md",
    *(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")),
]

MODULES = ("cost", "errors", "fft")
BUILTINS = ("max", "min", "sum")
"""Public too, but not in ``__all__``: a wildcard import must not shadow builtins."""
CONSTANTS = tuple(name for name in dgpu.__all__ if name.isupper())
TRANSFORMS = [name for name in dgpu.fft.__all__ if re.fullmatch("i?[rh]?fft[2n]?", name)]
TRIGONOMETRIC = [
    f"{way}{kind}{n}" for way in ("", "i") for kind in ("dct", "dst") for n in ("", "n")
]
PUBLIC = [
    *(f"dask_dgpu.{name}" for name in dgpu.__all__ if name not in (*MODULES, *CONSTANTS)),
    *(f"dask_dgpu.{name}" for name in BUILTINS),
    *(f"dask_dgpu.cost.{name}" for name in dgpu.cost.__all__),
    *(f"dask_dgpu.fft.{name}" for name in TRANSFORMS),
    *(f"dask_dgpu.fft.{name}" for name in TRIGONOMETRIC),
]
WITH_EXAMPLES = [
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "dask_dgpu").rglob("*.py"))
    if re.search(r">>> (?!.*SKIP)", path.read_text())
]
DOCSTRING_CHECKS = {"GL08", "PR01", "PR02", "PR03", "PR04", "PR07", "RT01", "RT03", "SS01"}


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_import_contracts_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(logging.config, "dictConfig", lambda config: None)  # it disables loggers
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == 0


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_are_targets_of_the_makefile(document: str) -> None:
    makefile, text = (ROOT / "Makefile").read_text(), (ROOT / document).read_text()
    targets = set(re.findall(r"^([\w.-]+):", makefile, re.MULTILINE))
    commands = set(re.findall(r"(?:^|`)make ([\w.-]+)", text, re.MULTILINE))
    assert commands <= targets


def test_version_stands_in_one_place() -> None:
    assert "version" in project()["dynamic"]
    assert metadata.version("dask-dgpu") == dgpu.__version__
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in ("Unreleased", dgpu.__version__)


def test_wildcard_import_shadows_no_builtin() -> None:
    names: dict[str, object] = {}
    exec("from dask_dgpu import *", names)
    assert {"enable", "mean", "start"} <= names.keys()
    assert not names.keys() & set(dir(builtins))
    assert all(callable(getattr(dgpu, name)) for name in BUILTINS)


def test_backend_is_an_entry_point() -> None:
    (entry_point,) = metadata.entry_points(group="dask.array.backends", name="dgpu")
    assert entry_point.value == "dask_dgpu.session.backend:array_backend"


def test_environment_has_the_oldest_dask_that_is_allowed() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "ci/constraints.txt").read_text().splitlines()
        if "==" in line
    )
    for requirement in ("dask[array]", "distributed"):
        name = requirement.partition("[")[0]
        lowest = [each.partition(",")[0] for each in project()["dependencies"]]
        assert f"{requirement}>={pins[name]}" in lowest


ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


def test_page_of_the_architecture_is_short() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 120


def test_claims_of_the_architecture_name_what_shows_them() -> None:
    """Each paragraph, list item and row names a test, a command, or another page."""
    text = re.sub(r"^```.*?^```", "", ARCHITECTURE, flags=re.M | re.S).partition("## Packages\n")[2]
    claims = re.split(r"\n\n|\n(?=- |\d\. |\| )", text)
    claims = [each for each in claims if each.strip() and not each.startswith("#")]
    proofs = re.compile(r"`tests/|`make |`benchmarks/|\|---|shown by|\]\(\w+\.md\)")
    assert [each for each in claims if not proofs.search(each)] == []


def test_files_of_the_architecture_exist() -> None:
    paths = re.findall(r"`(\w+/[\w/]*(?:\.py|/)?)`", ARCHITECTURE)
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", [*PUBLIC, "dask_dgpu.errors.GangError"])
def test_docstring_is_complete(name: str) -> None:
    errors = [error for error in validate(name)["errors"] if error[0] in DOCSTRING_CHECKS]
    assert errors == []


@pytest.mark.parametrize("path", WITH_EXAMPLES)
def test_examples_in_docstrings_run(path: str) -> None:
    module = import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed
