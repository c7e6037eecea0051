"""One kernel for a user's own function.

The function runs once with objects that record what it does. What they recorded is an expression,
which a device evaluates as one kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from dask.tokenize import tokenize
from dask.utils import typename

from dask_dgpu.arguments import expected
from dask_dgpu.kernels.fused import evaluate
from dask_dgpu.kernels.fused.tracer import Trace, Traced
from graph_opt.dask_graph.sent import named
from graph_opt.model.expression import Expression
from graph_opt.model.layout import CONTAINERS

Array = Any

MOST_TRACES = 64
"""Of one function: then all are forgotten. Values of other arguments than arrays may vary."""

logger = logging.getLogger(__name__)


def fuse(f: Callable[..., Any]) -> Fused:
    """Compile a function of arrays to one kernel.

    Parameters
    ----------
    f : callable
        A pure function made of operators, ufuncs, reductions and other functions of NumPy, such as
        ``where``, and of ``astype``, transposes and new axes. It returns an array or a tuple of
        arrays.

    Returns
    -------
    Fused
        A function of the same arguments, for ``map_blocks`` or for arrays.

    Raises
    ------
    TypeError
        If ``f`` is not callable.

    See Also
    --------
    gelu : A function that needs no ``fuse``.

    Notes
    -----
    ``f`` runs once, without values, for each combination of dtypes and numbers of axes. So a random
    number or a global variable keeps the value that it has at that time. NumPy arrays that ``f``
    finds outside are read in each call. On NumPy blocks results have the bits of ``f`` itself, but
    sums may be more exact.

    If ``f`` needs values, writes in place or calls other functions, it is called for each block as
    it is, and the logger ``dask_dgpu.array.fuse`` says why, once.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu, numpy as np
    >>> @dgpu.fuse
    ... def smooth(x):
    ...     return np.where(x > 0, x, np.exp(x) - 1)
    >>> da.arange(-1.0, 2.0, chunks=2).map_blocks(smooth).compute().round(4).tolist()
    [-0.6321, 0.0, 1.0]
    """
    if not callable(f):
        expected("f", "a function", f, TypeError)
    return Fused(f)


class _Traced(NamedTuple):
    """What a function does: its expression, arrays from outside, and if it returns a tuple."""

    expression: Expression
    captured: list[Array]
    several: bool


class Fused:
    """A function that is evaluated as one kernel. :func:`fuse` makes it.

    Parameters
    ----------
    f : callable
        The function itself.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        update_wrapper(self, f, updated=())
        self.f = f
        self._traces: dict[Any, _Traced | None] = {}
        self._logged = False

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return what the function returns."""
        arrays = [argument for argument in arguments if _is_array(argument)]
        traced = self._trace(arguments, options) if arrays else None
        if traced is None:
            return self.f(*arguments, **options)
        results = evaluate(traced.expression, [*arrays, *traced.captured])
        return results if traced.several else results[0]

    @property
    def is_stateless(self) -> bool:
        """Whether the function stays the same: one of a module may be sent again, edited.

        What is no function, such as a partial, may have one of a module.
        """
        return type(self.f) is FunctionType and named(self.f) is not self.f

    def __reduce__(self) -> tuple[Any, ...]:
        return Fused, (self.f,)

    def __dask_tokenize__(self) -> Any:
        return "dgpu.fuse", tokenize(self.f)

    def __repr__(self) -> str:
        return f"fuse({getattr(self.f, '__name__', self.f)})"

    def _trace(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> _Traced | None:
        """Return what the function does with such arguments, or None if that is not known."""
        kinds = [
            (argument.dtype, argument.ndim)
            if _is_array(argument)
            else (type(argument), repr(argument))
            for argument in arguments
        ]
        key = (*kinds, repr(sorted(options.items())) if options else "")
        if key not in self._traces:
            if len(self._traces) >= MOST_TRACES:
                self._traces.clear()
            self._traces[key] = self._traced(arguments, options)
        return self._traces[key]

    def _traced(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> _Traced | None:
        trace = Trace()
        stand_ins = [
            trace.input(argument) if _is_array(argument) else argument for argument in arguments
        ]
        try:
            result = self.f(*stand_ins, **options)
            results = result if isinstance(result, tuple) else (result,)
            if not any(isinstance(result, Traced) for result in results):
                trace.refuse(f"the result is of type {type(result).__name__}")
            expression = trace.expression(results)
        except Exception as error:
            trace.reason = trace.reason or f"{type(error).__name__}: {error}"
        if trace.reason is None:
            return _Traced(expression, trace.captured, isinstance(result, tuple))
        if not self._logged:
            self._logged = True
            logger.warning("%r calls the function as it is: %s", self, trace.reason)
        return None


def _is_array(value: Any) -> bool:
    """Whether a value is a block of NumPy or CuPy."""
    return type(value) is np.ndarray or typename(type(value)) in CONTAINERS
