"""Functions, and their arguments, that are proven to be the same at each call.

Those of users are not: they may do more than return a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from dask.utils import typename

from graph_opt.dask_graph.gathering import Chain, Together
from graph_opt.dask_graph.internals import (
    Alias,
    Compose,
    DataNode,
    Task,
    TaskRef,
    argmax,
    curry,
    methodcaller,
)
from graph_opt.dask_graph.parse import is_known, row_of, unwrapped
from graph_opt.dask_graph.sent import named
from graph_opt.model.layout import CONTAINERS

Function = Callable[..., Any]
Functions = Mapping[Any, Function]
"""What is called instead of functions."""
Parts = Mapping[type, Callable[[Any], Iterable[Any]]]

MOST = 4096
"""Number of functions of which it is kept whether they are known."""

META = "meta"
"""The keyword of an array of which Dask's functions read the type alone."""

LASTING = {BuiltinFunctionType, np.ufunc, type(np.sum)}
"""Types of functions that are not created anew each time."""

CONSTANTS = {
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis)),
    *(range, methodcaller, Alias, TaskRef),
}
"""Types of values that nobody can change, besides NumPy's own."""


FROZEN: Parts = {
    tuple: iter,
    frozenset: iter,
    slice: lambda value: (value.start, value.stop, value.step),
}
"""The parts of values that nobody can change if nobody can change these."""

STATELESS: Parts = {
    tuple: iter,
    list: iter,
    set: iter,
    dict: lambda value: value.values(),
    partial: lambda value: _called(value),
    curry: lambda value: _called(value),
    Compose: lambda value: (value.first, *value.funcs),
    Together: lambda value: value.tasks,
    Chain: lambda value: value.tasks,
}
"""The parts of functions, and of their arguments, that are the same at each call if these are."""


def is_block(value: Any) -> bool:
    """Whether a value is a block of NumPy or CuPy."""
    return typename(type(value)) in CONTAINERS


def is_known_function(function: Any) -> bool:
    """Whether a function is one of the modules of known packages."""
    kind = type(function)
    lasts = kind in LASTING or (kind is FunctionType and "<" not in function.__qualname__)
    return lasts and is_of_module(function)


def is_stateless(value: Any) -> bool:
    """Whether a function, or an argument of one, is proven to be the same at each call.

    It is a function of a known package, or such a function with arguments, or a value that known
    functions do not change. Functions of our own say so themselves. A function of a user may have a
    buffer, count its calls, or be of a module that is sent again; a generator of random numbers
    goes on.
    """
    kind = type(value)
    if is_known(kind) and hasattr(kind, "is_stateless"):
        return bool(value.is_stateless)
    if kind in STATELESS:
        return all(map(is_stateless, STATELESS[kind](value)))
    if kind is DataNode:
        return is_constant(value.value)
    if isinstance(value, Task):
        return all(map(is_stateless, (value.func, value.args, value.kwargs)))
    return is_constant(value)


def is_constant(value: Any) -> bool:
    """Whether nobody can change a value, or what it holds."""
    kind = type(value)
    if kind in FROZEN:
        return all(map(is_constant, FROZEN[kind](value)))
    if isinstance(value, type):
        return is_of_module(value)
    if is_block(value):
        return bool(value.size == 0)  # the meta of an array
    if kind in CONSTANTS or isinstance(value, np.dtype | np.generic):
        return True
    return is_known_function(value) or _keeps_axes(value)


def _called(function: Any) -> Iterable[Any]:
    options = (each for name, each in function.keywords.items() if name != META)
    return function.func, function.args, *options


def _keeps_axes(function: Any) -> bool:
    """Whether it is Dask's wrapper of a function of NumPy, which pickle creates anew."""
    code = getattr(function, "__code__", None)
    if code is None or code != getattr(argmax, "__code__", None):
        return False
    return all(is_known_function(cell.cell_contents) for cell in function.__closure__)


@lru_cache(MOST)
def is_of_module(function: Any) -> bool:
    """Whether a function or class is the one that the module of a known package has."""
    if not is_known(function):
        return False
    return unwrapped(named(function)) is function  # Dask binds a curry to the name of one


def exchanged(function: Any, functions: Functions) -> Function | None:
    """Return what to call instead of a function, with the same bound arguments, if there is any."""
    if isinstance(function, partial):
        other = exchanged(function.func, functions)
        return None if other is None else partial(other, *function.args, **function.keywords)
    replacement: Function | None = row_of(functions, function)
    return replacement
