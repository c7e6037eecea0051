"""Dask's creation functions that know no backend: ``eye`` and ``linspace``.

Dask asks its backend for ``ones`` and its like and for ``arange``, and builds others from these.
The tasks of ``eye`` and ``linspace`` call NumPy whatever ``array.backend`` is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial, wraps
from typing import Any

from dask.array.backends import array_creation_dispatch
from dask.array.core import Array
from dask.tokenize import tokenize

from graph_opt.dask_graph.internals import Task

Function = Callable[..., Any]

UNDISPATCHED = "eye", "linspace"
"""Names in ``dask.array``."""


@cache
def dispatched(original: Function) -> Function:
    """Wrap a creation function so that a backend with a function of its name takes its calls."""

    @wraps(original)
    def create(*args: Any, **kwargs: Any) -> Any:
        function = getattr(array_creation_dispatch, original.__name__, original)
        return function(*args, **kwargs)

    return create


def made_by(made: Array, functions: Mapping[Function, Function], meta: Any) -> Array:
    """Return an array without inputs whose tasks call other functions, for blocks like ``meta``.

    Its keys differ: a cluster may hold blocks of the array as it was.
    """
    name = f"{made.name.rpartition('-')[0]}-{tokenize(made.name, type(meta))}"
    tasks = {}
    graph: dict[Any, Any] = dict(made.__dask_graph__())
    for key, task in graph.items():
        new = name, *key[1:]
        tasks[new] = Task(new, _replaced(task.func, functions), *task.args, **task.kwargs)
    return Array(tasks, name, made.chunks, dtype=made.dtype, meta=meta)


def _replaced(function: Function, functions: Mapping[Function, Function]) -> Function:
    if isinstance(function, partial):
        inner = functions.get(function.func, function.func)
        return partial(inner, *function.args, **function.keywords)
    return functions.get(function, function)
