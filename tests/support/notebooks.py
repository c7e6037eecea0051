"""The notebooks: run them, and store their outputs without anything of this machine.

Run ``python -m tests.support.notebooks`` for all of them, or name some: ``05_sums``.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

from tests.support.paths import with_project

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))

CELL_SECONDS = 240
"""Time limit of one cell, on a busy machine."""

SOURCES = "dask_dgpu_sources"
"""Key of a notebook's metadata: a digest of the code whose outputs are stored."""

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

PRIVATE = re.compile(r"0x[0-9a-f]{6,}|(?:tcp|inproc)://|/(?:home|root|tmp|work|usr|opt|Users)/")
"""What no output may contain: memory addresses, addresses of workers, and absolute paths."""

IMAGE = re.compile(r"base64,[A-Za-z0-9+/=\s]*")

STRICT = """
import logging
import warnings
__import__("distributed")  # sets levels itself when it is imported
for name in ("dask_dgpu.session.client", "distributed.nanny", "tornado.application"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
warnings.filterwarnings("error", module="__main__")
"""
"""Warnings of a notebook's own code are errors; others appear in the standard error stream.

Clusters that close slowly on a busy machine log it, which no reader needs.
"""

FORKED = """
from tests.support.forked import fork_workers
fork_workers()
"""
"""Clusters start at a tenth of the CPU time, but stored times should be those of users."""

ENVIRONMENT = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    # on a busy machine a killed worker may need longer than Dask's 15 s to come back
    "DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT": "1h",
}
"""Variables of the kernel's environment."""


class StrictClient(NotebookClient):
    """Runs a notebook in which every warning of its own code is an error."""

    before = STRICT

    async def async_start_new_kernel_client(self) -> Any:
        """Start the kernel, and run ``before`` in it."""
        client = await super().async_start_new_kernel_client()
        await client.execute_interactive(self.before, silent=True, store_history=False)
        return client


def run(notebook: NotebookNode, folder: Path, before: str = "") -> NotebookNode:
    """Run all cells of a copy of a notebook in a new kernel, after ``before``.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell raises.
    nbclient.exceptions.CellTimeoutError
        If a cell takes longer than ``CELL_SECONDS``.
    """
    copy = nbformat.from_dict(notebook)
    client = StrictClient(
        copy,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.before = STRICT + before
    # execute() leaves its event loop open
    asyncio.run(client.async_execute(env=with_project(os.environ | ENVIRONMENT)))
    return copy


def tidy(notebook: NotebookNode) -> NotebookNode:
    """Return a notebook with stable metadata, and its printed text in one piece per stream."""
    notebook.metadata = nbformat.from_dict(METADATA | {SOURCES: digest(notebook)})
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number:02}"
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags"}
        if cell.cell_type == "code":
            cell.outputs = list(_joined(cell.outputs))
            for output in cell.outputs:
                if output.output_type in ("display_data", "execute_result"):
                    output.metadata = {}
                    if "image/png" in output.data:
                        output.data["image/png"] = _smallest(output.data["image/png"])
    return notebook


def _smallest(image: str) -> str:
    """Return the same image in fewer bytes: without transparency that is not used."""
    picture: Image.Image = Image.open(BytesIO(b64decode(image)))
    if picture.mode == "RGBA" and picture.getextrema()[-1] == (255, 255):
        picture = picture.convert("RGB")
    file = BytesIO()
    picture.save(file, "PNG", optimize=True)
    return b64encode(file.getvalue()).decode()


def _joined(outputs: Sequence[NotebookNode]) -> Iterator[NotebookNode]:
    last = None
    for output in outputs:
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
            continue
        if last:
            yield last
        last = output
    if last:
        yield last


def digest(notebook: NotebookNode) -> str:
    """Return a digest of a notebook's code that ignores white space."""
    code = "\n".join("".join(cell.source.split()) for cell in code_cells(notebook))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the cells of a notebook that hold code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def texts(notebook: NotebookNode) -> Iterator[str]:
    """Yield all text of the outputs, HTML included, but for images in it."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "stream":
                yield output.text
            for kind, data in output.get("data", {}).items():
                if kind.startswith("text/"):
                    yield IMAGE.sub("", data)


def warned(notebook: NotebookNode) -> str:
    """Return what the cells wrote to the standard error stream: warnings, logs, tracebacks."""
    return "".join(
        output.text
        for cell in code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stderr"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run notebooks in place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names without .ipynb; by default all")
    names = parser.parse_args(arguments).names
    for path in [FOLDER / f"{name}.ipynb" for name in names] or NOTEBOOKS:
        start = time.perf_counter()
        notebook = tidy(run(nbformat.read(path, as_version=4), FOLDER))
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        seconds = time.perf_counter() - start
        print(f"{path.name}: {seconds:.0f} s, {path.stat().st_size >> 10} KiB")  # noqa: T201
        if text := warned(notebook):
            raise SystemExit(f"{path.name} wrote to the standard error stream:\n{text}")


if __name__ == "__main__":
    main()
