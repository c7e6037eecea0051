"""Expressions node by node, with an array module's own functions: NumPy's or CuPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graph_opt.model.expression import Apply, Cast, Constant, Expression, Input, Node, Reduce, View

Array = Any


def evaluate_nodes(
    expression: Expression, blocks: Sequence[Array], module: Any = np
) -> tuple[Array, ...]:
    """Evaluate an expression node by node; values are freed after their last use."""
    values: list[Any] = []
    last = last_uses(expression)
    for at, node in enumerate(expression.nodes):
        if isinstance(node, Input):
            values.append(blocks[node.at])
        else:
            values.append(node_value(node, [values[of] for of in node.arguments], module))
        for of in node.arguments:
            if last[of] == at:
                values[of] = None
    return tuple(values[result] for result in expression.results)


def last_uses(expression: Expression) -> list[int]:
    """Return the last node that reads each node; for a result the number of nodes."""
    last = [0] * len(expression.nodes)
    for at, node in enumerate(expression.nodes):
        for of in node.arguments:
            last[of] = at
    for result in expression.results:
        last[result] = len(expression.nodes)
    return last


def node_value(node: Node, arguments: Sequence[Any], module: Any = np) -> Any:
    """Return the value of a node that is no input from those of its arguments."""
    match node:
        case Apply(function, _, options):
            return getattr(module, function)(*arguments, **dict(options))
        case Constant(value):
            return value
        case Cast(_, dtype):
            return module.asarray(arguments[0]).astype(dtype)
        case View(_, axes):
            return viewed(module.asarray(arguments[0]), axes)
        case Reduce():
            return reduced(node, arguments[0], module)
    raise TypeError(f"expected a node with arguments, got {node}")


def viewed(array: Array, axes: Sequence[int | None]) -> Array:
    """Return the view that a ``View`` with these axes stands for."""
    named = [axis for axis in axes if axis is not None]
    others = [axis for axis in range(array.ndim) if axis not in named]
    index = [None if axis is None else slice(None) for axis in axes]
    return array.transpose(*named, *others)[(*index, *[0] * len(others))]


def reduced(node: Reduce, array: Array, module: Any = np) -> Array:
    """Return what a reduction gives for an array."""
    axes: Any = node.axes
    if node.function in ("argmin", "argmax"):
        axes = axes[0] if len(axes) == 1 else None
    reduction = getattr(module, node.function)
    return reduction(array, axis=axes, keepdims=node.keepdims, **dict(node.options))
