"""The value of one element in CUDA C++: straight-line code from an expression's nodes.

A node is written for each way it lies in the domain of a kernel: ``axes[i]`` is the axis of the
domain that axis ``i`` of the node runs along, or None for an axis of length 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.fused.device_functions import (
    call,
    converted,
    literal,
    stored_type,
    value_type,
)
from dask_dgpu.kernels.fused.kernel import Array
from dask_dgpu.kernels.fused.nodes import after_arguments
from dask_dgpu.kernels.fused.states import State
from dask_dgpu.kernels.fused.typed import Typed
from graph_opt.model.expression import Apply, Cast, Constant, Node, Reduce, View

Axes = tuple[int | None, ...]

FIXED = 64
"""Whole numbers up to this are written into the source; other constants are parameters.

So a step size that changes in each iteration does not compile a kernel each time.
"""


class Known(NamedTuple):
    """What is known of an expression for some blocks.

    ``arrays`` are the nodes in memory, ``reductions`` those with generated code.
    """

    nodes: Sequence[Node]
    node_types: Sequence[Typed]
    arrays: dict[int, Array]
    reductions: dict[int, tuple[Reduce, State]]

    def domain(self, at: int) -> tuple[tuple[int, ...], frozenset[int]]:
        """Return the shape that a reduction reads, and the axes that it reduces."""
        node, _ = self.reductions[at]
        shape = self.node_types[node.argument].shape
        return shape, frozenset(axis % len(shape) for axis in node.axes)


class Operand(NamedTuple):
    """An array that a kernel reads: a block, or the array of a node, and how it lies."""

    at: int
    node: int
    axes: Axes
    array: Array

    @property
    def name(self) -> str:
        """Its name in C++."""
        return f"in{self.at}"

    @property
    def kind(self) -> str:
        """The C++ type of its elements."""
        return stored_type(self.array.dtype)


class Context:
    """What all code of one kernel shares: operands, constants, and variables.

    Constants are parameters: their names and NumPy scalars, by dtype and bytes. ``given`` are the
    variables of nodes that the kernel itself has reduced, and how they lie.
    """

    def __init__(self, known: Known) -> None:
        self.nodes, self.node_types, self.arrays, self.reductions = known
        self.operands: dict[tuple[int, Axes], Operand] = {}
        self.constants: dict[tuple[Any, bytes], tuple[str, Any]] = {}
        self.given: dict[int, tuple[str, Axes]] = {}

    def operand(self, node: int, axes: Axes) -> str:
        """Return the name of an array to read."""
        new = Operand(len(self.operands), node, axes, self.arrays[node])
        return self.operands.setdefault((node, axes), new).name

    def constant(self, value: Any, dtype: np.dtype[Any]) -> str:
        """Return a number in C++."""
        number: Any = np.asarray(value)[()]
        whole = dtype.kind in "bc" or (abs(number) <= FIXED and number == int(number))
        if whole and not (number == 0 and np.signbit(number.real)):
            return literal(value, dtype)
        with np.errstate(all="ignore"):
            number = np.asarray(value).astype(dtype)[()]
        if dtype.name == "float16":
            number = np.float32(number)
        key = number.dtype, number.tobytes()
        name, _ = self.constants.setdefault(key, (f"c{len(self.constants)}", number))
        return name


class Misplaced(ValueError):
    """A value within a kernel is needed at a position other than its own."""


class Code:
    """Lines of C++ in one scope, with the variables that are known in it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.lines: list[str] = []
        self.used: set[str] = set()
        self._known: dict[tuple[int, Axes], str] = {}

    def value(self, at: int, axes: Axes) -> str:
        """Return the variable or literal of a node's value in its own dtype."""
        for key, read in after_arguments((at, axes), self._read, self._known):
            self._known[key] = self._written(*key, [self._known[each] for each in read])
        return self._known[at, axes]

    def _read(self, key: tuple[int, Axes]) -> list[tuple[int, Axes]]:
        """Return the arguments of a node that are no constants, and how they lie."""
        at, axes = key
        node, types = self.context.nodes[at], self.context.node_types
        if at in self.context.given or at in self.context.arrays:
            return []
        match node:
            case Cast(argument, _):
                return [(argument, axes)]
            case View(argument, chosen):
                places = {axis: axes[i] for i, axis in enumerate(chosen) if axis is not None}
                length = len(types[argument].shape)
                return [(argument, tuple(places.get(axis) for axis in range(length)))]
            case Apply():
                read = (of for of in node.arguments if not self._is_constant(of))
                return [(of, axes_below(axes, types[of].shape)) for of in read]
        return []

    def _is_constant(self, at: int) -> bool:
        return isinstance(self.context.nodes[at], Constant)

    def _written(self, at: int, axes: Axes, values: Sequence[str]) -> str:
        node, typed = self.context.nodes[at], self.context.node_types[at]
        if at in self.context.given:
            name, lies = self.context.given[at]
            if axes != lies:
                raise Misplaced
            return name
        if at in self.context.arrays:
            name = self.context.operand(at, axes)
            self.used.add(name)
            return self._variable(typed.dtype, f"loaded({name}.lane[j])")
        match node:
            case Constant(value):
                return self.context.constant(value, typed.dtype)
            case Cast(argument, _):
                below = self.context.node_types[argument]
                return self._variable(typed.dtype, converted(values[0], below.dtype, typed.dtype))
            case View():
                return values[0]
            case Apply():
                return self._variable(typed.dtype, self._applied(node, typed, values))
        raise TypeError(f"expected an elementwise node, got {node}")

    def _applied(self, node: Apply, typed: Typed, values: Sequence[str]) -> str:
        arguments: list[str | None] = []
        others = iter(values)
        for at, dtype in zip(node.arguments, typed.loop, strict=True):
            argument = self.context.nodes[at]
            if isinstance(argument, Constant):
                none = argument.value is None
                arguments.append(None if none else self.context.constant(argument.value, dtype))
            else:
                arguments.append(converted(next(others), self.context.node_types[at].dtype, dtype))
        return str(call(node, self.context.nodes, arguments, typed.loop, typed.dtype))

    def _variable(self, dtype: np.dtype[Any], value: str) -> str:
        # not const: NVRTC would evaluate the initializers of all variables below, each time again
        name = f"v{len(self.lines)}"
        self.lines.append(f"{value_type(dtype)} {name} = {value};")
        return name


def axes_below(axes: Axes, shape: Sequence[int]) -> Axes:
    """Return how an argument lies if its node lies along ``axes``; both broadcast."""
    first = len(axes) - len(shape)
    return tuple(axes[first + i] if n != 1 else None for i, n in enumerate(shape))
