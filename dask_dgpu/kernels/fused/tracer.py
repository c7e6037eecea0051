"""Traces of functions: what they do with arrays, as an expression."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from dask_dgpu.kernels.fused.nodes import FUNCTIONS, node_value
from dask_dgpu.kernels.fused.reductions import REDUCTIONS
from graph_opt.model.expression import Apply, Cast, Constant, Expression, Input, Node, Reduce, View

Array = Any

REDUCING = {
    "add": "sum",
    "multiply": "prod",
    "minimum": "min",
    "maximum": "max",
    "logical_and": "all",
    "logical_or": "any",
}
"""The reductions that are ``reduce`` of a ufunc."""

RENAMED = {"amin": "min", "amax": "max", "around": "round"}
OPTIONS = {"dtype", "ddof", "decimals"}


class UntraceableError(TypeError):
    """A function does what an expression cannot say."""


class Trace:
    """An expression that grows while a function runs.

    Each node has a sample, an array of length 1 along all axes: it says dtype and number of axes.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.samples: list[Any] = []
        self.captured: list[Array] = []  # arrays that the function found outside
        self.arguments = 0
        self.reason: str | None = None

    def input(self, array: Array) -> Traced:
        """Return an argument."""
        self.arguments += 1
        return self._input(self.arguments - 1, array)

    def add(self, node: Node) -> Traced:
        """Add a node; raise what NumPy raises for these dtypes."""
        samples = [self.samples[of] for of in node.arguments]
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            sample = node_value(node, samples)
        return self.append(node, sample)

    def append(self, node: Node, sample: Any) -> Traced:
        """Add a node with its sample."""
        self.nodes.append(node)
        self.samples.append(sample)
        return Traced(self, len(self.nodes) - 1)

    def lift(self, value: Any) -> int:
        """Return the node of an operand."""
        if isinstance(value, Traced):
            return value.node if value.trace is self else self.refuse("traces are mixed")
        if value is None or isinstance(value, bool | int | float | complex | np.generic):
            return self.append(Constant(value), value).node
        if type(value) is np.ndarray:
            self.captured.append(value)
            return self._input(self.arguments + len(self.captured) - 1, value).node
        return self.refuse(f"an operand is of type {type(value).__name__}")

    def apply(self, name: str, operands: Sequence[Any], options: dict[str, Any]) -> Traced:
        """Add an elementwise function of NumPy."""
        if name not in FUNCTIONS or not options.keys() <= OPTIONS:
            self.refuse(f"numpy.{name} with {len(operands)} arguments {' '.join(options)}".strip())
        arguments = tuple(map(self.lift, operands))
        return self.add(Apply(name, arguments, tuple(sorted(options.items()))))

    def reduce(
        self, name: str, operand: Traced, axis: Any = None, keepdims: Any = False, **options: Any
    ) -> Traced:
        """Add a reduction of NumPy."""
        if not options.keys() <= OPTIONS:
            self.refuse(f"numpy.{name} with {', '.join(options)}")
        ndim = operand.ndim
        axes = range(ndim) if axis is None else np.atleast_1d(axis).tolist()
        numbers = tuple(sorted({axis % ndim for axis in axes if -ndim <= axis < ndim}))
        if len(numbers) != len(axes) or (name.startswith("arg") and len(axes) not in (1, ndim)):
            raise np.exceptions.AxisError(f"axis {axis} is not of an array with {ndim} axes")
        given = tuple(sorted((key, value) for key, value in options.items() if value is not None))
        return self.add(Reduce(name, operand.node, numbers, bool(keepdims), given))

    def view(self, operand: Traced, axes: Sequence[int | None]) -> Traced:
        """Add a view."""
        return self.add(View(operand.node, tuple(axes)))

    def refuse(self, reason: str) -> NoReturn:
        """Raise, and remember why: the function may catch the error."""
        self.reason = self.reason or reason
        raise UntraceableError(reason)

    def expression(self, results: Sequence[Any]) -> Expression:
        """Return the expression of some results."""
        return Expression(tuple(self.nodes), tuple(map(self.lift, results)))

    def _input(self, at: int, array: Array) -> Traced:
        return self.append(Input(at), np.ones((1,) * array.ndim, array.dtype))


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Traced, *arguments: Any, **options: Any) -> NoReturn:
        self.trace.refuse(f"{name} needs values")

    return refuse


