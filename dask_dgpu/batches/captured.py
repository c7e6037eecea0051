"""The arrays that graphs and functions hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from dask.array.core import Array
from dask.blockwise import Blockwise
from dask.highlevelgraph import MaterializedLayer

from graph_opt.dask_graph.internals import DataNode, Task, TaskRef

PLAIN = (TaskRef, str, bytes, int, float, complex, slice, type(None))
"""Types of most arguments of tasks, which hold no arrays."""
DEEPEST = 8
"""Containers and functions within each other that are looked into."""


def is_array(value: Any) -> bool:
    """Whether a value is an array of some kind."""
    if isinstance(value, type | ModuleType):
        return False
    return hasattr(value, "shape") and hasattr(value, "dtype")


def arrays_in(value: Any) -> Iterator[Any]:
    """Yield the arrays other than Dask's that a graph, a function or a container holds, once each.

    A function holds what it closes over, its defaults, bound arguments, and the arrays and
    functions among the globals, or the attributes of a method's object, that its code names.
    """
    seen: set[int] = set()
    stack = [(value, 0)]
    while stack:
        found, depth = stack.pop()
        if id(found) in seen or depth > DEEPEST:
            continue
        seen.add(id(found))
        if is_array(found) and not isinstance(found, Array):
            yield found
        else:
            stack += [(each, depth + 1) for each in _within(found) if not isinstance(each, PLAIN)]


def _within(value: Any) -> Iterable[Any]:
    """Return the values that a value holds, as far as these may be arrays."""
    if isinstance(value, Array):
        return value.dask.layers.values()
    if isinstance(value, MaterializedLayer | Mapping) and not isinstance(value, Blockwise):
        return value.values()
    if isinstance(value, Blockwise):
        return (value.task, *(operand for operand, index in value.indices if index is None))
    if isinstance(value, tuple | list | set | frozenset):
        return value
    if isinstance(value, DataNode):
        return (value.value,)
    if isinstance(value, Task):
        return (value.func, *value.args, *value.kwargs.values())
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, MethodType):
        return (value.__func__, *_named(value.__func__, getattr(value.__self__, "__dict__", {})))
    if isinstance(value, BuiltinMethodType):
        return (value.__self__,)
    if isinstance(value, FunctionType):
        return _in_function(value)
    return vars(value).values() if callable(value) and hasattr(value, "__dict__") else ()


def _in_function(function: FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet set
            continue
    for each in _named(function, function.__globals__):
        if is_array(each) or isinstance(each, FunctionType | partial | list | tuple):
            yield each


def _named(function: Any, values: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values whose names the code of a function has, functions within it included."""
    codes = [function.__code__] if isinstance(function, FunctionType) else []
    for code in codes:
        yield from (values[name] for name in code.co_names if name in values)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
