from importlib import metadata

project = "dask_dgpu"
copyright = "2026, the dask_dgpu developers"
release = metadata.version("dask-dgpu")

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
html_theme = "alabaster"

autodoc_typehints = "description"
myst_heading_anchors = 3
numpydoc_show_class_members = False
