"""Dask's CuPy backend, whose equal calls create equal graphs, and which creates more.

Dask gives ``da.zeros`` and its like the meta ``cupy.empty(())``, with whatever number lies there.
It is pickled with the graph, so no graph would look like the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import cupy
import dask
import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.array.cupy_entry_point import CupyBackendEntrypoint

from dask_dgpu.session.creation import made_by
from graph_opt.dask_graph.internals import linspace

Create = Callable[..., Array]

FUNCTIONS = {np.eye: cupy.eye, np.zeros: cupy.zeros, linspace: cupy.linspace}
"""What creates a block with the same arguments."""


def _with(name: str, create: Create) -> Create:
    """Return a function that gives another one an array of zero axes by name, unless it has one."""

    @wraps(create)
    def creating(*args: Any, **kwargs: Any) -> Array:
        if kwargs.get(name) is None:
            kwargs[name] = cupy.zeros(())
        return create(*args, **kwargs)

    return creating


def _arange(*args: Any, **kwargs: Any) -> Array:
    """Return ``arange``; Dask gives NumPy's and CuPy's the same keys."""
    made = _with("like", CupyBackendEntrypoint.arange)(*args, **kwargs)
    return made_by(made, {}, made._meta) if made.name.startswith("arange-") else made


def _on_device(made: Array) -> Array:
    return made_by(made, FUNCTIONS, cupy.zeros((0,) * made.ndim, made.dtype))


def _eye(*args: Any, **kwargs: Any) -> Array:
    with dask.config.set({"array.backend": "numpy"}):
        return _on_device(da.eye(*args, **kwargs))


def _linspace(start: Any, stop: Any, *args: Any, **kwargs: Any) -> Any:
    start, stop = (float(each) if isinstance(each, Array) else each for each in (start, stop))
    with dask.config.set({"array.backend": "numpy"}):
        made = da.linspace(start, stop, *args, **kwargs)
    if isinstance(made, tuple):  # retstep=True
        return _on_device(made[0]), made[1]
    return _on_device(made)


class CupyBackend(CupyBackendEntrypoint):
    """Creates blocks of CuPy."""

    ones = staticmethod(_with("meta", CupyBackendEntrypoint.ones))
    zeros = staticmethod(_with("meta", CupyBackendEntrypoint.zeros))
    empty = staticmethod(_with("meta", CupyBackendEntrypoint.empty))
    full = staticmethod(_with("meta", CupyBackendEntrypoint.full))
    arange = staticmethod(_arange)
    eye = staticmethod(_eye)
    linspace = staticmethod(_linspace)
