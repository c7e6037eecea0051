"""Random expressions with the value that NumPy gives each node."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dask_dgpu.kernels.fused.nodes import FUNCTIONS, node_value
from graph_opt.model.expression import Apply, Cast, Constant, Expression, Input, Node, Reduce, View

DTYPES = (
    *("bool", "int8", "uint8", "int16", "int32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-30, 60000.0)
CONSTANTS = (2, -1, 0.5, 0, 1 + 2j, True, np.float32(0.1), np.float64(3), np.int16(7))
EXACT = ("add", "subtract", "multiply", "maximum", "minimum", "negative", "where", "greater")
REDUCTIONS = (
    *("sum", "min", "max", "any", "all", "argmin", "argmax", "count_nonzero"),
    *("nansum", "nanmin", "nanmax", "mean"),
)
KINDS = {
    exact: (*["apply"] * 5, "constant", "cast", "view", *["reduce"] * (2 * exact))
    for exact in (False, True)
}
"""Of nodes, by whether the expression is exact."""

LARGEST = 2.0**40
"""Of values in exact expressions, whose sums have no rounding errors in float64."""


@dataclass
class Drawn:
    """An expression that grows, and the values of its nodes."""

    blocks: list[Any]
    nodes: list[Node] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, node: Node, most: int = 4096) -> None:
        """Add a node unless NumPy refuses it or its value is large."""
        if isinstance(node, Input):
            value = self.blocks[node.at]
        else:
            try:
                value = node_value(node, [self.values[of] for of in node.arguments])
            except (TypeError, ValueError, OverflowError, np.exceptions.AxisError):
                return
        if np.size(value) <= most and np.asarray(value).dtype.kind in "biufc":
            self.nodes.append(node)
            self.values.append(value)

    def expression(self, results: tuple[int, ...]) -> Expression:
        return Expression(tuple(self.nodes), results)


@st.composite
def blocks(draw: st.DrawFn, dtypes: tuple[str, ...], special: bool) -> list[Any]:
    """Draw blocks whose shapes broadcast, in different memory layouts."""
    lengths = st.sampled_from((7, 13, 5, 16, 7, 13, 5, 16, 3, 2, 1, 0))
    full = [draw(lengths) for _ in range(draw(st.sampled_from((2, 3, 1, 0))))]
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    found = []
    for at in range(draw(st.integers(1, 3))):
        shape = full
        if at:
            shape = [draw(st.sampled_from((n, n, n, 1))) for n in full]
            shape = shape[draw(st.sampled_from((0, 0, 0, 1, 2))) :]
        dtype = np.dtype(draw(st.sampled_from(dtypes)))
        wide = [2 * n for n in shape]
        values = rng.integers(-3, 4, wide).astype("float64")
        if special:
            values = np.where(rng.random(wide) < 0.3, rng.choice(SPECIAL, wide), values * 0.37)
        with warnings.catch_warnings(action="ignore"):
            block = np.asarray(values.astype(dtype))
        layout = draw(st.sampled_from(("C", "F", "strided", "reversed")))
        if layout == "strided":
            block = block[tuple(slice(0, 2 * n, 2) for n in shape)]
        else:
            block = block[tuple(slice(n) for n in shape)].copy("F" if layout == "F" else "C")
            block = block[..., ::-1] if layout == "reversed" and shape else block
        found.append(block)
    return found


@st.composite
def views(draw: st.DrawFn, argument: int, ndim: int) -> View:
    axes: list[int | None] = list(draw(st.permutations(range(ndim))))
    if ndim < 3 and draw(st.booleans()):
        axes.insert(draw(st.integers(0, ndim)), None)
    return View(argument, tuple(axes))


@st.composite
def reductions(draw: st.DrawFn, argument: int, ndim: int) -> Reduce:
    function = draw(st.sampled_from(REDUCTIONS))
    axes = tuple(sorted(draw(st.sets(st.sampled_from(range(ndim)), min_size=1))))
    if function.startswith("arg") and len(axes) != ndim:
        axes = axes[:1]
    return Reduce(function, argument, axes, draw(st.booleans()))


@st.composite
def drawn(draw: st.DrawFn, *, exact: bool) -> tuple[Drawn, Expression]:
    """Draw an expression of up to 12 nodes; an exact one has reductions, but no roundings."""
    dtypes = ("bool", "int8", "int64", "float64") if exact else DTYPES
    found = Drawn(draw(blocks(dtypes, special=not exact)))
    names = EXACT if exact else tuple(FUNCTIONS)
    for at in range(len(found.blocks)):
        found.add(Input(at))
    for _ in range(draw(st.integers(1, 12 - len(found.blocks)))):
        earlier = st.integers(0, len(found.nodes) - 1)
        of = draw(st.sampled_from((draw(earlier), len(found.nodes) - 1)))
        ndim = np.ndim(found.values[of])
        kind = draw(st.sampled_from(KINDS[exact]))
        if kind == "constant":
            found.add(Constant(draw(st.sampled_from((2, -1) if exact else CONSTANTS))))
        elif kind == "cast":
            found.add(Cast(of, draw(st.sampled_from(("int64", "float64") if exact else DTYPES))))
        elif kind == "view":
            found.add(draw(views(of, ndim)))
        elif kind == "reduce" and exact and ndim:
            found.add(draw(reductions(of, ndim)))
        else:
            name = draw(st.sampled_from(names))
            arguments = tuple(draw(earlier) for _ in range(FUNCTIONS[name]))
            options = (("decimals", 1),) if name == "round" else ()
            found.add(Apply(name, arguments, options))
        if exact and np.abs(np.asarray(found.values[-1], "float64")).max(initial=0) > LARGEST:
            found.nodes.pop(), found.values.pop()
    results = draw(st.sets(st.integers(0, len(found.nodes) - 1), max_size=2))
    return found, found.expression((*results, len(found.nodes) - 1))
