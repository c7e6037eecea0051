"""Functions of NumPy and Dask that layers call, as nodes of expressions.

Dask reduces in a tree: a chunk function for each block, then aggregates of several results. If an
axis has one block, chunk function and aggregate together are one reduction of NumPy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from graph_opt.dask_graph.internals import (
    Compose,
    _concatenate2,
    _enforce_dtype,
    _nanargmax,
    _nanargmin,
    _nanmax_skip,
    _nanmin_skip,
    _sqrt,
    arg_agg,
    arg_chunk,
    argmax,
    argmin,
    astype,
    chunk_max,
    chunk_min,
    mean_agg,
    mean_chunk,
    moment_agg,
    moment_chunk,
    nannumel,
)
from graph_opt.dask_graph.parse import DTYPES, row_of
from graph_opt.model.expression import Apply, Cast, Constant, Node, Reduce, View
from graph_opt.model.layout import ArrayNode
from graph_opt.model.names import Parameter


@dataclass(frozen=True)
class Operand:
    """A node among the arguments of a function, with the declared dtype and number of axes."""

    node: int
    dtype: str
    ndim: int

    @classmethod
    def of(cls, array: ArrayNode, number: int) -> Operand:
        """Return the node of a block of an array."""
        return cls(number, array.dtype, array.ndim)

    def like(self, number: int) -> Operand:
        """Return a node that is computed from this one."""
        return replace(self, node=number)


@dataclass
class Nodes:
    """The nodes of an expression so far; equal nodes are one."""

    nodes: list[Node] = field(default_factory=list)
    known: dict[Any, int] = field(default_factory=dict)

    def add(self, node: Node) -> int:
        """Return the number of a node, perhaps an earlier one; 0.0 equals -0.0, and 1 True."""
        if isinstance(node, Constant):
            key: Any = type(node.value), repr(node.value)
        else:
            key = node, repr(getattr(node, "options", ()))
        if key not in self.known:
            self.known[key] = len(self.nodes)
            self.nodes.append(node)
        return self.known[key]

    def number(self, argument: Any) -> int:
        """Return the number of an argument that is a node or a scalar."""
        return argument.node if isinstance(argument, Operand) else self.add(Constant(argument))

    def apply(self, function: str, *arguments: Any, **options: Any) -> int:
        """Add a call of a function of NumPy's."""
        numbers = tuple(map(self.number, arguments))
        return self.add(Apply(function, numbers, tuple(sorted(options.items()))))


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
    reader = row_of(READERS, function)
    if reader is not None:
        return reader(nodes, arguments, dict(options))
    if options or not all(map(_is_operand, arguments)):
        return None
    name = row_of(OPERATORS, function) or _ufunc(function)
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
        if exponent in PRODUCTS and base.dtype in MULTIPLIED:
            square = base.like(nodes.apply("square", base))
            return nodes.apply("multiply", square, base if exponent == 3 else square)
    return nodes.apply("power", base, exponent)


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


def _with_options(name: str, arity: int, *known: str) -> Reader:
    """Return the reader of a function of arrays whose known options are numbers."""

    def read(nodes: Nodes, arguments: Arguments, options: Options) -> int | None:
        arrays = any(isinstance(argument, Operand) for argument in arguments)
        fits = len(arguments) == arity and all(map(_is_operand, arguments)) and arrays
        if not fits or not options.keys() <= {*known}:
            return None
        if not all(type(option) in (bool, int, float) for option in options.values()):
            return None
        return nodes.apply(name, *arguments, **options)

    return read


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
    number = read_call(nodes, function, arguments, options)
    if number is None:
        return None
    try:
        own = _sample(function, arguments, options).dtype
    except Exception:
        return None
    if own == dtype:
        return number
    if dtype.kind == "O" or not np.can_cast(own, dtype, "same_kind"):
        return None
    return _cast(nodes, Operand(number, own.name, 0), dtype)


def _sample(function: Any, arguments: Arguments, options: Options) -> Any:
    """Call a function with ones of the declared dtypes."""
    given = [
        argument.sample if isinstance(argument, Parameter) else argument for argument in arguments
    ]
    ones = [
        np.ones((1,) * max(1, each.ndim), each.dtype) if isinstance(each, Operand) else each
        for each in given
    ]
    with np.errstate(all="ignore"):
        return np.asarray(function(*ones, **options))


READERS: Mapping[Any, Reader] = {
    operator.pow: _pow,
    np.where: _with_options("where", 3),
    np.clip: _clip,
    np.round: _round,
    np.around: _round,
    np.real: _unary("real"),
    np.imag: _unary("imag"),
    np.angle: _unary("angle"),
    np.nan_to_num: _with_options("nan_to_num", 1, "nan", "posinf", "neginf"),
    np.isclose: _with_options("isclose", 2, "rtol", "atol", "equal_nan"),
    np.sinc: _with_options("sinc", 1),
    np.transpose: _transpose,
    np.swapaxes: _swapaxes,
    astype: _astype,
    _enforce_dtype: _enforced,
}
"""Functions with options, or with a meaning that depends on their arguments."""


