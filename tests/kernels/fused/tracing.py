"""Expressions from functions written with NumPy's names: ``traced(lambda xp, x: xp.exp(x), 1)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graph_opt.model.expression import Apply, Cast, Constant, Expression, Input, Node, Reduce, View

Function = Callable[..., Any]


class Traced:
    """A node, with NumPy's operators and methods."""

    def __init__(self, nodes: list[Node], node: Node) -> None:
        self.nodes, self.at = nodes, len(nodes)
        nodes.append(node)

    def apply(self, name: str, *others: Any, **options: Any) -> Traced:
        return apply(self.nodes, name, self, *others, **options)

    def reduce(self, name: str, axis: Any = None, keepdims: bool = False, **options: Any) -> Traced:
        axes = axis if isinstance(axis, tuple) else (axis,)
        return Traced(self.nodes, Reduce(name, self.at, axes, keepdims, tuple(options.items())))

    def astype(self, dtype: Any) -> Traced:
        return Traced(self.nodes, Cast(self.at, np.dtype(dtype).name))

    def view(self, *axes: int | None) -> Traced:
        return Traced(self.nodes, View(self.at, axes))

    def __add__(self, other: Any) -> Traced:
        return self.apply("add", other)

    def __radd__(self, other: Any) -> Traced:
        return apply(self.nodes, "add", other, self)

    def __sub__(self, other: Any) -> Traced:
        return self.apply("subtract", other)

    def __rsub__(self, other: Any) -> Traced:
        return apply(self.nodes, "subtract", other, self)

    def __mul__(self, other: Any) -> Traced:
        return self.apply("multiply", other)

    def __rmul__(self, other: Any) -> Traced:
        return apply(self.nodes, "multiply", other, self)

    def __truediv__(self, other: Any) -> Traced:
        return self.apply("divide", other)

    def __rtruediv__(self, other: Any) -> Traced:
        return apply(self.nodes, "divide", other, self)

    def __pow__(self, other: Any) -> Traced:
        return self.apply("power", other)

    def __gt__(self, other: Any) -> Traced:
        return self.apply("greater", other)

    def __neg__(self) -> Traced:
        return self.apply("negative")

    def __abs__(self) -> Traced:
        return self.apply("absolute")

    def __getattr__(self, name: str) -> Function:
        if name not in REDUCTIONS:
            raise AttributeError(name)
        return lambda axis, keepdims=False, **o: self.reduce(name, axis, keepdims, **o)


REDUCTIONS = (
    *("sum", "prod", "min", "max", "any", "all", "mean", "var", "std", "argmin", "argmax"),
    *("nansum", "nanprod", "nanmin", "nanmax", "count_nonzero"),
)


def apply(nodes: list[Node], name: str, *arguments: Any, **options: Any) -> Traced:
    """Append a function, and its constants."""
    places = [(x if isinstance(x, Traced) else Traced(nodes, Constant(x))).at for x in arguments]
    return Traced(nodes, Apply(name, tuple(places), tuple(options.items())))


class Names:
    """Stands for NumPy's namespace."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes

    def __getattr__(self, name: str) -> Function:
        return lambda *arguments, **options: apply(self._nodes, name, *arguments, **options)


def traced(function: Function, inputs: int) -> Expression:
    """Return the expression of a function of a namespace and so many arrays."""
    nodes: list[Node] = []
    blocks = [Traced(nodes, Input(at)) for at in range(inputs)]
    found = function(Names(nodes), *blocks)
    results = found if isinstance(found, tuple) else (found,)
    return Expression(tuple(nodes), tuple(result.at for result in results))
