"""Functions on blocks: dask_array has copies of Dask's, which the other readers know."""

from __future__ import annotations

from collections.abc import Callable
from dis import get_instructions
from functools import cache, partial
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

Function = Callable[..., Any]

MODULES = (
    "dask.array.chunk",
    "dask.array.core",
    "dask.array.creation",
    "dask.array.einsumfuncs",
    "dask.array.linalg",
    "dask.array.overlap",
    "dask.array.percentile",
    "dask.array.reductions",
    "dask.array.routines",
)
"""Modules of Dask with functions on blocks."""

REWRITTEN = {
    "_chunk_sum": "dask.array.routines",
    "_matmul": "dask.array.routines",
    "mean_chunk": "dask.array.reductions",
    "moment_chunk": "dask.array.reductions",
}
"""Functions that compute the same as Dask's of these modules, by other code."""


def dasks_own(function: Any) -> Any:
    """Return Dask's function of which dask_array has a copy; other functions and values as is."""
    if isinstance(function, partial):
        return partial(dasks_own(function.func), *function.args, **function.keywords)
    if not isinstance(function, FunctionType) or not function.__module__.startswith("dask_array."):
        return function
    if function.__name__ in REWRITTEN:
        return getattr(import_module(REWRITTEN[function.__name__]), function.__name__)
    return function if function.__closure__ else _copied(function)


@cache
def _copied(function: FunctionType) -> Function:
    """Return the function of Dask with the same name and code; the function itself if none has."""
    for module in MODULES:
        original = getattr(import_module(module), function.__name__, None)
        if isinstance(original, FunctionType) and is_copy(function, original):
            return original
    return function


def is_copy(function: FunctionType, other: FunctionType) -> bool:
    """Whether two functions have the same defaults and instructions."""
    mine, its = ((each.__defaults__, _text(each.__code__)) for each in (function, other))
    return mine == its


def _text(code: CodeType) -> Any:
    return [
        (
            instruction.opname,
            _text(instruction.argval)
            if isinstance(instruction.argval, CodeType)
            else repr(instruction.argval),
        )
        for instruction in get_instructions(code)
    ]
