"""Nodes of expressions: their functions, by name, their order, and their values by a module.

The names are those of NumPy's own namespace, so that ``getattr(module, name)`` finds a function in
CuPy too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from graph_opt.model.expression import Apply, Cast, Constant, Expression, Input, Node, Reduce, View

Array = Any
Key = TypeVar("Key")

_UFUNCS = {
    each.__name__: each.nin  # by their own names: ``absolute``, not ``abs``
    for each in vars(np).values()
    if isinstance(each, np.ufunc) and each.nout == 1 and each.signature is None
}

FUNCTIONS: dict[str, int] = {
    **dict(sorted(_UFUNCS.items())),
    **dict.fromkeys(("where", "clip"), 3),
    **dict.fromkeys(("round", "real", "imag", "angle", "nan_to_num", "sinc"), 1),
    "isclose": 2,
}
"""Of an ``Apply``, with the number of array arguments. Bounds of ``clip`` may be None."""


def evaluate_nodes(expression: Expression, blocks: Sequence[Array]) -> tuple[Array, ...]:
    """Evaluate an expression node by node with NumPy; values are freed after their last use."""
    values: list[Any] = []
    for node, released in zip(expression.nodes, expression.released, strict=True):
        if type(node) is Apply and not node.options:  # nearly all nodes: without detours
            value = getattr(np, node.function)(*[values[of] for of in node.arguments])
        elif type(node) is Input:
            value = blocks[node.at]
        elif type(node) is Constant:
            value = node.value
        else:
            value = node_value(node, [values[of] for of in node.arguments])
        values.append(value)
        for of in released:
            values[of] = None
    return tuple([values[result] for result in expression.results])


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


def after_arguments(
    root: Key, arguments: Callable[[Key], Sequence[Key]], known: Container[Key]
) -> Iterator[tuple[Key, Sequence[Key]]]:
    """Yield what ``root`` depends on and is not known, with its arguments, and ``root`` last.

    The caller adds each to ``known`` before it asks for the next. There is no recursion, because a
    chain of a few hundred steps would reach Python's limit.
    """
    if root in known:
        return
    order = arguments(root)
    waiting = [(root, order, iter(order))]
    while waiting:
        key, order, left = waiting[-1]
        for each in left:
            if each not in known:
                below = arguments(each)
                waiting.append((each, below, iter(below)))
                break
        else:
            waiting.pop()
            yield key, order