SUMS: Mapping[Any, str] = {
    np.sum: "sum",
    np.prod: "prod",
    np.nansum: "nansum",
    np.nanprod: "nanprod",
    np.any: "any",
    np.all: "all",
    chunk_min: "min",
    chunk_max: "max",
    _nanmin_skip: "nanmin",
    _nanmax_skip: "nanmax",
}
"""Chunk functions that return an array."""

AGGREGATES: Mapping[Any, tuple[str, ...]] = {
    np.sum: ("sum", "nansum"),
    np.prod: ("prod", "nanprod"),
    np.any: ("any",),
    np.all: ("all",),
    np.min: ("min",),
    np.max: ("max",),
    _nanmin_skip: ("nanmin",),
    _nanmax_skip: ("nanmax",),
    mean_agg: ("mean",),
    moment_agg: ("var",),
    arg_agg: ("argmin", "argmax"),
}
"""The reductions that an aggregate completes."""

ARGUMENTS: Mapping[Any, str] = {
    argmin: "argmin",
    argmax: "argmax",
    _nanargmin: "nanargmin",
    _nanargmax: "nanargmax",
}

Given = tuple[tuple[str, Any], ...]

EXTREMES: Mapping[str, tuple[str, float]] = {
    "argmin": ("min", np.inf),
    "argmax": ("max", -np.inf),
    "nanargmin": ("nanmin", np.inf),
    "nanargmax": ("nanmax", -np.inf),
}
"""The values that these look for, and what stands for NaN in the forms that ignore it."""


@dataclass(frozen=True)
class Chunked:
    """What a chunk function computes of one block: a part of this reduction of NumPy."""

    function: str
    axes: tuple[int, ...]
    options: Given = ()
    searched: Any = None  # the dtype of extreme values

    @property
    def dtype(self) -> Any:
        """The dtype in which it adds, ``None`` for that of NumPy."""
        return dict(self.options).get("dtype")

    @property
    def fields(self) -> Mapping[str, tuple[Any, tuple[int, ...]]]:
        """The dtypes and further axes of the arrays in Dask's partial result, if it is not one."""
        if self.function in EXTREMES:
            return {"vals": (self.searched, ()), "arg": ("int64", ())}
        total = {"total": (self.dtype, ())}
        match self.function:
            case "mean" | "nanmean":
                return {"n": (self.dtype, ()), **total}
            case "var" | "nanvar":
                return {**total, "n": ("int64", ()), "M": (self.dtype, (1,))}
        return {}

    def parts(self, nodes: Nodes, array: Operand) -> tuple[int, ...]:
        """Add the arrays of which Dask's partial result is made; mostly this is one array.

        Of means and variances these are the sum, the count if NaN are ignored, and the variance.
        """
        if self.function == "mean":
            return (self._add(nodes, "sum", array),)
        if self.function == "nanmean":
            return self._add(nodes, "nansum", array), self._numbers(nodes, array, self.options)
        if self.function == "var":
            return self._add(nodes, "sum", array), self._add(nodes, "var", array)
        if self.function == "nanvar":
            return self._moment_ignoring_nan(nodes, array)
        if self.function in EXTREMES:
            return self._extremes(nodes, array)
        return (self._add(nodes, self.function, array),)

    def whole(self, nodes: Nodes, array: Operand, aggregate: Aggregate) -> int:
        """Add the whole reduction of one block."""
        options = dict(self.options) | ({"ddof": aggregate.ddof} if aggregate.ddof else {})
        made = tuple(sorted(options.items()))
        return nodes.add(Reduce(self.function, array.node, self.axes, aggregate.keepdims, made))

    def _add(self, nodes: Nodes, function: str, array: Operand) -> int:
        return nodes.add(Reduce(function, array.node, self.axes, True, self.options))

    def _numbers(self, nodes: Nodes, array: Operand, options: Given = ()) -> int:
        """Add the count of elements that are not NaN."""
        numbers = nodes.apply("invert", array.like(nodes.apply("isnan", array)))
        return nodes.add(Reduce("sum", numbers, self.axes, True, options))

    def _extremes(self, nodes: Nodes, array: Operand) -> tuple[int, ...]:
        """Add the extreme values and their places."""
        extreme, missing = EXTREMES[self.function]
        searched = array
        if self.function.startswith("nan"):
            is_nan = array.like(nodes.apply("isnan", array))
            searched = array.like(nodes.apply("where", is_nan, missing, array))
        place = self._add(nodes, self.function.removeprefix("nan"), searched)
        return self._add(nodes, extreme, array), place

    def _moment_ignoring_nan(self, nodes: Nodes, array: Operand) -> tuple[int, ...]:
        """Add the sum, the count and the squares around the mean."""
        total, count = self._add(nodes, "nansum", array), self._numbers(nodes, array)
        least = array.like(nodes.apply("maximum", array.like(count), 1))  # there may be only NaN
        mean = nodes.apply("divide", array.like(total), least)
        change = nodes.apply("subtract", array, array.like(mean))
        if np.dtype(array.dtype).kind == "c":
            change = nodes.apply("absolute", array.like(change))
        squares = nodes.apply("square", array.like(change))
        return total, count, self._add(nodes, "nansum", array.like(squares))


