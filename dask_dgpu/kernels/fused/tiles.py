"""One pass over a domain: all steps on one tile, then all on the next.

The first tile of each shape is computed by NumPy alone, which decides dtypes and layouts. Further
tiles write into the same few buffers, which stay in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.fused.functions import FUNCTIONS
from dask_dgpu.kernels.fused.nodes import node_value
from dask_dgpu.kernels.fused.planning import Pass
from dask_dgpu.kernels.fused.reducer import Reducer
from graph_opt.model.expression import Apply, Cast, Constant, Input, Node, Reduce, View

Array = Any
Index = tuple[slice, ...]
VIEWS = ("real", "imag")
WITH_OUT = ("clip", "round")


class Call(NamedTuple):
    """A step with its function bound; ``out`` is a buffer, or the number of a result, or None."""

    at: int
    function: Callable[..., Any]
    arguments: tuple[int, ...]
    out: Any


class TilePass:
    """A pass on blocks.

    Parameters
    ----------
    plan : Pass
        What is computed.
    nodes : sequence of Node
        Of the expression.
    blocks : sequence of array
        The expression's inputs.
    known : mapping of int to array
        The reductions of earlier passes.
    spare : mapping of int to array
        Nodes that are blocks which a result may overwrite: no later pass reads them.
    """

    def __init__(
        self,
        plan: Pass,
        nodes: Sequence[Node],
        blocks: Sequence[Array],
        known: Mapping[int, Array],
        spare: Mapping[int, Array],
    ) -> None:
        self.plan = plan
        self.spare = dict(spare)
        self.nodes = nodes
        self.leaves = {
            at: self._leaf(nodes[step.node], step.node, blocks, known)
            for at, step in enumerate(plan.steps)
            if not step.arguments
        }
        self.last = self._last_uses()
        self.follows = bool(known)
        self.results: dict[int, Array] = {}  # by step
        self.reducers = [
            Reducer(node, plan, placed)
            for root, placed in plan.roots.items()
            if isinstance(node := nodes[root], Reduce)
        ]
        self.targets = {
            placed for root, placed in plan.roots.items() if not isinstance(nodes[root], Reduce)
        }

    def run(self) -> dict[int, Array]:
        """Return the value of each root."""
        bound: dict[tuple[int, ...], list[Call]] = {}
        for index in self._tiles():
            lengths = tuple(part.stop - part.start for part in index)
            if lengths in bound:
                values = self._again(bound[lengths], index)
            else:
                values, bound[lengths] = self._first(index)
            sums: dict[int, dict[Any, Array]] = {reducer.step: {} for reducer in self.reducers}
            for reducer in self.reducers:
                reducer.add(values[reducer.step], index, sums[reducer.step])
        found = {reducer.node: reducer.value for reducer in self.reducers}
        roots = self.plan.roots.items()
        return {
            root: found[node]
            if isinstance(node := self.nodes[root], Reduce)
            else self.results[placed]
            for root, placed in roots
        }

    def _leaf(
        self, node: Node, at: int, blocks: Sequence[Array], known: Mapping[int, Array]
    ) -> Array:
        match node:
            case Input(number):
                return blocks[number]
            case Constant(value):
                return value
            case _:
                return known[at]

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

    def _tiles(self) -> Iterator[Index]:
        """Yield the tiles, in the order of the plan.

        After an earlier pass they are yielded backwards: the last ones may still be in cache.
        """
        domain, tile = self.plan.domain, self.plan.tile
        step = -1 if self.follows and not self.reducers else 1
        starts = [range(0, domain[axis], length)[::step] for axis, length in tile.items()]
        index = [slice(0, length) for length in domain]
        for corner in product(*starts):
            for (axis, length), start in zip(tile.items(), corner, strict=True):
                index[axis] = slice(start, min(start + length, domain[axis]))
            yield tuple(index)

    def _sliced(self, at: int, index: Index) -> Array:
        axes = self.plan.steps[at].axes
        leaf = self.leaves[at]
        if not any(axis is not None for axis in axes):
            return leaf
        return leaf[tuple(slice(None) if axis is None else index[axis] for axis in axes)]

    def _first(self, index: Index) -> tuple[list[Array], list[Call]]:
        """Compute a tile by NumPy alone; return its values and the calls for those like it."""
        values: list[Array] = []
        calls: list[Call] = []
        free: dict[Any, list[Array]] = {}
        buffers: dict[int, tuple[Any, Array]] = {}
        for at, step in enumerate(self.plan.steps):
            node = self.nodes[step.node]
            if at in self.leaves:
                values.append(self._sliced(at, index))
            else:
                values.append(node_value(node, [values[of] for of in step.arguments]))
            spec = _layout(values[at], node)
            for of in list(buffers):  # in place if an argument is not needed any more
                if self.last[of] == at:
                    key, buffer = buffers.pop(of)
                    free.setdefault(key, []).append(buffer)
            out: Any = None
            if at in self.targets:
                out = self._store(at, values[at], index, spec)
            elif spec is not None:
                waiting = free.get(spec)
                buffers[at] = spec, (waiting.pop() if waiting else np.empty_like(values[at]))
                out = buffers[at][1]
            if at not in self.leaves:
                calls.append(Call(at, _bound(node, out is not None), step.arguments, out))
            for of in step.arguments:
                if self.last[of] <= at:
                    values[of] = None
        return values, calls

    def _store(self, at: int, value: Array, index: Index, spec: Any) -> Any:
        """Keep a tile of a result; return the step if calls may write to the result directly."""
        if not self.plan.tile:
            self.results[at] = value
            return None
        if at not in self.results:
            self.results[at] = self._allocated(at, np.asarray(value).dtype)
        self.results[at][index] = value
        return None if spec is None else at

    def _allocated(self, at: int, dtype: Any) -> Array:
        """Return the memory of a result: new, or a spare block's.

        Its tiles must be those of the result, and be read before the result is written.
        """
        for node, block in self.spare.items():
            read = [number for number, step in enumerate(self.plan.steps) if step.node == node]
            if (
                (block.dtype, block.shape) == (dtype, self.plan.domain)
                and block.transpose(self.plan.order).flags.c_contiguous
                and all(self.last[number] <= at for number in read)
                and all(self.plan.steps[number].axes == self._whole() for number in read)
            ):
                del self.spare[node]
                return block
        return _empty(self.plan, dtype)

    def _whole(self) -> tuple[int | None, ...]:
        """Return the axes of a step that lies as the domain does."""
        lengths = enumerate(self.plan.domain)
        return tuple(axis if axis in self.plan.tile and n != 1 else None for axis, n in lengths)

    def _again(self, calls: list[Call], index: Index) -> list[Array]:
        """Compute a tile of a known shape, in the buffers."""
        values: list[Any] = [None] * len(self.plan.steps)
        for at in self.leaves:
            values[at] = self._sliced(at, index)
        for at, function, arguments, out in calls:
            read = [values[of] for of in arguments]
            if out is None:
                values[at] = function(*read)
                if at in self.targets:
                    self.results[at][index] = values[at]
            else:
                target = self.results[out][index] if isinstance(out, int) else out
                function(*read, out=target)
                values[at] = target
        for at in self.targets & self.leaves.keys():
            self.results[at][index] = values[at]
        return values


def _is_view(node: Node) -> bool:
    """Whether the value of a node may be in the memory of its argument's."""
    return isinstance(node, View) or (isinstance(node, Apply) and node.function in VIEWS)


def _takes_out(node: Node) -> bool:
    if isinstance(node, Apply):
        return FUNCTIONS[node.function].ufunc or node.function in WITH_OUT
    return isinstance(node, Cast)


def _layout(value: Array, node: Node) -> Any:
    """Return dtype, shape and strides of a value that calls can write into a buffer, else None."""
    if _takes_out(node) and isinstance(value, np.ndarray) and value.ndim:
        return value.dtype, value.shape, value.strides
    return None


def _bound(node: Node, out: bool) -> Callable[..., Any]:
    """Return the function of a node, with its options."""
    if isinstance(node, Cast) and out:
        return _cast
    if isinstance(node, Apply):
        function, options = FUNCTIONS[node.function].call, dict(node.options)
        return (lambda *read, **more: function(*read, **options, **more)) if options else function
    return lambda *read: node_value(node, read)


def _cast(value: Array, out: Array) -> None:
    np.copyto(out, value, casting="unsafe")


def _empty(plan: Pass, dtype: Any) -> Array:
    """Allocate a result, with the axes in memory in the order of the domain's."""
    laid = np.empty([plan.domain[axis] for axis in plan.order], dtype)
    return laid.transpose(np.argsort(plan.order))
