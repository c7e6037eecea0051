"""One pass over a domain: all steps on one tile, then all on the next.

The first tile of each length is computed by NumPy alone, which decides dtypes and layouts. Further
tiles write into the same few buffers, which stay in cache. Steps that are not sliced are computed
once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.fused.nodes import node_value, reduced
from dask_dgpu.kernels.fused.planning import Pass
from dask_dgpu.kernels.fused.reductions import REDUCTIONS, Part, State
from graph_opt.model.expression import Apply, Cast, Constant, Input, Node, Reduce, View

Array = Any
VIEWS = ("real", "imag")
WITH_OUT = ("clip", "round")


class Call(NamedTuple):
    """A step with its function bound; ``out`` is a buffer, or the number of a result, or None."""

    at: int
    function: Callable[..., Any]
    arguments: tuple[int, ...]
    out: Any


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
        self.plan, self.nodes = plan, nodes
        self.constant: dict[int, Array] = {}  # values that all tiles share, by step
        self.sliced: dict[int, Array] = {}  # leaves of which each tile has a part
        for at, step in enumerate(plan.steps):
            if not step.arguments:
                leaf = _leaf(nodes[step.node], step.node, blocks, known)
                (self.constant if step.axis is None else self.sliced)[at] = leaf
        self.last = self._last_uses()
        self.follows = bool(known)
        self.results: dict[int, Array] = {}  # by step
        roots = plan.roots.items()
        self.sums = {
            root: Sums(node, plan) for root, _ in roots if isinstance(node := nodes[root], Reduce)
        }
        self.targets = {step for root, step in roots if root not in self.sums}

    def run(self) -> dict[int, Array]:
        """Return the value of each root."""
        bound: dict[int, list[Call]] = {}
        for part in self._tiles():
            length, values = part.stop - part.start, self._leaves(part)
            if length in bound:
                self._again(values, bound[length], part)
            else:
                bound[length] = self._first(values, part)
            shared: dict[int, dict[Any, Array]] = {}
            for root, sums in self.sums.items():
                step = self.plan.roots[root]
                sums.add(values[step], part, shared.setdefault(step, {}))
        return {
            root: self.sums[root].value if root in self.sums else self.results[step]
            for root, step in self.plan.roots.items()
        }

    def _last_uses(self) -> list[int]:
        """Return the last step that reads each step, through views too."""
        steps = self.plan.steps
        last = list(range(len(steps)))
        for placed in self.plan.roots.values():
            last[placed] = len(steps)
        for at in range(len(steps) - 1, -1, -1):
            shares = _is_view(self.nodes[steps[at].node])
            for of in steps[at].arguments:
                last[of] = max(last[of], last[at] if shares else at)
        return last

    def _tiles(self) -> list[slice]:
        """Return the tiles along the axis.

        After an earlier pass they are backwards: its last tiles may still be in cache.
        """
        axis, length = self.plan.axis, self.plan.length
        whole = 1 if axis is None else self.plan.domain[axis]
        tiles = [slice(at, min(at + length, whole)) for at in range(0, whole, length)]
        return tiles[::-1] if self.follows and not self.sums else tiles

    def _index(self, axis: int | None, part: slice) -> tuple[slice, ...]:
        return () if axis is None else (*[slice(None)] * axis, part)

    def _leaves(self, part: slice) -> list[Array]:
        """Return the values of a tile of which those are known that need no call."""
        values: list[Array] = [None] * len(self.plan.steps)
        for at, value in self.constant.items():
            values[at] = value
        for at, leaf in self.sliced.items():
            values[at] = leaf[self._index(self.plan.steps[at].axis, part)]
        return values

    def _first(self, values: list[Array], part: slice) -> list[Call]:
        """Compute a tile by NumPy alone; return the calls for those like it."""
        calls: list[Call] = []
        free: dict[Any, list[Array]] = {}
        buffers: dict[int, tuple[Any, Array]] = {}
        for at, step in enumerate(self.plan.steps):
            node = self.nodes[step.node]
            if at not in self.constant and at not in self.sliced:
                values[at] = node_value(node, [values[of] for of in step.arguments])
            spec = _layout(values[at], node)
            for of in [of for of in buffers if self.last[of] == at]:  # then it works in place
                key, buffer = buffers.pop(of)
                free.setdefault(key, []).append(buffer)
            out: Any = None
            if at in self.targets:
                out = self._store(at, values[at], part, spec)
            elif step.axis is None:
                self.constant[at] = values[at]
            elif spec is not None:
                waiting = free.get(spec)
                out = waiting.pop() if waiting else np.empty_like(values[at])
                buffers[at] = spec, out
            if at not in self.sliced and at not in self.constant:
                calls.append(Call(at, _bound(node, out is not None), step.arguments, out))
            for of in step.arguments:
                if self.last[of] <= at:
                    values[of] = None
        return calls

    def _store(self, at: int, value: Array, part: slice, spec: Any) -> Any:
        """Keep a tile of a result; return the step if calls may write to the result directly."""
        if np.shape(value) == self.plan.domain:
            self.results[at] = value
            return None
        if at not in self.results:
            self.results[at] = self._allocated(value.dtype)
        self.results[at][self._index(self.plan.axis, part)] = value
        return None if spec is None else at

    def _allocated(self, dtype: Any) -> Array:
        """Return new memory for a result."""
        domain, order = self.plan.domain, self.plan.order
        return np.empty([domain[axis] for axis in order], dtype).transpose(np.argsort(order))

    def _again(self, values: list[Array], calls: list[Call], part: slice) -> None:
        """Compute a tile of a known length, in the buffers."""
        for at, function, arguments, out in calls:
            read = [values[of] for of in arguments]
            if out is None:
                values[at] = function(*read)
                if at in self.targets:
                    self.results[at][self._index(self.plan.axis, part)] = values[at]
            else:
                result = isinstance(out, int)
                target = self.results[out][self._index(self.plan.axis, part)] if result else out
                function(*read, out=target)
                values[at] = target
        for at in self.targets & self.sliced.keys():
            self.results[at][self._index(self.plan.axis, part)] = values[at]


class Sums:
    """A reduction in a pass: it receives the tiles, and merges them if they share its results.

    Partial results are merged in pairs of about equal size, as in NumPy's pairwise summation.
    """

    def __init__(self, node: Reduce, plan: Pass) -> None:
        self.node, self.plan = node, plan
        self.merges = plan.axis in node.axes and plan.length < plan.domain[plan.axis]
        self._waiting: list[tuple[int, State]] = []
        self._result: Array | None = None

    def add(self, value: Array, part: slice, shared: dict[Any, Array]) -> None:
        """Add a tile; ``shared`` are its sums that are known, and are added to."""
        node, axis = self.node, self.plan.axis
        if not self.merges:
            whole = Reduce(node.function, 0, node.axes, True, node.options)
            self._write(reduced(whole, value), part)
            return
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

    def _write(self, value: Array, part: slice) -> None:
        """Keep what one tile gives, whose results are its own."""
        axis, shape = self.plan.axis, list(value.shape)
        if axis is None or axis in self.node.axes or shape[axis] == self.plan.domain[axis]:
            self._result = value
            return
        if self._result is None:
            shape[axis] = self.plan.domain[axis]
            self._result = np.empty(shape, value.dtype)
        self._result[(*[slice(None)] * axis, part)] = value


def _leaf(node: Node, at: int, blocks: Sequence[Array], known: Mapping[int, Array]) -> Array:
    match node:
        case Input(number):
            return blocks[number]
        case Constant(value):
            return value
    return known[at]


def _is_view(node: Node) -> bool:
    """Whether the value of a node may be in the memory of its argument's."""
    return isinstance(node, View) or (isinstance(node, Apply) and node.function in VIEWS)


def _layout(value: Array, node: Node) -> Any:
    """Return dtype, shape and strides of a value that calls can write into a buffer, else None."""
    takes_out = isinstance(node, Cast)
    if isinstance(node, Apply):
        takes_out = node.function in WITH_OUT or isinstance(getattr(np, node.function), np.ufunc)
    if takes_out and isinstance(value, np.ndarray) and value.ndim:
        return value.dtype, value.shape, value.strides
    return None


def _bound(node: Node, out: bool) -> Callable[..., Any]:
    """Return the function of a node, with its options."""
    if isinstance(node, Cast) and out:
        return _cast
    if isinstance(node, Apply):
        function, options = getattr(np, node.function), dict(node.options)
        return (lambda *read, **more: function(*read, **options, **more)) if options else function
    return lambda *read: node_value(node, read)


def _cast(value: Array, out: Array) -> None:
    np.copyto(out, value, casting="unsafe")
