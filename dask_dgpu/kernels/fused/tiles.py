"""One pass over a domain: all steps on one tile, then all on the next.

The first tile of each length is computed by NumPy alone, which decides dtypes and layouts. Further
tiles are computed in the memory of results and in few buffers, which stay in cache. Steps that are
not sliced are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dask_dgpu.kernels.fused.nodes import node_value
from dask_dgpu.kernels.fused.planning import Pass
from dask_dgpu.kernels.fused.reductions import REDUCTIONS, Part, State
from graph_opt.model.expression import Apply, Cast, Constant, Input, Node, Reduce, View

Array = Any
VIEWS = ("real", "imag")
WITH_OUT = ("clip", "round")


class TilePass:
    """A pass on blocks, the inputs of the expression with these nodes.

    ``known`` are the reductions of earlier passes.
    """

    def __init__(
        self,
        plan: Pass,
        nodes: Sequence[Node],
        blocks: Sequence[Array],
        known: Mapping[int, Array],
    ) -> None:
        self.plan, self.follows = plan, bool(known)
        self.nodes = [nodes[step.node] for step in plan.steps]  # by step, as all that follows
        self.shared: dict[int, Array] = {}  # values of all tiles
        self.sliced: dict[int, Array] = {}  # leaves of which each tile has a part
        for at, step in enumerate(plan.steps):
            if not step.arguments:
                leaf = _leaf(self.nodes[at], step.node, blocks, known)
                (self.shared if step.axis is None else self.sliced)[at] = leaf
        roots = plan.roots.items()
        self.sums = {
            root: Sums(node, plan)
            for root, at in roots
            if isinstance(node := nodes[root], Reduce) and plan.steps[at].node != root
        }
        self.targets = {at for root, at in roots if root not in self.sums}
        self.results = {at: self.shared[at] for at in self.targets & self.shared.keys()}
        self.last = self._last_uses()
        # functions of steps with their buffers; None stands for the memory of a result
        self.bound: dict[int, tuple[Callable[..., Any], Array | None]] = {}
        self.free: dict[Any, list[Array]] = {}  # buffers that later steps may have too, by layout

    def run(self) -> dict[int, Array]:
        """Return the value of each root."""
        length = 0
        for part in self._tiles():
            if part.stop - part.start != length:
                length, self.bound, self.free = part.stop - part.start, {}, {}
            values = self._values(part)
            shared: dict[int, dict[Any, Array]] = {}
            for root, sums in self.sums.items():
                at = self.plan.roots[root]
                sums.add(values[at], part, shared.setdefault(at, {}))
        return {
            root: self.sums[root].value if root in self.sums else self.results[at]
            for root, at in self.plan.roots.items()
        }

    def _last_uses(self) -> list[int]:
        """Return the last step that reads each step, through views too."""
        steps = self.plan.steps
        last = list(range(len(steps)))
        for at in self.plan.roots.values():
            last[at] = len(steps)
        for at in range(len(steps) - 1, -1, -1):
            for of in steps[at].arguments:
                last[of] = max(last[of], last[at] if _is_view(self.nodes[at]) else at)
        return last

    def _tiles(self) -> list[slice]:
        """Return the tiles along the axis.

        After an earlier pass they are backwards: its last tiles may still be in cache.
        """
        axis, length = self.plan.axis, self.plan.length
        whole = 1 if axis is None else self.plan.domain[axis]
        tiles = [slice(at, min(at + length, whole)) for at in range(0, whole, length)]
        return tiles[::-1] if self.follows and not self.sums else tiles

    def _values(self, part: slice) -> list[Array]:
        """Compute a tile; return the values of steps that are still needed."""
        values: list[Array] = []
        for at, step in enumerate(self.plan.steps):
            if at in self.shared:
                values.append(self.shared[at])
            elif at in self.sliced:
                values.append(self.sliced[at][_index(step.axis, part)])
            else:
                read = [values[of] for of in step.arguments]
                if at in self.bound:
                    function, buffer = self.bound[at]
                    place = _index(step.axis, part)
                    values.append(self.results[at][place] if buffer is None else buffer)
                    function(*read, out=values[at])
                else:
                    values.append(self._computed(at, read, part))
            for of in step.arguments:
                if self.last[of] <= at:
                    values[of] = None
        return values

    def _computed(self, at: int, read: Sequence[Array], part: slice) -> Array:
        """Compute a step by NumPy alone; find memory for it in further tiles."""
        node, step = self.nodes[at], self.plan.steps[at]
        value, function = node_value(node, read), _function(node)
        for of in {*step.arguments}:  # then it works in place
            _, buffer = self.bound.get(of, (None, None))
            if self.last[of] == at and buffer is not None:
                self.free.setdefault(_layout(buffer), []).append(buffer)
        if at in self.targets:
            self._store(at, value, _index(step.axis, part))
        if step.axis is None:
            self.shared[at] = value
        elif function is not None:
            self.bound[at] = function, None if at in self.targets else self._buffer(value)
        return value

    def _buffer(self, like: Array) -> Array:
        waiting = self.free.get(_layout(like))
        return waiting.pop() if waiting else np.empty_like(like)

    def _store(self, at: int, value: Array, index: tuple[slice, ...]) -> None:
        """Keep a tile of a result."""
        if at not in self.results:
            shape, axis = list(np.shape(value)), self.plan.steps[at].axis
            if axis is not None:
                shape[axis] = self.plan.domain[self.plan.axis or 0]
            if tuple(shape) == np.shape(value):
                self.results[at] = value
                return
            self.results[at] = self._allocated(at, value.dtype, shape)
        self.results[at][index] = value

    def _allocated(self, at: int, dtype: Any, shape: Sequence[int]) -> Array:
        """Return new memory for a result."""
        if isinstance(self.nodes[at], Reduce):
            return np.empty(shape, dtype)
        order = self.plan.order
        return np.empty([shape[axis] for axis in order], dtype).transpose(np.argsort(order))


class Sums:
    """A reduction of which each tile has a part.

    Parts are merged in pairs of about equal size, as in NumPy's pairwise summation.
    """

    def __init__(self, node: Reduce, plan: Pass) -> None:
        self.node, self.plan = node, plan
        self._waiting: list[tuple[int, State]] = []
        self._result: Array | None = None

    def add(self, value: Array, part: slice, shared: dict[Any, Array]) -> None:
        """Add a tile; ``shared`` are its sums that are known, and are added to."""
        node, axis = self.node, self.plan.axis
        starts = [part.start if at == axis else 0 for at in range(len(self.plan.domain))]
        reduction = REDUCTIONS[node.function]
        state = reduction.begin(node, Part(value, tuple(starts), self.plan.domain, shared))
        weight, total = 1, 1 + sum(number for number, _ in self._waiting)
        parts = math.ceil(self.plan.domain[axis or 0] / self.plan.length)
        while self._waiting and (self._waiting[-1][0] <= weight or total == parts):
            number, earlier = self._waiting.pop()
            state = reduction.merge((earlier, state))
            weight += number
        self._waiting.append((weight, state))
        if weight == parts:
            self._result = reduction.finish(node, value.dtype, state)

    @property
    def value(self) -> Array:
        """The complete reduction."""
        if self._result is None:
            raise RuntimeError("expected all tiles to be added first")
        return self._result if self.node.keepdims else self._result.squeeze(self.node.axes)[()]


def _leaf(node: Node, at: int, blocks: Sequence[Array], known: Mapping[int, Array]) -> Array:
    match node:
        case Input(number):
            return blocks[number]
        case Constant(value):
            return value
    return known[at]


def _index(axis: int | None, part: slice) -> tuple[slice, ...]:
    return () if axis is None else (*[slice(None)] * axis, part)


def _is_view(node: Node) -> bool:
    """Whether the value of a node may be in the memory of its argument's."""
    return isinstance(node, View) or (isinstance(node, Apply) and node.function in VIEWS)


def _function(node: Node) -> Callable[..., Any] | None:
    """Return the function of a node if it writes into an array ``out``."""
    if isinstance(node, Cast):
        return _cast
    if not isinstance(node, Apply):
        return None
    function = getattr(np, node.function)
    if node.function not in WITH_OUT and not isinstance(function, np.ufunc):
        return None
    return partial(function, **dict(node.options)) if node.options else function


def _layout(value: Array) -> Any:
    return value.dtype, value.shape, value.strides


def _cast(value: Array, out: Array) -> None:
    np.copyto(out, value, casting="unsafe")
