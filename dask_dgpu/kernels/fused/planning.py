"""The passes over blocks that an expression needs, and the tiles of each."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from dask_dgpu.kernels.fused.placing import Placing, Shape, Step
from graph_opt.model.expression import Expression, Input, Reduce

NARROW = 64
"""Elements of a row of a tile below which reading it wastes most of the memory's rate."""


class Pass(NamedTuple):
    """One way over a domain: the roots that it computes, each with its step.

    A root is a result, or a reduction: then its step is the reduction's argument. ``tile`` has the
    axes that are cut, in the order in which tiles follow each other, the outermost first.
    """

    domain: Shape
    order: tuple[int, ...]
    tile: dict[int, int]
    steps: tuple[Step, ...]
    roots: dict[int, int]


class Planner:
    """Passes for an expression on blocks.

    Parameters
    ----------
    expression : Expression
        What is computed.
    shapes : sequence of tuple
        The shapes of its nodes.
    strides : sequence of tuple
        Those of the blocks, in bytes.
    elements : int
        Of a tile, about.
    """

    def __init__(
        self,
        expression: Expression,
        shapes: Sequence[Shape],
        strides: Sequence[Shape],
        elements: int,
    ) -> None:
        self.expression = expression
        self.shapes = shapes
        self.strides = strides
        self.elements = elements
        self._levels: dict[int, int] = {}

    def passes(self, results: Collection[int]) -> list[Pass]:
        """Return the passes that compute some nodes; each needs the reductions of those before."""
        for result in results:
            self._level(result)
        groups: dict[Any, list[int]] = {}
        for root, level in sorted(self._levels.items(), key=lambda item: item[1]):
            shape = self.shapes[self._domain(root)]
            groups.setdefault((level, shape, self._order(root)), []).append(root)
        return [self._pass(roots) for roots in groups.values()]

    def _level(self, root: int) -> int:
        """Return the number of passes before that of a root, and remember it."""
        if root not in self._levels:
            needed = self._placing([root])[0].reductions
            self._levels[root] = max((1 + self._level(each) for each in needed), default=0)
        return self._levels[root]

    def _domain(self, root: int) -> int:
        """Return the node whose shape a pass for a root goes over."""
        node = self.expression.nodes[root]
        return node.argument if isinstance(node, Reduce) else root

    def _placing(self, roots: Sequence[int]) -> tuple[Placing, tuple[int, ...], dict[int, int]]:
        """Return the steps of a tile, the order of the domain's axes, and the steps of roots."""
        shape = self.shapes[self._domain(roots[0])]
        axes = range(len(shape))
        order, longest_row = self._order(roots[0])
        tile = _tile(shape, order, self.elements, longest_row)
        widest = 4 * self.elements
        while True:
            placing = Placing(self.expression, self.shapes, tile, widest)
            placed = {root: placing.place(self._domain(root), axes) for root in roots}
            excess = placing.largest() / self.elements
            longest = max(tile, key=lambda axis: tile[axis], default=0)
            if excess > 1 and tile.get(longest, 1) > 1:
                tile = {**tile, longest: max(1, int(tile[longest] / excess))}
            elif widest and self._scattered(placing):
                tile, widest = _tile(shape, order, self.elements, longest_row), 0
            else:
                return placing, order, placed

    def _scattered(self, placing: Placing) -> bool:
        """Whether a reduction within the tile reads narrow columns of a block."""
        nodes = self.expression.nodes
        if not any(
            isinstance(nodes[each.node], Reduce) and each.arguments for each in placing.steps
        ):
            return False
        for step in placing.steps:
            node, shape = nodes[step.node], self.shapes[step.node]
            if isinstance(node, Input) and math.prod(shape) > self.elements:
                strides = self.strides[node.at]
                fastest = min(range(len(shape)), key=lambda at: strides[at] or math.inf)
                if placing.tile.get(step.axes[fastest], NARROW) < NARROW:  # type: ignore[arg-type]
                    return True
        return False

    def _order(self, root: int) -> tuple[tuple[int, ...], int]:
        """Return the axes of a domain, largest strides first, and the most elements of a row.

        If blocks lie in different orders, rows of one are columns of another. If a reduction keeps
        the last axis, long rows would leave little to reduce in a tile.
        """
        shape = self.shapes[self._domain(root)]
        axes = range(len(shape))
        placing = Placing(self.expression, self.shapes, dict.fromkeys(axes, 1), 0)
        placing.place(self._domain(root), axes)
        orders = []
        for step in placing.steps:
            node = self.expression.nodes[step.node]
            if isinstance(node, Input) and math.prod(self.shapes[step.node]) == math.prod(shape):
                pairs = zip(step.axes, self.strides[node.at], strict=True)
                by = {axis: abs(stride) for axis, stride in pairs if axis is not None}
                orders.append(tuple(sorted(axes, key=lambda axis: -by.get(axis, 0))))
        order = orders[0] if orders else tuple(axes)
        if any(each[-1:] != order[-1:] for each in orders):
            return order, math.isqrt(self.elements)
        node = self.expression.nodes[root]
        keeps = isinstance(node, Reduce) and not {*order[-1:]} <= {*node.axes}
        return order, self.elements // NARROW if keeps else self.elements

    def _pass(self, roots: Sequence[int]) -> Pass:
        placing, order, placed = self._placing(roots)
        nodes = self.expression.nodes
        reduced = {
            axis for root in roots if isinstance(node := nodes[root], Reduce) for axis in node.axes
        }
        # all tiles of one region of a reduction follow each other: few partial results wait
        outermost = sorted(placing.tile, key=lambda axis: (axis in reduced, order.index(axis)))
        tile = {axis: placing.tile[axis] for axis in outermost}
        domain = self.shapes[self._domain(roots[0])]
        return Pass(domain, order, tile, tuple(placing.steps), placed)


def _tile(shape: Shape, order: Sequence[int], elements: int, longest_row: int) -> dict[int, int]:
    """Return the lengths along the axes that are cut: whole inner axes, then a part of one."""
    tile: dict[int, int] = {}
    room = elements
    for axis in reversed(order):
        most = longest_row if axis == order[-1] else room
        length = min(shape[axis], max(1, most))
        if length < shape[axis]:
            tile[axis] = math.ceil(shape[axis] / math.ceil(shape[axis] / length))
        room //= max(1, length)
    return tile
