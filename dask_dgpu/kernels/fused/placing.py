"""Where the nodes of an expression lie in a tile: pure functions on shapes.

A pass goes over a *domain*, an array's shape, tile by tile. Each node that a tile needs is one
step. For each axis of the node it says which axis of the domain slices it, or None if the tile
needs all of it::

    softmax, tiles of rows:   x (0, None)   max (0, None)   exp (0, None)   sum (0, None)
    x + x.T:                  x (0, 1)      x (1, 0), viewed (0, 1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dask_dgpu.kernels.fused.order import after_arguments
from graph_opt.model.expression import Constant, Expression, Input, Reduce, View

Shape = tuple[int, ...]
Axes = tuple[int | None, ...]


class Step(NamedTuple):
    """A node in a tile; ``arguments`` are earlier steps.

    A step without arguments is a leaf: a block, a constant, or a reduction of an earlier pass.
    """

    node: int
    axes: Axes
    arguments: tuple[int, ...]


class Placing:
    """The steps of one tile.

    Parameters
    ----------
    expression : Expression
        What is computed.
    shapes : sequence of tuple
        The shapes of its nodes.
    tile : dict of int
        For each axis of the domain that is cut the length of a tile.
    widest : int
        A reduction is part of the tile if its argument has at most so many elements there. It must
        also vary along all axes that are cut, for tiles would repeat it along the others.

    Attributes
    ----------
    steps : list of Step
        Each after its arguments.
    reductions : set of int
        Nodes that an earlier pass must compute.
    """

    def __init__(
        self, expression: Expression, shapes: Sequence[Shape], tile: dict[int, int], widest: int
    ) -> None:
        self.nodes = expression.nodes
        self.shapes = shapes
        self.tile = tile
        self.widest = widest
        self.steps: list[Step] = []
        self.reductions: set[int] = set()
        self._known: dict[tuple[int, Axes], int] = {}

    def place(self, node: int, axes: Sequence[int | None]) -> int:
        """Return the number of a step, which is added if it is new."""
        root = self._key(node, axes)
        for key, read in after_arguments(root, self._arguments, self._known):
            if isinstance(self.nodes[key[0]], Reduce) and not read:
                self.reductions.add(key[0])
            self._known[key] = len(self.steps)
            self.steps.append(Step(*key, tuple([self._known[each] for each in read])))
        return self._known[root]

    def _key(self, node: int, axes: Sequence[int | None]) -> tuple[int, Axes]:
        """Return a node, and the axes of it that are cut."""
        pairs = zip(axes, self.shapes[node], strict=True)
        placed = [axis if axis in self.tile and length != 1 else None for axis, length in pairs]
        return node, tuple(placed)

    def elements(self, node: int, axes: Axes, tile: dict[int, int]) -> int:
        """Return the number of elements of a node in a tile."""
        lengths = zip(self.shapes[node], axes, strict=True)
        return math.prod(length if axis is None else tile[axis] for length, axis in lengths)

    def largest(self) -> int:
        """Return the number of elements of the largest step that is computed."""
        computed = (step for step in self.steps if step.arguments)
        return max((self.elements(each.node, each.axes, self.tile) for each in computed), default=0)

    def _arguments(self, key: tuple[int, Axes]) -> list[tuple[int, Axes]]:
        """Return the nodes that a step reads, and where these lie; none if it is a leaf."""
        at, axes = key
        node = self.nodes[at]
        match node:
            case Input() | Constant():
                return []
            case Reduce(argument=argument):
                below = self._below_reduction(node, axes)
                return [] if below is None else [self._key(argument, below)]
            case View(argument, viewed):
                inner: list[int | None] = [None] * len(self.shapes[argument])
                for axis, of in zip(axes, viewed, strict=True):
                    if of is not None:
                        inner[of] = axis
                return [self._key(argument, inner)]
            case _:
                aligned = (axes[len(axes) - len(self.shapes[of]) :] for of in node.arguments)
                return [self._key(*pair) for pair in zip(node.arguments, aligned, strict=True)]

    def _below_reduction(self, node: Reduce, axes: Axes) -> Axes | None:
        """Return where a reduction's argument lies, or None if an earlier pass must reduce it."""
        if {axis for axis in axes if axis is not None} != set(self.tile):
            return None
        kept = iter(axes)
        below: list[int | None] = []
        for axis in range(len(self.shapes[node.argument])):
            if axis in node.axes:
                below.append(None)
                if node.keepdims:
                    next(kept)
            else:
                below.append(next(kept))
        thinnest = self.elements(node.argument, tuple(below), dict.fromkeys(self.tile, 1))
        return tuple(below) if thinnest <= self.widest else None