class Traced(NDArrayOperatorsMixin):
    """A node of a trace; it behaves as the array that it stands for, without values.

    Parameters
    ----------
    trace : Trace
        Its trace.
    node : int
        Its number.
    """

    __array_priority__ = 1000
    __bool__ = __float__ = __int__ = __complex__ = __index__ = _refused("a Python number")
    __array__ = __len__ = __iter__ = __setitem__ = __contains__ = _refused("an array's content")

    def __init__(self, trace: Trace, node: int) -> None:
        self.trace = trace
        self.node = node

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the array."""
        return np.asarray(self.trace.samples[self.node]).dtype

    @property
    def ndim(self) -> int:
        """That of the array."""
        return int(np.ndim(self.trace.samples[self.node]))

    def __getattr__(self, name: str) -> Any:
        if name in REDUCTIONS and not name.startswith(("nan", "count")):
            return lambda axis=None, **options: self.trace.reduce(name, self, axis, **options)
        if name in ("real", "imag"):
            return self.trace.apply(name, [self], {})
        if name in ("conj", "conjugate"):
            return lambda: self.trace.apply("conjugate", [self], {})
        if name.startswith("__"):
            raise AttributeError(name)
        return self.trace.refuse(f"attribute {name}")

    def astype(self, dtype: Any) -> Traced:
        """Return the array in another dtype."""
        return self.trace.add(Cast(self.node, np.dtype(dtype).str))

    @property
    def T(self) -> Traced:
        """The transpose."""
        return self.transpose()

    def transpose(self, *axes: Any) -> Traced:
        """Return a view with axes in another order."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return self.trace.view(self, _order(order or None, self.ndim))

    def clip(self, min: Any = None, max: Any = None) -> Traced:
        """Return values within bounds."""
        return self.trace.apply("clip", [self, min, max], {})

    def round(self, decimals: int = 0) -> Traced:
        """Return rounded values."""
        return self.trace.apply("round", [self], {"decimals": decimals})

    def __getitem__(self, index: Any) -> Traced:
        each = index if isinstance(index, tuple) else (index,)
        known = [one for one in each if one is None or one is Ellipsis or one == slice(None)]
        named = sum(1 for one in known if isinstance(one, slice))
        if len(known) < len(each) or known.count(Ellipsis) > 1 or named > self.ndim:
            self.trace.refuse("indexing other than with new axes")
        if Ellipsis not in known:
            known.append(Ellipsis)
        at = known.index(Ellipsis)
        known[at : at + 1] = [slice(None)] * (self.ndim - named)
        axes = iter(range(self.ndim))
        return self.trace.view(self, [None if one is None else next(axes) for one in known])

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Traced:
        name = ufunc.__name__
        if "out" in options:
            self.trace.refuse(f"in-place {name}")
        if method == "__call__":
            return self.trace.apply(name, inputs, options)
        if method == "reduce" and name in REDUCING:
            options.setdefault("axis", 0)
            return self.trace.reduce(REDUCING[name], inputs[0], **options)
        return self.trace.refuse(f"numpy.{name}.{method}")

    def __array_function__(
        self, function: Any, types: Any, arguments: Any, options: dict[str, Any]
    ) -> Traced:
        name = RENAMED.get(function.__name__, function.__name__)
        if options.get("out") is not None:
            self.trace.refuse(f"in-place {name}")
        if name in REDUCTIONS and isinstance(arguments[0], Traced) and len(arguments) <= 2:
            return self.trace.reduce(name, *arguments, **options)
        if name == "transpose" and not options:
            return arguments[0].transpose(*arguments[1:])
        if name == "clip":
            if len(arguments) == 1 and options.keys() <= {"min", "max"}:
                options = {f"a_{bound}": options.get(bound) for bound in ("min", "max")}
            return self.trace.apply(name, _clipped(*arguments, **options), {})
        if name == "round" and len(arguments) == 2:
            return self.trace.apply(name, arguments[:1], {"decimals": arguments[1]})
        if name in FUNCTIONS and len(arguments) == FUNCTIONS[name]:
            return self.trace.apply(name, arguments, options)
        return self.trace.refuse(f"numpy.{name}")


def _clipped(a: Any, a_min: Any, a_max: Any, *, out: None = None) -> tuple[Any, Any, Any]:
    """Return the operands of ``clip``; raise for arguments that an expression cannot say."""
    return a, a_min, a_max


def _order(axes: Any, ndim: int) -> tuple[int, ...]:
    """Return the order of axes of a transpose; NumPy raises if there is none."""
    given = tuple(range(ndim))[::-1] if axes is None else axes
    np.empty((1,) * ndim).transpose(given)
    return tuple(int(axis) % ndim for axis in given)
