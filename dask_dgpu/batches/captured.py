"""The arrays that graphs and functions hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import (
    BuiltinMethodType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

from dask.array.core import Array
from dask.blockwise import Blockwise

from dask_dgpu.batches.named import Names, attributes, dict_of, named, names_in, of_class
from graph_opt.dask_graph.internals import Alias, DataNode, Task, TaskRef

PLAIN = (Alias, TaskRef, str, bytes, int, float, complex, slice, type(None))
"""Types of most arguments of tasks, which hold no arrays."""
DEEPEST = 8
"""Containers, objects and functions within each other that are looked into."""
NONE: Names = frozenset()


def is_array(value: Any) -> bool:
    """Whether a value is an array of some kind, as it says itself."""
    if isinstance(value, type | ModuleType):
        return False
    return hasattr(value, "shape") and hasattr(value, "dtype")


def read_by(op: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a call of a function, or of an operation by name, reads: ``op`` and arguments.

    Of arguments that are other objects a function reads the attributes that its code names.
    """

    def is_whole(value: Any) -> bool:
        return not callable(op) or isinstance(value, PLAIN) or is_array(value)

    found = {
        name: each if is_whole(each) else partial(op, each) for name, each in arguments.items()
    }
    return {"op": op} | found


def arrays_in(value: Any) -> Iterator[Any]:
    """Yield the arrays other than Dask's that a graph, a function or a container holds, once each.

    A function holds what it closes over, its defaults, bound arguments, and the globals that its
    code names. Of objects, classes and modules among these it holds the attributes that its code
    names too: values, and methods with what they hold. No property and no method is called.
    """
    seen: dict[Hashable, Any] = {}  # with the values: others may get the id of one that is freed
    queue = deque([(value, NONE, 0)])
    while queue:
        found, names, depth = queue.popleft()
        key = _key(found, names)
        if key in seen:
            continue
        seen[key] = found
        if _looks_like_array(found) and not isinstance(found, Array):
            yield found
        elif depth < DEEPEST:
            names, held = _within(found, names)
            queue += [(each, names, depth + 1) for each in held if not isinstance(each, PLAIN)]


def _key(value: Any, names: Names) -> Hashable:
    """Return what tells a value, and the names of the code that reads it where these matter."""
    if isinstance(value, MethodType):
        return id(value.__func__), id(value.__self__)
    if isinstance(value, FunctionType | partial | Task) or _looks_like_array(value):
        return id(value)
    return id(value), names


def _looks_like_array(value: Any) -> bool:
    """Whether a value or its class has the attributes of an array; nothing is called."""
    if isinstance(value, type | ModuleType):
        return False
    both = ("shape", "dtype")
    return all(of_class(value, name) is not None or name in dict_of(value) for name in both)


def _within(value: Any, names: Names) -> tuple[Names, Iterable[Any]]:
    """Return the names in the code that reads what a value holds, and what may be arrays of it.

    ``names`` are those in the code that reads the value.
    """
    if isinstance(value, Array):
        return NONE, value.dask.layers.values()
    if isinstance(value, Blockwise):
        operands = (operand for operand, index in value.indices if index is None)
        return _names_of(value.task), (value.task, *operands)
    if isinstance(value, Mapping):
        return names, value.values()
    if isinstance(value, tuple | list | set | frozenset):
        return names, value
    if isinstance(value, DataNode):
        return names, (value.value,)
    if isinstance(value, Task | partial):
        return _names_of(value), _parts(value)
    if isinstance(value, FunctionType):
        names = names_in(value.__code__)
        return names, _in_function(value, names)
    if isinstance(value, MethodType) and not _looks_like_array(value.__self__):
        names = _names_of(value)
        return names, (value.__func__, *attributes(value.__self__, names))
    if isinstance(value, MethodType | BuiltinMethodType | MethodWrapperType):
        return names, (value.__self__,)
    return names, attributes(value, names | {"__call__"})


def _in_function(function: FunctionType, names: Names) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not yet set
            yield cell.cell_contents
    yield from named(vars(function), names)
    for each in named(function.__globals__, names):
        if isinstance(each, dict) or not isinstance(each, Mapping):  # it may be a file: not read
            yield each


def _parts(call: Task | partial[Any]) -> tuple[Any, ...]:
    """Return a function, and the arguments that it gets."""
    if isinstance(call, partial):
        return (call.func, *call.args, *call.keywords.values())
    return (call.func, *call.args, *call.kwargs.values())


def _names_of(value: Any) -> Names:
    """Return the names in the code of a function, or of all functions that a task has."""
    if isinstance(value, Task | partial):
        return NONE.union(*map(_names_of, filter(callable, _parts(value))))
    if isinstance(value, MethodType):
        return _names_of(value.__func__)
    function = value if isinstance(value, FunctionType) else of_class(value, "__call__")
    return names_in(function.__code__) if isinstance(function, FunctionType) else NONE
