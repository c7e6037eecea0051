"""One pass over a domain: all steps on one tile, then all on the next.

The first tile of each length is computed by NumPy alone, which decides dtypes and layouts. Further
tiles are computed in the memory of results and in few buffers, which stay in cache. Steps that are
not sliced are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dask_dgpu.kernels.fused.nodes import node_value
from dask_dgpu.kernels.fused.planning import Pass
from dask_dgpu.kernels.fused.reductions import REDUCTIONS, Part, State
from graph_opt.model.expression import Apply, Cast, Node, Reduce, View

Array = Any
VIEWS = ("real", "imag")
WITH_OUT = ("clip", "round")


class TilePass:
    """A pass of the expression with these nodes.

    ``known`` are the values of blocks, constants, and reductions of earlier passes.
    """

    def __init__(self, plan: Pass, nodes: Sequence[Any], known: Mapping[int, Array]) -> None:
        self.plan = plan
        self.nodes = [nodes[step.node] for step in plan.steps]  # by step, as all that follows
        self.shared: dict[int, Array] = {}  # values of all tiles
        self.sliced: dict[int, Array] = {}  # leaves of which each tile has a part
        for i, step in enumerate(plan.steps):
            if not step.arguments:
                (self.shared if step.axis is None else self.sliced)[i] = known[step.node]
        self.sums = {root: Sums(nodes[root], plan) for root in plan.merged}
        self.targets = {at for root, at in plan.roots.items() if root not in self.sums}
        self.results: dict[int, Array] = {}
        self.last = self._last_uses()
        # functions of steps with their buffers; None stands for the memory of a result
        self.bound: dict[int, tuple[Callable[..., Any], Array | None]] = {}
        self.free: dict[Any, list[Array]] = {}  # buffers that later steps may have too, by layout

    def run(self) -> dict[int, Array]:
        """Return the value of each root."""
        length = 0
        for part in self.plan.tiles:
            if part.stop - part.start != length:
                length, self.bound, self.free = part.stop - part.start, {}, {}
            values = self._values(part)
            shared: dict[int, dict[Any, Array]] = {}
            for root, sums in self.sums.items():
                at = self.plan.roots[root]
                sums.add(values[at], part.start, shared.setdefault(at, {}))
        return {
            root: self.sums[root].value() if root in self.sums else self.results[at]
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

    def _values(self, part: slice) -> list[Array]:
        """Compute a tile; return the values of steps that are still needed."""
        values: list[Array] = []
        for i, step in enumerate(self.plan.steps):
            place = () if step.axis is None else (*[slice(None)] * step.axis, part)
            if i in self.shared:
                value = self.shared[i]
            elif i in self.sliced:
                value = self.sliced[i][place]
            elif i in self.bound:
                function, buffer = self.bound[i]
                value = self.results[i][place] if buffer is None else buffer
                function(*[values[of] for of in step.arguments], out=value)
            else:
                value = self._computed(i, [values[of] for of in step.arguments], place)
            values.append(value)
            for of in step.arguments:
                if self.last[of] <= i:
                    values[of] = None
        return values

    def _computed(self, at: int, read: Sequence[Array], place: tuple[slice, ...]) -> Array:
        """Compute a step by NumPy alone; find memory for it in further tiles."""
        node, step = self.nodes[at], self.plan.steps[at]
        value, function = node_value(node, read), _function(node)
        for of in {*step.arguments}:  # then it works in place
            _, buffer = self.bound.get(of, (None, None))
            if self.last[of] == at and buffer is not None:
                self.free.setdefault(_layout(buffer), []).append(buffer)
        if at in self.targets:
            self._store(at, value, place)
        if step.axis is None:
            self.shared[at] = value
        elif function is not None and at in self.targets:
            self.bound[at] = function, None
        elif function is not None:
            waiting = self.free.get(_layout(value))
            self.bound[at] = function, waiting.pop() if waiting else np.empty_like(value)
        return value

    def _store(self, at: int, value: Array, place: tuple[slice, ...]) -> None:
        """Keep a tile of a result."""
        if at not in self.results:
            shape, axis = list(np.shape(value)), self.plan.steps[at].axis
            if axis is not None:
                shape[axis] = self.plan.domain[self.plan.axis or 0]
            if tuple(shape) == np.shape(value):
                self.results[at] = value
                return
            whole = not isinstance(self.nodes[at], Reduce)
            order = self.plan.order if whole else range(len(shape))
            memory = np.empty([shape[axis] for axis in order], value.dtype)
            self.results[at] = memory.transpose(np.argsort(order))
        self.results[at][place] = value


class Sums:
    """A reduction of which each tile has a part.

    Parts of equally many tiles are merged in pairs, as in NumPy's pairwise summation.
    """

    def __init__(self, node: Reduce, plan: Pass) -> None:
        self.node, self.plan, self.reduction = node, plan, REDUCTIONS[node.function]
        self.states: list[State] = []
        self.added = 0
        self.dtype: Any = None

    def add(self, value: Array, start: int, shared: dict[Any, Array]) -> None:
        """Add a tile; ``shared`` are its sums that are known, and are added to."""
        self.dtype, starts = value.dtype, [0] * value.ndim
        starts[self.plan.axis or 0] = start
        part = Part(value, tuple(starts), self.plan.domain, shared)
        self.states.append(self.reduction.begin(self.node, part))
        self.added += 1
        number = self.added
        while number % 2 == 0:
            self._merge()
            number //= 2

    def value(self) -> Array:
        """Return the complete reduction."""
        while len(self.states) > 1:
            self._merge()
        value = self.reduction.finish(self.node, self.dtype, self.states[0])
        return value if self.node.keepdims else value.squeeze(self.node.axes)[()]

    def _merge(self) -> None:
        self.states[-2:] = [self.reduction.merge(self.states[-2:])]


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
