"""The passes over blocks that an expression needs: pure functions on shapes.

A pass goes over a *domain*, an array's shape, in tiles: slices along one axis. Each node that a
tile needs is one step, which says along which axis of the node the tile slices it, or None if the
tile needs all of it::

    softmax, tiles of rows:   x 0   max 0   exp 0   sum 0
    x + x.T:                  x 0   x 1, viewed 0
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from dask_dgpu.kernels.fused.nodes import after_arguments
from graph_opt.model.expression import Expression, Input, Reduce, View

Shape = tuple[int, ...]
Place = tuple[int, int | None]
"""A node, and the axis along which tiles slice it."""

SHARE = 8
"""A tile has at least so many elements for each partial result that is merged afterwards."""

WIDEST = 4
"""Most elements of a reduction's argument for which it is part of a tile, in tiles."""


class TileStep(NamedTuple):
    """A node in a tile; ``arguments`` are earlier steps.

    A step without arguments is a leaf: a block, a constant, or a reduction of an earlier pass.
    """

    node: int
    axis: int | None
    arguments: tuple[int, ...]


class Pass(NamedTuple):
    """One way over a domain, in tiles along an axis: the roots that it computes, with their steps.

    A root is a result, or a reduction. Those in ``merged`` are reductions of which tiles have
    parts: their steps are those of their arguments. There is one tile if the axis is None, and
    ``order`` has the axes of the domain by falling stride.
    """

    domain: Shape
    order: tuple[int, ...]
    axis: int | None
    tiles: list[slice]
    steps: list[TileStep]
    roots: dict[int, int]
    merged: list[int]


