"""What Dask finds out for each new array, remembered for functions that answer the same again.

To build an array Dask calls its function with empty blocks, for a meta, and with blocks of one
element, for a dtype. It reads the signature of the function, and pickles it for a token. These
took two fifths of the time in which a loop of small operations was built::

    x + y   ->   add, float32 of one axis, float32 of one axis   ->   an empty block of float32
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache, lru_cache, partial, wraps
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.functions import (
    MOST,
    VALUES,
    Function,
    UnknownError,
    is_block,
    is_known_function,
    is_lasting,
    is_operator,
    kind_of,
)

FLOATS = (float, complex, np.inexact)
"""Types of numbers whose values do not count for ufuncs and operators (NEP 50)."""


class _Answers:
    """Answers to questions about functions, and what they are called with."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def __call__(self, question: tuple[Any, ...], called: Any, answer: Function) -> Any:
        """Return the answer to a question, the same one again if all its parts are known.

        It is about a function that is ``called`` with arguments.
        """
        try:
            key = _key(question, is_operator(called))
            found = self._known.get(key, self)
        except (UnknownError, TypeError):  # or an argument cannot be hashed
            return answer()
        if found is self:
            found = answer()
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = found
        return found


@cache
def remembering_metas(compute_meta: Function) -> Function:
    """Wrap Dask's ``compute_meta`` so that it calls a known function once for each kind of blocks.

    The kind of a block is its type, dtype and number of axes.
    """

    @wraps(compute_meta)
    def compute(function: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        return known(
            (function, dtype, args, kwargs),
            kwargs.get("enforce_dtype_function", function),
            lambda: compute_meta(function, dtype, *args, **kwargs),
        )

    known = _Answers()
    return compute


@cache
def remembering_dtypes(apply_infer_dtype: Function) -> Function:
    """Wrap Dask's ``apply_infer_dtype`` in the same way; errors are not remembered."""

    @wraps(apply_infer_dtype)
    def infer(function: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> Any:
        return known(
            (function, tuple(args), kwargs, rest, more),
            function,
            lambda: apply_infer_dtype(function, args, kwargs, *rest, **more),
        )

    known = _Answers()
    return infer


@cache
def remembering_empty(meta_from_array: Function) -> Function:
    """Wrap Dask's ``meta_from_array`` so that it returns an array that is a meta already.

    Dask slices it and would get its like.
    """

    @wraps(meta_from_array)
    def empty(x: Any, ndim: int | None = None, dtype: Any = None) -> Any:
        is_meta = is_block(x) and x.shape and not any(x.shape)
        if is_meta and ndim in (None, x.ndim) and dtype in (None, x.dtype):
            return x
        return meta_from_array(x, ndim, dtype)

    return empty


@cache
def remembering_keywords(has_keyword: Function) -> Function:
    """Wrap Dask's ``has_keyword`` so that it reads the signature of a function once.

    Functions that are created anew each time are not remembered, nor what they hold.
    """
    known = lru_cache(MOST)(has_keyword)

    @wraps(has_keyword)
    def ask(function: Any, keyword: str) -> Any:
        bare = function
        while type(bare) is partial and not bare.args:
            bare = bare.func
        return known(bare, keyword) if is_lasting(bare) else has_keyword(function, keyword)

    return ask


@cache
def remembering(function_of: Function) -> Function:
    """Wrap a function of Dask of one argument so that it answers once for functions that last."""
    known = lru_cache(MOST)(function_of)

    @wraps(function_of)
    def ask(argument: Any) -> Any:
        return known(argument) if is_known_function(argument) else function_of(argument)

    return ask


@cache
def joining_layers(original: Function) -> Function:
    """Return ``HighLevelGraph.__init__`` that asks each class of layers once whether it is one.

    Dask asks each layer, in each of the graphs of a growing loop.
    """

    @wraps(original)
    def join(
        self: HighLevelGraph, layers: Any, dependencies: Any, key_dependencies: Any = None
    ) -> None:
        bare = {kind for kind in set(map(type, layers.values())) if not _is_layer(kind)}
        original(self, {}, dependencies, key_dependencies)
        self.layers = dict(layers)
        if bare:
            made = {k: MaterializedLayer(v) for k, v in layers.items() if type(v) in bare}
            self.layers |= made

    return join


def _key(value: Any, of_operator: bool) -> Hashable:
    """Return what is the same for all values that a known function answers alike."""
    kind = type(value)
    if kind is Array:
        return kind_of(value._meta)
    if kind is tuple:
        return tuple([_key(each, of_operator) for each in value])
    if of_operator and isinstance(value, FLOATS):
        return (kind,)
    if kind is float or kind is complex:
        return kind, repr(value)  # zeros have signs
    if kind in VALUES or is_known_function(value):
        return kind, value
    if kind is partial:
        return kind, *(_key(each, False) for each in (value.func, value.args, value.keywords))
    if kind is dict:
        return tuple([(name, _key(each, of_operator)) for name, each in value.items()])
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if isinstance(value, type) or (isinstance(value, np.dtype) and value.metadata is None):
        return kind, value
    return kind_of(value)


@cache
def _is_layer(kind: Any) -> bool:
    return issubclass(kind, Layer)
