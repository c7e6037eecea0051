"""Functions and blocks of which Dask finds out the same each time.

Functions of users are called as ever, since they may do more than return a block. So is what
holds blocks of other types than NumPy's and CuPy's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from dask.utils import typename

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
from graph_opt.dask_graph.members import is_known
from graph_opt.dask_graph.parse import unwrapped
from graph_opt.dask_graph.recipes import Together
from graph_opt.model.layout import CONTAINERS

Function = Callable[..., Any]

MOST = 4096
"""Number of functions of which it is kept whether they are known."""

VALUES = {bool, int, float, complex, str, bytes, type(None)}
"""Types of arguments that are compared by their values, besides NumPy's own."""

META = "meta"
"""The keyword of an array of which Dask's functions read the type alone."""

LASTING = {BuiltinFunctionType, np.ufunc, type(np.sum)}
"""Types of functions that are not created anew each time."""

CONSTANTS = {
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis)),
    *(range, methodcaller, Alias, TaskRef),
}
"""Types of values that nobody can change, besides NumPy's own."""


class UnknownError(Exception):
    """The answer may not be the same again."""


def is_operator(function: Any) -> bool:
    """Whether the values of floats do not count for a function's dtype (NEP 50)."""
    return type(function) is np.ufunc or getattr(function, "__module__", "") == "_operator"


def kind_of(block: Any) -> Hashable:
    """Return type, dtype and number of axes of a block."""
    if not is_block(block) or block.dtype.metadata is not None:
        raise UnknownError
    return type(block), block.dtype, block.ndim


def is_block(value: Any) -> bool:
    """Whether a value is a block of NumPy or CuPy."""
    return typename(type(value)) in CONTAINERS


def is_lasting(function: Any) -> bool:
    """Whether a function is not created anew each time."""
    kind = type(function)
    return kind in LASTING or (kind is FunctionType and "<" not in function.__qualname__)


def is_known_function(function: Any) -> bool:
    """Whether a function is one of the modules of known packages."""
    return is_lasting(function) and _is_of_module(function)


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
    if kind in (list, set):
        return all(map(is_stateless, value))
    if kind is dict:
        return all(map(is_stateless, value.values()))
    if kind is partial or kind is curry:
        options = (each for name, each in value.keywords.items() if name != META)
        return all(map(is_stateless, (value.func, value.args, *options)))
    if kind is Compose:
        return all(map(is_stateless, (value.first, *value.funcs)))
    if kind is Together:
        return all(map(is_stateless, value.tasks))
    if kind is DataNode:
        return is_constant(value.value)
    if isinstance(value, Task):
        return all(map(is_stateless, (value.func, value.args, value.kwargs)))
    if kind is tuple:
        return all(map(is_stateless, value))
    return is_constant(value)


def is_constant(value: Any) -> bool:
    """Whether nobody can change a value, or what it holds."""
    kind = type(value)
    if kind in (tuple, frozenset):
        return all(map(is_constant, value))
    if kind is slice:
        return all(map(is_constant, (value.start, value.stop, value.step)))
    if isinstance(value, type):
        return _is_of_module(value)
    if kind in CONSTANTS or isinstance(value, np.dtype | np.generic):
        return True
    if is_block(value):
        return bool(value.size == 0)  # the meta of an array
    return is_known_function(value) or _keeps_axes(value)


def _keeps_axes(function: Any) -> bool:
    """Whether it is Dask's wrapper of a function of NumPy, which pickle creates anew."""
    code = getattr(function, "__code__", None)
    if code is None or code != getattr(argmax, "__code__", None):
        return False
    return all(is_known_function(cell.cell_contents) for cell in function.__closure__)


@lru_cache(MOST)
def _is_of_module(function: Any) -> bool:
    if not is_known(function):
        return False
    return unwrapped(named(function)) is function  # Dask binds a curry to the name of one


def named(value: Any) -> Any:
    """Return what the module of a function or class has under its name, ``None`` if nothing."""
    found: Any = sys.modules.get(value.__module__)
    for name in (getattr(value, "__qualname__", None) or value.__name__).split("."):  # of a ufunc
        found = getattr(found, name, None)
    return found
