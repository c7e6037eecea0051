"""The dtypes and shapes of all nodes of an expression, as NumPy decides them for given blocks.

NumPy is asked itself: a ufunc for the dtypes of its inner loop, any other function for the dtype
of its result for arrays of one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.fused.device_functions import TYPES, call
from graph_opt.model.expression import Apply, Cast, Constant, Expression, Input, Node, Reduce, View

Dtype = np.dtype[Any]

WEAK = (int, float, complex)
"""Python numbers that take the dtype of what they meet; a bool has its own."""

CLOSED = ("where", "clip", "nan_to_num")
"""Functions that compute in the dtype of their result; of ``where`` all but the condition."""


class Typed(NamedTuple):
    """What is known of a node at the call.

    ``loop`` are the dtypes that the arguments of an elementwise function are converted to first,
    and ``known`` says whether there is generated code for the node, given its arguments.
    """

    dtype: Dtype
    shape: tuple[int, ...]
    loop: tuple[Dtype, ...] = ()
    known: bool = True


def typed(
    expression: Expression, dtypes: Sequence[Dtype], shapes: Sequence[tuple[int, ...]]
) -> list[Typed]:
    """Return what is known of each node.

    Raises what NumPy raises for these dtypes and shapes, for example if shapes do not broadcast.
    """
    nodes = expression.nodes
    typed_nodes: list[Typed] = []
    with np.errstate(all="ignore"):
        for node, shape in zip(nodes, expression.shapes(shapes), strict=True):
            match node:
                case Input(at):
                    one = Typed(dtypes[at], shape)
                case Constant(value):
                    dtype = np.asarray(value).dtype
                    one = Typed(dtype, shape, known=dtype.name in TYPES and shape == ())
                case Cast(of, name):
                    dtype = np.dtype(name)
                    one = Typed(dtype, shape, known=_compiles(dtype, typed_nodes[of].dtype))
                case View(of, _):
                    dtype = typed_nodes[of].dtype
                    one = Typed(dtype, shape, known=_compiles(dtype))
                case Reduce(_, of):
                    one = Typed(_reduced(node, typed_nodes[of].dtype), shape)
                case Apply():
                    operands = [_operand(nodes[of], typed_nodes[of]) for of in node.arguments]
                    dtype, loop, fits = _applied(node, operands)
                    kinds = [x.dtype for x in operands if isinstance(x, np.ndarray)]
                    names = [None if x is None else "x" for x in operands]
                    known = fits and _compiles(dtype, *loop, *kinds)
                    known = known and call(node, nodes, names, loop, dtype) is not None
                    one = Typed(dtype, shape, loop, known)
            typed_nodes.append(one)
    return typed_nodes


def _compiles(*dtypes: Dtype) -> bool:
    return all(dtype.name in TYPES and dtype.isnative for dtype in dtypes)


def _operand(node: Node, typed: Typed) -> Any:
    """Return a number as it is, and one element of any other node's dtype."""
    return node.value if isinstance(node, Constant) else np.ones(1, typed.dtype)


def _applied(node: Apply, operands: Sequence[Any]) -> tuple[Dtype, tuple[Dtype, ...], bool]:
    """Return the dtypes of a result and of the loop, and whether constants fit in these."""
    function, options = getattr(np, node.function), dict(node.options)
    kinds: list[Any] = [None if x is None else np.asarray(x).dtype for x in operands]
    if not isinstance(function, np.ufunc):
        dtype = np.asarray(function(*operands, **options)).dtype
        loop = [dtype if node.function in CLOSED or kind is None else kind for kind in kinds]
        if node.function == "where":
            loop[0] = np.dtype(bool)
        return dtype, tuple(loop), all(map(_fits, operands, loop))
    exact: dict[str, Any] = {}
    if (wanted := options.get("dtype")) is not None:
        exact["signature"] = (*(None for _ in operands), np.dtype(wanted))
    if not all(type(x) in WEAK for x in operands):
        kinds = [type(x) if type(x) in WEAK else k for x, k in zip(operands, kinds, strict=True)]
    *loop, dtype = function.resolve_dtypes((*kinds, None), **exact)
    fits = all(map(_fits, operands, loop))
    if not fits:  # NumPy compares with any Python integer, and refuses it elsewhere
        function(*operands, **options)
    return dtype, tuple(loop), fits


def _fits(operand: Any, dtype: Dtype) -> bool:
    """Whether a Python integer can be represented; anything else can."""
    if type(operand) is not int or dtype.kind not in "iu":
        return True
    return bool(np.iinfo(dtype).min <= operand <= np.iinfo(dtype).max)


def _reduced(node: Reduce, dtype: Dtype) -> Dtype:
    if node.function.startswith("compensated"):  # a sum and its compensation
        return np.dtype(np.complex128)
    # with ddof a single element would leave nothing to divide by
    options = {name: value for name, value in node.options if name != "ddof"}
    return np.asarray(getattr(np, node.function)(np.ones(1, dtype), **options)).dtype
