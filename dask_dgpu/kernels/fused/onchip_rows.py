"""Rows on chip: what a kernel computes of them, and which threads have them in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dask_dgpu.kernels.fused.kernel import THREADS, Array
from dask_dgpu.kernels.fused.layout import lanes_of, order_of, strides_along, walk_of
from dask_dgpu.kernels.fused.reduce_shape import WARP
from dask_dgpu.kernels.fused.source import Axes, Code, Context, Misplaced
from dask_dgpu.kernels.fused.states import State, state_of, taken
from dask_dgpu.kernels.fused.typed import Typed
from graph_opt.model.expression import Node, Reduce

MOST_THREADS = 1024
MOST_ITEMS = 16
"""Most vectors of a thread."""

REGISTERS = 64
"""Most words of a thread for what it has read."""

FEW_ROWS, SMALL = 128, 1 << 20
"""Fewer long rows do not keep a device busy with one thread block each."""


class Rows:
    """What is computed of rows, how they lie in memory, and which threads have them."""

    def __init__(
        self,
        results: Sequence[int],
        reductions: Sequence[Sequence[int]],
        nodes: Sequence[Node],
        found: Sequence[Typed],
        arrays: Mapping[int, Array],
    ) -> None:
        self.results, self.nodes, self.found, self.arrays = results, nodes, found, arrays
        all_of = [nodes[at] for several in reductions for at in several]
        domains = {self._domain(node) for node in all_of}
        if len(domains) != 1:
            raise Misplaced
        self.shape, self.axes = domains.pop()
        self.rank = len(self.shape)
        self.kept_axes = [axis for axis in range(self.rank) if axis not in self.axes]
        self.context = Context(nodes, found, arrays.keys(), {}, {})
        self.given: dict[int, tuple[str, Axes]] = {}
        self.everywhere = tuple(a if self.shape[a] != 1 else None for a in range(self.rank))
        self.phases = [self._phase(at, several) for at, several in enumerate(reductions)]
        self.full, self.rows = Code(self.context, self.given), Code(self.context, self.given)
        self.values = [self._result(at) for at in results]
        self._arrange()

    def _domain(self, node: Node) -> tuple[tuple[int, ...], frozenset[int]]:
        if not isinstance(node, Reduce):
            raise TypeError(f"expected a reduction, got {node}")
        shape = self.found[node.argument].shape
        return shape, frozenset(axis % len(shape) for axis in node.axes)

    def _phase(
        self, number: int, several: Sequence[int]
    ) -> tuple[Code, list[str], list[State], Sequence[int]]:
        code, values, states = Code(self.context, dict(self.given)), [], []
        for at in several:
            node = self.nodes[at]
            argument = self.found[node.arguments[0]]
            state = state_of(node, argument, self.found[at]) if isinstance(node, Reduce) else None
            if state is None:
                raise TypeError(f"expected a reduction with generated code, got {node}")
            value = code.value(node.arguments[0], self.everywhere)
            values.append(taken(value, state, argument.dtype))
            states.append(state)
        for place, at in enumerate(several):
            lies = self._row_axes(self.found[at].shape)
            self.given[at] = f"x{number}_{place}", lies
        return code, values, states, several

    def _row_axes(self, shape: tuple[int, ...]) -> Axes:
        """Return how an array of one element a row lies in the domain."""
        kept = tuple(self.shape[axis] for axis in self.kept_axes)
        if shape == kept:
            return tuple(a if self.shape[a] != 1 else None for a in self.kept_axes)
        if shape == tuple(1 if a in self.axes else n for a, n in enumerate(self.shape)):
            return tuple(None if n == 1 else a for a, n in enumerate(shape))
        raise Misplaced

    def _result(self, at: int) -> tuple[bool, str]:
        """Return whether a result has an element for each of the domain, and its value."""
        shape = self.found[at].shape
        if shape == self.shape:
            return True, self.full.value(at, self.everywhere)
        return False, self.rows.value(at, self._row_axes(shape))

    def _arrange(self) -> None:
        """Choose the walks, the vectors and the threads of a row."""
        operands = list(self.context.operands)
        self.described = [self.arrays[operand.node] for operand in operands]
        strides = [
            strides_along(operand.axes, array.strides, array.shape, self.rank)
            for operand, array in zip(operands, self.described, strict=True)
        ]
        ordered = any(state.ordered for _, _, states, _ in self.phases for state in states)
        inner = sorted(self.axes)
        self.inner = inner if ordered else order_of(inner, strides)
        self.outer = order_of(self.kept_axes, strides)
        self.kept = walk_of("k", self.outer, self.shape, strides)
        self.reduced = walk_of("r", self.inner, self.shape, strides)
        near = sum(step == 1 for step in self.kept.inner)
        if near > sum(step == 1 for step in self.reduced.inner):
            raise Misplaced
        sizes = [array.dtype.itemsize for array in self.described]
        aligned = [array.aligned for array in self.described]
        written = [self.found[at].dtype.itemsize for at in self.results]
        self.lanes = lanes_of(self.reduced, self.kept, sizes, aligned, whole=True, results=written)
        vectors = -(-self.reduced.size // self.lanes)
        self.group = min(MOST_THREADS, 1 << (-(-vectors // 4) - 1).bit_length())
        if vectors <= 4 * WARP:
            self.group = min(WARP, 1 << (vectors - 1).bit_length())
        self.items = -(-vectors // self.group)
        words = sum(max(1, n // 4) for at, n in enumerate(sizes) if self.keeps(at))
        words *= self.items * self.lanes
        size = self.kept.size * self.reduced.size
        idle = self.kept.size < FEW_ROWS and size > SMALL
        self.threads = THREADS if self.group <= WARP else self.group
        whole = self.group * self.items * self.lanes == self.reduced.size
        self.exact = whole and self.items & (self.items - 1) == 0
        if words > REGISTERS or self.items > MOST_ITEMS or idle:
            raise Misplaced

    def keeps(self, at: int) -> bool:
        """Whether threads keep their part of an operand; what all rows share is read again."""
        alone = not self.kept.lengths
        return alone or any(self.kept.strides[at]) or not any(self.reduced.strides[at])
