"""Functions of Dask's layers on CuPy blocks that others replace, because they are quicker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph

from graph_opt.dask_graph.internals import Task
from graph_opt.model.layout import CUPY

Functions = Mapping[Any, Callable[..., Any]]


def with_functions(graph: HighLevelGraph, functions: Functions) -> HighLevelGraph:
    """Return a graph in which blockwise layers of CuPy blocks call other functions.

    ``functions`` has what to call instead, by what Dask calls. Names stay, and so do arguments.
    """
    layers = {
        name: changed
        for name, layer in graph.layers.items()
        if (changed := _changed(layer, functions)) is not None
    }
    return HighLevelGraph({**graph.layers, **layers}, graph.dependencies) if layers else graph


def _changed(layer: Any, functions: Functions) -> Blockwise | None:
    """Return a layer with another function, ``None`` if there is no such."""
    facts = getattr(layer, "collection_annotations", None) or {}
    if not isinstance(layer, Blockwise) or facts.get("chunk_type") != CUPY:
        return None
    task = layer.task
    function = exchanged(task.func, functions) if isinstance(task, Task) else None
    if function is None:
        return None
    found = copy(layer)
    found.task = Task(task.key, function, *task.args, **task.kwargs)
    found.__dict__.pop("_cached_dict", None)
    return found


def exchanged(function: Any, functions: Functions) -> Callable[..., Any] | None:
    """Return what to call instead of a function, with the same bound arguments, if there is any."""
    if isinstance(function, partial):
        other = exchanged(function.func, functions)
        return None if other is None else partial(other, *function.args, **function.keywords)
    try:
        return functions.get(function)
    except TypeError:  # it has no hash
        return None
