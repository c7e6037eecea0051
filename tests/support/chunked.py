"""xarray's arrays in chunks, of either package, and operations by groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask.array as da
import dask_array as xa
import dask_array.xarray
import numpy as np
import xarray as xr
from xarray.groupers import UniqueGrouper
from xarray.namedarray.parallelcompat import list_chunkmanagers

LABELS = np.arange(20) % 4
COLUMNS = np.arange(12) // 5
CELLS = ("t", "x"), (LABELS[:, None] + COLUMNS) % 3


@contextmanager
def chunked_by(name: str) -> Iterator[Any]:
    """Let xarray make arrays of a package, and yield the package.

    flox makes arrays of Dask alone: with those of dask_array xarray groups by itself.
    """
    list_chunkmanagers()  # the first call returns another dictionary than it keeps
    managers = list_chunkmanagers()
    before = managers["dask"]
    if name == "dask_array":
        dask_array.xarray.register()
    else:
        from xarray.namedarray.daskmanager import DaskManager

        managers["dask"] = DaskManager()
    with xr.set_options(use_flox=name == "dask.array"):
        yield xa if name == "dask_array" else da
    managers["dask"] = before


def data(**chunks: int) -> xr.DataArray:
    """Return an array of 20 x 12, with labels of rows, columns and cells in one chunk each."""
    values = np.random.default_rng(5).random((20, 12))
    found = xr.DataArray(values, {"t": np.arange(20.0), "x": np.arange(12.0)}, ("t", "x"))
    labels = {"rows": ("t", LABELS), "columns": ("x", COLUMNS), "cells": CELLS}
    return (found.chunk(chunks) if chunks else found).assign_coords(labels)


def _by(*names: str, lazy: bool = False) -> Callable[[xr.DataArray], Any]:
    def operation(d: xr.DataArray) -> Any:
        if lazy and d.chunks:
            d = d.assign_coords({each: d[each].chunk(t=5) for each in names})
        return d.groupby({each: UniqueGrouper(labels=[0, 1, 2]) for each in names}).sum()

    return operation


def _method(name: str) -> Callable[[xr.DataArray], Any]:
    return lambda d: getattr(d.groupby("rows"), name)()


GROUPED: dict[str, Callable[[xr.DataArray], Any]] = {
    **{name: _method(name) for name in ("sum", "mean", "max", "count", "std")},
    "columns": lambda d: d.groupby("columns").mean(...),
    "cells": lambda d: d.groupby("cells").sum(),
    "two": lambda d: d.groupby(rows=UniqueGrouper(), columns=UniqueGrouper()).mean(),
    "cohorts": lambda d: d.groupby("rows").sum(method="cohorts"),
    "anomaly": lambda d: d.groupby("rows") - d.groupby("rows").mean(),
    "chunked labels": _by("rows", lazy=True),
    "chunked labels of cells": _by("cells", lazy=True),
}
"""Operations by groups."""

FLOX_ONLY = ("cohorts", "chunked labels", "chunked labels of cells")
"""Those that xarray refuses without flox."""
