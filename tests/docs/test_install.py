"""What users read and type to install the package."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
INSTALL = ROOT / "docs/getting-started/install.md"
PAGES = [
    README,
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "notebooks").glob("[0-9R]*.[im]*")),
]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_address_is_in_one_place() -> None:
    found = [
        address for page in PAGES for address in re.findall(r"git\+https\S+", page.read_text())
    ]
    assert found == [f"git+{project()['urls']['Source']}"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_installs_from_an_index(page: Path) -> None:
    commands = re.findall(r"pip install ([^`\n]*)", page.read_text())
    assert [each for each in commands if "dask-dgpu" in each and " @ $source" not in each] == []


def test_the_readme_names_the_extras_of_gpus() -> None:
    named = re.findall(r"dask-dgpu\[(\w+)\] @", README.read_text())
    assert sorted(named) == ["cuda12", "cuda13"]
    assert {*named, "torch", "ucx"} <= project()["optional-dependencies"].keys()


def test_the_page_shows_all_dependencies() -> None:
    page, text = INSTALL.read_text(), (ROOT / "pyproject.toml").read_text()
    (options,) = re.findall(r"{literalinclude} \S+pyproject.toml\n(.*?)```", page, re.S)
    first, last = (
        re.search(rf':{each}: "?(.+?)"?\n', options) for each in ("start-at", "end-before")
    )
    assert first is not None
    assert last is not None
    start = text.index(first[1])
    shown = tomllib.loads(text[start : text.index(last[1], start)])
    assert shown == {"dependencies": project()["dependencies"]}


def test_links_of_the_readme_lead_to_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", plugin)  # type: ignore[arg-type]
    with_absolute_links = runpy.run_path(str(ROOT / "ci/readme.py"))["with_absolute_links"]
    source = project()["urls"]["Source"]
    text = with_absolute_links(README.read_text(), source)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 10
    for link in links:
        assert link.startswith(("https://", "#"))
        path = link.partition("#")[0].removeprefix(f"{source}/blob/main/")
        assert path.startswith("https://") or (ROOT / path).exists()
