from __future__ import annotations

import shutil
import sys
from importlib import metadata
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS / "_ext"), str(ROOT)]

project = "dask_dgpu"
author = "the dask_dgpu developers"
copyright = f"2026, {author}"
release = metadata.version("dask-dgpu")

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "charts",
    "operations",
]
templates_path = ["_templates"]
exclude_patterns = ["_ext", "_templates"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# notebooks are stored with their outputs; `make notebooks` runs them
nb_execution_mode = "off"

# numpydoc lists parameters with their types, so autodoc does not
autodoc_typehints = "none"
autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = f"dask_dgpu {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_domain_indices = False
html_show_sourcelink = False
html_theme_options = {
    "header_links_before_dropdown": 7,
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "navigation_with_keys": False,
    # without it there is room for the diagrams
    "secondary_sidebar_items": {
        "**": ["page-toc"],
        "architecture": [],
        "algorithms": [],
        "examples": [],
    },
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}


def copy_notebooks() -> list[str]:
    """Copy the notebooks into the folder of sources, remove stale ones, and return their names."""
    target = DOCS / "notebooks"
    target.mkdir(exist_ok=True)
    notebooks = {path.name: path for path in (ROOT / "notebooks").glob("*.ipynb")}
    for stale in {path.name for path in target.iterdir()} - notebooks.keys():
        (target / stale).unlink()
    for name, path in notebooks.items():
        copied = target / name
        if not copied.exists() or copied.read_bytes() != path.read_bytes():
            shutil.copyfile(path, copied)
    return sorted(path.stem for path in notebooks.values())


def list_notebooks(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill in the table of contents of the notebooks that exist."""
    source[0] = source[0].replace("{{notebooks}}", "\n".join(f"notebooks/{n}" for n in NOTEBOOKS))


def setup(app: Sphinx) -> None:
    app.connect("env-get-outdated", lambda *_: ["notebooks"])
    app.connect("source-read", list_notebooks)


NOTEBOOKS = copy_notebooks()
