"""Dask's CuPy backend, whose equal calls create equal graphs.

Dask gives ``da.zeros`` and its like the meta ``cupy.empty(())``, with whatever number lies there.
It is pickled with the graph, so no graph would look like the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import cupy
from dask.array.core import Array
from dask.array.cupy_entry_point import CupyBackendEntrypoint

Create = Callable[..., Array]


def _with(name: str, create: Create) -> Create:
    """Return a function that gives another one an array of zero axes by name, unless it has one."""

    @wraps(create)
    def creating(*args: Any, **kwargs: Any) -> Array:
        if kwargs.get(name) is None:
            kwargs[name] = cupy.zeros(())
        return create(*args, **kwargs)

    return creating


class CupyBackend(CupyBackendEntrypoint):
    """Creates blocks of CuPy."""

    ones = staticmethod(_with("meta", CupyBackendEntrypoint.ones))
    zeros = staticmethod(_with("meta", CupyBackendEntrypoint.zeros))
    empty = staticmethod(_with("meta", CupyBackendEntrypoint.empty))
    full = staticmethod(_with("meta", CupyBackendEntrypoint.full))
    arange = staticmethod(_with("like", CupyBackendEntrypoint.arange))
