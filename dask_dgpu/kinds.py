"""Functions on arrays of either kind: Dask's, or expressions of the package dask_array."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from dask.array.core import Array

Function = TypeVar("Function", bound=Callable[..., Any])


def is_expression(value: Any) -> bool:
    """Whether a value is an array of dask_array."""
    module = sys.modules.get("dask_array._collection")
    return module is not None and isinstance(value, module.Array)


def as_dasks(value: Any) -> Any:
    """Return a value with arrays of Dask in place of dask_array's, also in lists and tuples."""
    if is_expression(value):
        from graph_opt.expressions.reader import as_dask

        return as_dask(value.expr)
    return _mapped(as_dasks, value)


def as_expressions(value: Any) -> Any:
    """Return a value with arrays of dask_array in place of Dask's, also in lists and tuples."""
    if isinstance(value, Array):
        from graph_opt.expressions.collection import from_dask

        return from_dask(value)
    return _mapped(as_expressions, value)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    values = list(map(function, value))
    if all(map(lambda new, old: new is old, values, value)):
        return value
    return value._make(values) if hasattr(value, "_make") else type(value)(values)


def of_either_kind(function: Function) -> Function:
    """Wrap a function of arrays of Dask: given arrays of dask_array, it returns such arrays."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _called(function, args, kwargs, lambda each: each)

    return cast(Function, call)


def of_functions_of_either_kind(function: Function) -> Function:
    """Wrap a function of arrays and functions: these too get and return arrays of dask_array."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _called(function, args, kwargs, taking_expressions)

    return cast(Function, call)


def _called(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    adapt: Callable[[Any], Any],
) -> Any:
    values = (*args, *kwargs.values())
    read = as_dasks(values) if "dask_array" in sys.modules else values
    if read is values:
        return function(*args, **kwargs)
    read = list(map(adapt, read))
    named = dict(zip(kwargs, read[len(args) :], strict=True))
    return as_expressions(function(*read[: len(args)], **named))


def taking_expressions(function: Any) -> Any:
    """Wrap a user's function of dask_array's arrays to one of Dask's; other values stay."""
    if hasattr(function, "of_dasks"):  # of ``jit``, which keeps its programs
        return function.of_dasks
    if not callable(function):
        return function

    @wraps(function)
    def call(*args: Any) -> Any:
        return as_dasks(function(*as_expressions(args)))

    return call