class Planner:
    """Passes for an expression on blocks, in tiles of about so many elements.

    ``shapes`` are those of its nodes, and ``strides`` those of the blocks, in bytes.
    """

    def __init__(
        self,
        expression: Expression,
        shapes: Sequence[Shape],
        strides: Sequence[Shape],
        elements: int,
    ) -> None:
        self.nodes = expression.nodes
        self.shapes, self.strides, self.elements = shapes, strides, elements
        self._levels: dict[int, int] = {}

    def passes(self, results: Collection[int]) -> list[Pass]:
        """Return the passes that compute some nodes; each needs the reductions of those before."""
        for result in results:
            self._level(result)
        groups: dict[Any, list[int]] = {}
        for root, level in sorted(self._levels.items(), key=lambda item: item[1]):
            groups.setdefault((level, *self._way(root)), []).append(root)
        return [self._pass(roots, *way) for way, roots in groups.items()]

    def steps(self, nodes: Iterable[int], axis: int | None) -> tuple[list[TileStep], list[int]]:
        """Return the steps of a tile, each after its arguments, and those of some nodes.

        ``axis`` is that of these nodes along which the tile slices them.
        """
        steps: list[TileStep] = []
        known: dict[Place, int] = {}
        places = [self._at(node, axis) for node in nodes]
        for root in places:
            for place, read in after_arguments(root, self._arguments, known):
                known[place] = len(steps)
                steps.append(TileStep(*place, tuple([known[each] for each in read])))
        return steps, [known[place] for place in places]

    def _level(self, root: int) -> int:
        """Return the number of passes before that of a root, and remember it."""
        if root not in self._levels:
            steps, _ = self.steps([self._domain(root)], self._way(root)[-1])
            leaves = (step.node for step in steps if not step.arguments)
            before = [1 + self._level(at) for at in leaves if isinstance(self.nodes[at], Reduce)]
            self._levels[root] = max(before, default=0)
        return self._levels[root]

    def _domain(self, root: int) -> int:
        """Return the node whose shape a pass for a root goes over."""
        node = self.nodes[root]
        return node.argument if isinstance(node, Reduce) else root

    def _way(self, root: int) -> tuple[Shape, tuple[int, ...], int | None]:
        """Return a root's domain, its axes by falling stride, and the axis that tiles slice.

        This is the first of which a position fits in a tile, or else the longest. A reduction
        along it has a partial result a tile, which must be small beside the tile.
        """
        node, domain = self.nodes[root], self._domain(root)
        shape, order = self.shapes[domain], self._order(domain)
        size, kept = math.prod(shape), math.prod(self.shapes[root])
        for axis in order:
            fits = size // shape[axis] <= self.elements
            if isinstance(node, Reduce) and axis in node.axes:
                fits = fits and kept * SHARE <= self.elements
            if fits:
                return shape, order, axis if shape[axis] > 1 else None
        return shape, order, max(order, key=lambda axis: shape[axis], default=None)

    def _order(self, domain: int) -> tuple[int, ...]:
        """Return the axes of a domain by falling stride, as those of a block of its shape lie."""
        ndim = len(self.shapes[domain])
        waiting = [(domain, tuple[int | None, ...](range(ndim)))]
        seen: set[int] = set()
        while waiting:
            at, axes = waiting.pop()
            node, shape = self.nodes[at], self.shapes[at]
            seen.add(at)
            if isinstance(node, Input):
                strides = [0 if axis is None else self.strides[node.at][axis] for axis in axes]
                return tuple(sorted(range(ndim), key=lambda axis: -strides[axis]))
            if isinstance(node, View):
                viewed = tuple(None if axis is None else node.axes[axis] for axis in axes)
                waiting.append((node.argument, viewed))
            elif not isinstance(node, Reduce):
                alike = [of for of in node.arguments if self.shapes[of] == shape and of not in seen]
                waiting += [(of, axes) for of in reversed(alike)]
        return tuple(range(ndim))

    def _pass(
        self, roots: Sequence[int], level: int, shape: Shape, order: Shape, axis: int | None
    ) -> Pass:
        steps, numbers = self.steps(map(self._domain, roots), axis)
        whole = 1 if axis is None else shape[axis]
        slabs = [1 if axis is None else math.prod(shape) // whole]
        slabs += [self._slab(at, along) for at, along, read in steps if read and along is not None]
        length = min(whole, max(1, self.elements // max(slabs)))
        length = math.ceil(whole / math.ceil(whole / length))  # tiles of about one length
        tiles = [slice(i, min(i + length, whole)) for i in range(0, whole, length)]
        placed, merged = dict(zip(roots, numbers, strict=True)), list[int]()
        for root, at in placed.items():
            node = self.nodes[root]
            if isinstance(node, Reduce) and axis in node.axes and length < whole:
                merged.append(root)
            elif isinstance(node, Reduce):
                kept = _kept_axes(node, len(shape))
                along = None if axis is None or axis in node.axes else kept.index(axis)
                placed[root] = len(steps)
                steps.append(TileStep(root, along, (at,)))
        if level > 0 and not merged:  # the last tiles of the pass before may still be in cache
            tiles.reverse()
        return Pass(shape, order, axis, tiles, steps, placed, merged)

    def _slab(self, at: int, axis: int) -> int:
        """Return the number of elements of a node at one position along an axis."""
        return math.prod(self.shapes[at]) // self.shapes[at][axis]

    def _at(self, node: int, axis: int | None) -> Place:
        sliced = axis is not None and axis >= 0 and self.shapes[node][axis] != 1
        return node, axis if sliced else None

    def _arguments(self, place: Place) -> list[Place]:
        """Return the nodes that a step reads, and where these lie; none if it is a leaf."""
        at, axis = place
        node = self.nodes[at]
        match node:
            case Reduce(argument=argument):
                below = None if axis is None else _kept_axes(node, len(self.shapes[argument]))[axis]
                if below is None or self._slab(argument, below) > WIDEST * self.elements:
                    return []
                return [self._at(argument, below)]
            case View(argument, viewed):
                return [self._at(argument, None if axis is None else viewed[axis])]
        first = [len(self.shapes[at]) - len(self.shapes[of]) for of in node.arguments]
        return [
            self._at(of, None if axis is None else axis - leading)
            for of, leading in zip(node.arguments, first, strict=True)
        ]


def _kept_axes(node: Reduce, ndim: int) -> list[int]:
    """Return the axes of a reduction's argument that are those of its result."""
    return [axis for axis in range(ndim) if node.keepdims or axis not in node.axes]