def bound(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a function and the arguments that are bound to it."""
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = {}
    while isinstance(function, partial):
        arguments = (*function.args, *arguments)
        options = {**function.keywords, **options}
        function = function.func
    return function, arguments, options


def read_chunk(function: Any, options: Mapping[str, Any], array: Operand) -> Chunked | None:
    """Read a chunk function of one array; it keeps the reduced axes."""
    function, arguments, given = bound(function)
    given |= options
    name = row_of(SUMS, function)
    axes, keepdims = _axes(given.pop("axis", None), array.ndim), given.pop("keepdims", None)
    if arguments or axes is None or keepdims is not True:
        return None
    if function is mean_chunk:
        sums = given.pop("sum", np.sum), given.pop("numel", None)
        name = {(np.sum, None): "mean", (np.nansum, nannumel): "nanmean"}.get(sums)
    elif function is moment_chunk:
        implicit = given.pop("implicit_complex_dtype", False)
        sums = given.pop("sum", np.sum), given.pop("numel", None)
        name = {(np.sum, None): "var", (np.nansum, nannumel): "nanvar"}.get(sums)
        if given.pop("order", 2) != 2:
            return None
        if np.dtype(array.dtype).kind == "c":
            if not implicit:
                return None
            given["dtype"] = None  # Dask's is that of the variance, which is real
    dtype = given.pop("dtype", "float64" if function in (mean_chunk, moment_chunk) else None)
    if name is None or given or (dtype is not None and np.dtype(dtype).name not in DTYPES):
        return None
    known = () if dtype is None else (("dtype", np.dtype(dtype).name),)
    return Chunked(name, axes, known)


def read_arg_chunk(function: Any, axis: Any, array: ArrayNode) -> Chunked | None:
    """Read the chunk function of ``argmin``, ``argmax`` or their forms that ignore NaN."""
    function, arguments, options = bound(function)
    axes, kind = _axes(axis, array.ndim), np.dtype(array.dtype).kind
    if function is not arg_chunk or len(arguments) != 2 or options or axes is None:
        return None
    name = _argument(arguments[1])
    if name is None or len(axes) not in (1, array.ndim) or (kind == "c" and "nan" in name):
        return None
    spelled = name if kind == "f" else name.removeprefix("nan")
    return Chunked(spelled, axes, searched=array.dtype)


def _argument(function: Any) -> str | None:
    """Return ``argmin`` or the like, also for a copy of Dask's function.

    Dask's ``argmin`` is a closure, so it is pickled by value, and the scheduler gets a copy.
    """
    for known, name in ARGUMENTS.items():
        if function is known or (
            isinstance(function, FunctionType)
            and getattr(known, "__wrapped__", None) is getattr(function, "__wrapped__", known)
            and known.__code__ == function.__code__
        ):
            return name
    return None


@dataclass(frozen=True)
class Aggregate:
    """The aggregate of one result of a chunk function."""

    keepdims: bool
    ddof: int = 0


def read_aggregate(function: Any, chunked: Chunked) -> Aggregate | None:
    """Read an aggregate of the results of a chunk function, ``None`` if both do not fit."""
    if isinstance(function, Compose):
        first, _, joined = bound(function.first)
        axes = _axes(joined.get("axes"), None)
        if first is not _concatenate2 or axes != chunked.axes or len(function.funcs) != 1:
            return None
        function = function.funcs[0]
    function, arguments, given = bound(function)
    completed = row_of(AGGREGATES, function) or ()
    axes, keepdims = _axes(given.pop("axis", None), None), given.pop("keepdims", None)
    if chunked.function not in completed or axes != chunked.axes or type(keepdims) is not bool:
        return None
    dtype, ddof = given.pop("dtype", None), given.pop("ddof", 0)
    if dtype is not None and chunked.dtype not in (None, np.dtype(dtype).name):
        return None
    if function is arg_agg:
        arguments = tuple(
            argument for argument in arguments if _argument(argument) != chunked.function
        )
    # NumPy's variance of fewer elements than ddof is not Dask's
    return None if arguments or given or ddof not in (0, 1) else Aggregate(keepdims, int(ddof))


def _axes(axis: Any, ndim: int | None) -> tuple[int, ...] | None:
    """Return axes in order; they count from the first unless ``ndim`` is known."""
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    if not axes or not all(isinstance(axis, int | np.integer) for axis in axes):
        return None
    if ndim is None:
        return tuple(sorted(map(int, axes)))
    return tuple(sorted(int(axis) % ndim for axis in axes))
