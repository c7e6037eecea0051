"""Elementwise functions that Dask's layers call, as nodes of expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graph_opt.dask_graph.internals import _enforce_dtype, _select, _sqrt, astype
from graph_opt.dask_graph.nodes import Nodes, Operand
from graph_opt.dask_graph.parse import DTYPES
from graph_opt.model.expression import Cast, View
from graph_opt.model.parameter import Parameter

OPERATORS: Mapping[Any, str] = {
    operator.add: "add",
    operator.sub: "subtract",
    operator.mul: "multiply",
    operator.truediv: "divide",
    operator.floordiv: "floor_divide",
    operator.mod: "remainder",
    operator.neg: "negative",
    operator.pos: "positive",
    operator.abs: "absolute",
    abs: "absolute",
    operator.lt: "less",
    operator.le: "less_equal",
    operator.gt: "greater",
    operator.ge: "greater_equal",
    operator.eq: "equal",
    operator.ne: "not_equal",
    operator.and_: "bitwise_and",
    operator.or_: "bitwise_or",
    operator.xor: "bitwise_xor",
    operator.invert: "invert",
    operator.lshift: "left_shift",
    operator.rshift: "right_shift",
    _sqrt: "sqrt",
}
"""Names of NumPy's functions that equal these on arrays."""

FAST_POWERS: Mapping[tuple[type, float], tuple[str, str]] = {
    (int, 2): ("fciub", "square"),
    (float, 2.0): ("fc", "square"),
    (float, 0.5): ("fc", "sqrt"),
    (int, -1): ("fc", "reciprocal"),
    (float, -1.0): ("f", "reciprocal"),
}
"""What ``x ** exponent`` is for some kinds of ``x``; ``np.power`` differs in signs and dtype."""

PRODUCTS = (3, 4)
"""Exponents for which products are used: within two roundings of the power, in 1/25 of its time."""

MULTIPLIED = ("float32", "float64")
"""The dtypes of these powers: squares of half precision lose digits near 0."""

SCALARS = (bool, int, float, complex, np.number, np.bool_)


Arguments = Sequence[Any]
Options = dict[str, Any]
Reader = Callable[[Nodes, Arguments, Options], int | None]


def read_call(
    nodes: Nodes, function: Any, arguments: Arguments, options: Mapping[str, Any]
) -> int | None:
    """Add the call of a function by one of Dask's tasks, ``None`` if it is unknown.

    ``arguments`` are operands and scalars, or anything else.
    """
    if type(function) is partial and not function.args:
        return read_call(nodes, function.func, arguments, {**function.keywords, **options})
    try:
        reader = READERS.get(function)
    except TypeError:  # it cannot be hashed
        return None
    if reader is not None:
        return reader(nodes, arguments, dict(options))
    if options or not all(map(_is_operand, arguments)):
        return None
    name = OPERATORS.get(function) or _ufunc(function)
    return None if name is None else nodes.apply(name, *arguments)


def _ufunc(function: Any) -> str | None:
    """Return the name of an elementwise ufunc of NumPy with one result."""
    if not isinstance(function, np.ufunc) or function.nout != 1 or function.signature is not None:
        return None
    name = function.__name__
    return name if getattr(np, name, None) is function else None


def _is_operand(argument: Any) -> bool:
    return isinstance(argument, Operand) or _is_scalar(argument)


def _is_scalar(argument: Any) -> bool:
    return isinstance(argument, (*SCALARS, Parameter)) and (
        not isinstance(argument, np.generic) or argument.dtype.name in DTYPES
    )


