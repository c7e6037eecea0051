"""The dtypes and shapes of all nodes of an expression, as NumPy decides them for given blocks.

NumPy is asked itself: a ufunc for the dtypes of its inner loop, any other function for the dtype
of its result for arrays of one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graph_opt.model.expression import Apply, Cast, Constant, Expression, Input, Node, Reduce, View

WEAK = (int, float, complex)
"""Python numbers that take the dtype of what they meet; a bool has its own."""

CLOSED = ("where", "clip", "nan_to_num")
"""Functions that compute in the dtype of their result; of ``where`` all but the condition."""


class Typed(NamedTuple):
    """What is known of a node at the call.

    ``loop`` are the dtypes that the arguments of an elementwise function are converted to first,
    and ``known`` says whether the node may be part of a generated kernel as far as dtypes go.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    loop: tuple[np.dtype[Any], ...] = ()
    known: bool = True


def typed(
    expression: Expression, dtypes: Sequence[np.dtype[Any]], shapes: Sequence[tuple[int, ...]]
) -> list[Typed]:
    """Return what is known of each node.

    Raises what NumPy raises for these dtypes and shapes, for example if shapes do not broadcast.
    """
    found: list[Typed] = []
    with np.errstate(all="ignore"):
        for node, shape in zip(expression.nodes, expression.shapes(shapes), strict=True):
            match node:
                case Input(at):
                    one = Typed(np.dtype(dtypes[at]), shape)
                case Constant(value):
                    dtype = np.asarray(value).dtype
                    one = Typed(dtype, np.shape(value), known=dtype.kind in "biufc")
                case Cast(_, name):
                    one = Typed(np.dtype(name), shape)
                case View(of, _):
                    one = Typed(found[of].dtype, shape)
                case Reduce(_, of):
                    one = Typed(_reduced(node, found[of].dtype), shape)
                case Apply():
                    operands = [_operand(expression.nodes[at], found[at]) for at in node.arguments]
                    one = _applied(node, operands, shape)
            found.append(one)
    return found


def _operand(node: Node, found: Typed) -> Any:
    """Return a Python number as it is, and one element of any other node's dtype."""
    if isinstance(node, Constant) and (node.value is None or type(node.value) in WEAK):
        return node.value
    return np.ones(1, found.dtype)


def _applied(node: Apply, operands: Sequence[Any], shape: tuple[int, ...]) -> Typed:
    options = dict(node.options)
    ufunc = getattr(np, node.function, None)
    if isinstance(ufunc, np.ufunc):
        wanted = options.pop("dtype", None)
        if all(type(operand) in WEAK for operand in operands):
            operands = [np.asarray(operand) for operand in operands]
        kinds = [type(x) if type(x) in WEAK else x.dtype for x in operands]
        exact: dict[str, Any] = {}
        if wanted is not None:
            exact["signature"] = (*(None for _ in operands), np.dtype(wanted))
        *loop, dtype = ufunc.resolve_dtypes((*kinds, None), **exact)
        fits = all(_fits(x, to) for x, to in zip(operands, loop, strict=True))
        if not fits:  # NumPy compares with any Python integer, and refuses it elsewhere
            ufunc(*operands, **dict(node.options))
        return Typed(dtype, shape, tuple(loop), known=fits and not options)
    if ufunc is None:
        raise AttributeError(f"expected a function of NumPy, got {node.function!r}")
    dtype = np.asarray(ufunc(*operands, **options)).dtype
    loop = [
        dtype if node.function in CLOSED or x is None else np.asarray(x).dtype for x in operands
    ]
    if node.function == "where":
        loop[0] = np.dtype(bool)
    fits = all(x is None or _fits(x, to) for x, to in zip(operands, loop, strict=True))
    return Typed(dtype, shape, tuple(loop), known=fits)


def _fits(operand: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a Python integer can be represented; anything else can."""
    if type(operand) is not int or dtype.kind not in "iu":
        return True
    return bool(np.iinfo(dtype).min <= operand <= np.iinfo(dtype).max)


def _reduced(node: Reduce, dtype: np.dtype[Any]) -> np.dtype[Any]:
    # with ddof a single element would leave nothing to divide by
    options = {name: value for name, value in node.options if name != "ddof"}
    return np.asarray(getattr(np, node.function)(np.ones(1, dtype), **options)).dtype
