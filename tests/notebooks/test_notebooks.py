"""The notebooks run without warnings, and store the outputs of the code that they show."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import (
    FOLDER,
    FORKED,
    METADATA,
    NOTEBOOKS,
    PRIVATE,
    SOURCES,
    code_cells,
    digest,
    run,
    texts,
    warned,
)

MOST_BYTES = 2_500_000
NAMES = [path.stem for path in NOTEBOOKS]
SHOWS = re.compile(r"^\s*print\(|plt\.show\(|^dgpu\.explain\(", re.MULTILINE)


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(480)
@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs_without_warnings(name: str, tmp_path: Path) -> None:
    assert warned(run(read(name), tmp_path, FORKED)) == ""


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_those_of_the_code(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.metadata[SOURCES] == digest(notebook), "run make notebooks"
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [cell.source for cell in cells if SHOWS.search(cell.source) and not cell.outputs] == []
    assert warned(notebook) == ""


@pytest.mark.parametrize("name", NAMES)
def test_printing_leaves_no_empty_output(name: str) -> None:
    """As rich does beside what it captures; beside its bars it does so too."""
    printing = [cell for cell in code_cells(read(name)) if "print(" in cell.source]
    shown = [output.data for cell in printing for output in cell.outputs if "data" in output]
    assert [data for data in shown if not "".join(data["text/plain"])] == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_machine_is_stored(name: str) -> None:
    notebook = read(name)
    assert {key: notebook.metadata[key] for key in METADATA} == METADATA
    assert notebook.metadata.keys() == {*METADATA, SOURCES}
    assert not any("execution" in cell.metadata for cell in notebook.cells)
    stored = "\n".join(texts(notebook))
    assert PRIVATE.findall(stored) == []
    assert socket.gethostname() not in stored


@pytest.mark.parametrize("name", NAMES)
def test_notebook_draws_and_says_what_changes_on_gpus(name: str) -> None:
    notebook = read(name)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert re.search(r"^## What changes on GPUs$", text, re.MULTILINE)
    assert any("image/png" in o.get("data", {}) for c in code_cells(notebook) for o in c.outputs)


def test_notebooks_are_small() -> None:
    assert NOTEBOOKS
    assert sum(path.stat().st_size for path in NOTEBOOKS) < MOST_BYTES