def _pow(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
    if options or not all(map(_is_operand, arguments)):
        return None
    base, exponent = arguments
    if isinstance(base, Operand) and type(exponent) in (int, float):
        kinds, name = FAST_POWERS.get((type(exponent), exponent), ("", ""))
        if np.dtype(base.dtype).kind in kinds:
            return nodes.apply(name, base)
        if is_product(exponent, base.dtype):
            square = base.like(nodes.apply("square", base))
            return nodes.apply("multiply", square, base if exponent == 3 else square)
    return nodes.apply("power", base, exponent)


def is_product(exponent: Any, dtype: str) -> bool:
    """Whether products compute ``x ** exponent`` for ``x`` of this dtype."""
    return type(exponent) in (int, float) and exponent in PRODUCTS and dtype in MULTIPLIED


def _where(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
    known = len(arguments) == 3 and all(map(_is_operand, arguments)) and not options
    return nodes.apply("where", *arguments) if known else None


def _clip(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
    names = ("a", "a_min", "a_max")
    given = dict(zip(names, arguments, strict=False))
    bounds = {"min": "a_min", "max": "a_max"}
    given |= {bounds.get(name, name): value for name, value in options.items()}
    if not given.keys() <= set(names) or not isinstance(given["a"], Operand):
        return None
    array, low, high = (given.get(name) for name in names)
    known = all(bound is None or _is_operand(bound) for bound in (low, high))
    return nodes.apply("clip", array, low, high) if known else None


def _round(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
    given = dict(zip(("a", "decimals"), arguments, strict=False)) | options
    array, decimals = given.pop("a", None), given.pop("decimals", 0)
    if given or not isinstance(array, Operand) or type(decimals) is not int:
        return None
    return nodes.apply("round", array, decimals=decimals)


def _unary(name: str) -> Reader:
    """Return the reader of a function whose other arguments must be left at their defaults."""

    def read(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
        array, *others = (*arguments, *options.values())
        known = isinstance(array, Operand) and all(other is False or other == 0 for other in others)
        return nodes.apply(name, array) if known else None

    return read


def _fix(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
    known = len(arguments) == 1 and isinstance(arguments[0], Operand) and not options
    if not known or np.dtype(arguments[0].dtype).kind != "f":
        return None
    return nodes.apply("trunc", *arguments)


def _imaginary(comparison: str) -> Reader:
    """Return the reader of a function that compares the imaginary part with 0."""

    def read(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
        if len(arguments) != 1 or not isinstance(arguments[0], Operand) or options:
            return None
        part = arguments[0].like(nodes.apply("imag", *arguments))
        return nodes.apply(comparison, part, 0)

    return read


def _with_options(name: str, arity: int, *known: str) -> Reader:
    """Return the reader of a function of arrays whose known options are numbers."""

    def read(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
        arrays = any(isinstance(each, Operand) for each in arguments)
        fits = len(arguments) == arity and all(map(_is_operand, arguments)) and arrays
        if not fits or not options.keys() <= {*known}:
            return None
        if not all(type(option) in (bool, int, float) for option in options.values()):
            return None
        return nodes.apply(name, *arguments, **options)

    return read


def _selected(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
    """Read ``select``: conditions, as many choices, and a default, as calls of ``where``."""
    default, half = options.pop("default", 0), len(arguments) // 2
    if options or not all(isinstance(each, Operand) for each in arguments):
        return None
    conditions, choices = arguments[:half], arguments[half:]
    dtype = np.result_type(*(choice.dtype for choice in choices))
    if any(each.dtype != "bool" for each in conditions) or not _is_scalar(default):
        return None
    try:
        if np.result_type(dtype, default) != dtype:
            return None
        found: Any = np.full((), default, dtype)[()]
    except (OverflowError, TypeError):
        return None
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        if choice.dtype != dtype.name:
            choice = choice.like(nodes.add(Cast(choice.node, dtype.name)))
        found = choice.like(nodes.apply("where", condition, choice, found))
    return int(found.node)


def _astype(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
    dtype, _ = options.pop("astype_dtype", None), options.pop("copy", None)
    if options.pop("casting", "unsafe") != "unsafe" or options or dtype is None:
        return None
    return _cast(nodes, arguments[0], dtype)


def _cast(nodes: Nodes, array: Any, dtype: Any) -> int | None:
    name = np.dtype(dtype).name
    known = isinstance(array, Operand) and name in DTYPES and np.dtype(dtype).isnative
    return nodes.add(Cast(array.node, name)) if known else None


def _transpose(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
    array, *others = arguments
    axes = options.pop("axes", others[0] if others else None)
    if options or len(others) > 1 or not isinstance(array, Operand):
        return None
    order = range(array.ndim)[::-1] if axes is None else (axis % array.ndim for axis in axes)
    return nodes.add(View(array.node, tuple(order)))


def _swapaxes(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
    known = len(arguments) == 1 and isinstance(arguments[0], Operand)
    if not known or options.keys() != {"axis1", "axis2"}:
        return None
    (array,), one, two = arguments, options["axis1"], options["axis2"]
    order = [*range(array.ndim)]
    order[one], order[two] = order[two], order[one]
    return nodes.add(View(array.node, tuple(order)))


def _enforced(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
    """Read a function whose result Dask casts if NumPy's dtype is not the declared one."""
    dtype = np.dtype(options.pop("enforce_dtype"))
    function = options.pop("enforce_dtype_function")
    found = read_call(nodes, function, arguments, options)
    if found is None:
        return None
    try:
        own = _sample(function, arguments, options).dtype
    except Exception:
        return None
    if own == dtype:
        return found
    if dtype.kind == "O" or not np.can_cast(own, dtype, "same_kind"):
        return None
    return _cast(nodes, Operand(found, own.name, 0), dtype)


def _sample(function: Any, arguments: Arguments, options: Options) -> Any:
    """Call a function with ones of the declared dtypes."""
    given = [each.sample if isinstance(each, Parameter) else each for each in arguments]
    ones = [
        np.ones((1,) * max(1, each.ndim), each.dtype) if isinstance(each, Operand) else each
        for each in given
    ]
    with np.errstate(all="ignore"):
        return np.asarray(function(*ones, **options))


READERS: Mapping[Any, Reader] = {
    operator.pow: _pow,
    np.where: _where,
    np.clip: _clip,
    np.round: _round,
    np.around: _round,
    np.real: _unary("real"),
    np.imag: _unary("imag"),
    np.angle: _unary("angle"),
    np.nan_to_num: _with_options("nan_to_num", 1, "nan", "posinf", "neginf"),
    np.isclose: _with_options("isclose", 2, "rtol", "atol", "equal_nan"),
    np.sinc: _with_options("sinc", 1),
    np.i0: _with_options("i0", 1),
    _select: _selected,
    np.fix: _fix,
    np.isreal: _imaginary("equal"),
    np.iscomplex: _imaginary("not_equal"),
    np.transpose: _transpose,
    np.swapaxes: _swapaxes,
    astype: _astype,
    _enforce_dtype: _enforced,
}
"""Functions with options, or with a meaning that depends on their arguments."""
