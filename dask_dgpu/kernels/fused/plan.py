"""What is launched for an expression: one kernel where that is possible, else pass by pass.

A pass evaluates elementwise nodes from the blocks again, because computing them is cheaper than
writing and reading them. Arrays in memory are only the results of reductions, the results of nodes
without generated code, and the arguments of these.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NamedTuple

from dask_dgpu.kernels.fused.elementwise import elementwise
from dask_dgpu.kernels.fused.kernel import Array, Launch, contiguous
from dask_dgpu.kernels.fused.onchip import on_chip
from dask_dgpu.kernels.fused.reduce import reduction
from dask_dgpu.kernels.fused.source import Known
from dask_dgpu.kernels.fused.states import state_of
from dask_dgpu.kernels.fused.typed import typed
from graph_opt.model.expression import Constant, Expression, Input, Reduce, View

WRITE, REDUCE, CALL = range(3)
"""What is done for nodes, in this order: they are stored, reduced, or left to the module."""


class ByModule(NamedTuple):
    """A node that the array module evaluates itself."""

    node: int
    array: Array


def planned(expression: Expression, blocks: Sequence[Array]) -> list[Launch | ByModule]:
    """Return launches and calls in order; no kernel is for an expression with an empty array.

    Raises what NumPy raises for these dtypes and shapes.
    """
    return _Planner(expression, blocks).plan()


class _Planner:
    def __init__(self, expression: Expression, blocks: Sequence[Array]) -> None:
        dtypes, shapes = [block.dtype for block in blocks], [block.shape for block in blocks]
        self.nodes, self.results = expression.nodes, dict.fromkeys(expression.results)
        self.node_types = typed(expression, dtypes, shapes)
        self.cone = list(expression.cone(*self.results))
        self.empty = any(0 in self.node_types[at].shape for at in self.cone)
        inputs = ((i, node) for i, node in enumerate(self.nodes) if isinstance(node, Input))
        arrays = {at: blocks[node.at] for at, node in inputs}
        self.known = Known(self.nodes, self.node_types, arrays, {})
        self.stored = set(arrays)  # nodes that will be arrays in memory
        # nodes by the number of passes before, what is done, and their domain
        self.work: dict[tuple[int, int, Any], list[int]] = {}
        self.ready: dict[int, int] = {}  # the passes before a node has its value

    def plan(self) -> list[Launch | ByModule]:
        """Return the steps."""
        for at in self.cone:
            self.ready[at] = self._scheduled(at)
        for at in self.results:
            if not self._is_view(at, self.stored):
                self._write(at)
        in_order = sorted(self.work, key=lambda key: key[:2])
        return self._one_kernel(in_order) or self._passes(in_order)

    def _is_view(self, at: int, arrays: Container[int]) -> bool:
        """Whether a node is one of these arrays, or a view of one."""
        node = self.nodes[at]
        return at in arrays or (isinstance(node, View) and self._is_view(node.argument, arrays))

    def _scheduled(self, at: int) -> int:
        """Note what must be launched for a node; return after how many passes it has its value."""
        node, types = self.nodes[at], self.node_types
        before = max((self.ready[of] for of in node.arguments), default=0)
        if isinstance(node, Input | Constant):
            return 0
        state = None
        if isinstance(node, Reduce) and not self.empty:
            state = state_of(node, types[node.argument], types[at])
        if isinstance(node, Reduce) and state is not None:
            self.known.reductions[at] = node, state
            self._add(at, before, REDUCE, self.known.domain(at))
        elif types[at].known and not isinstance(node, Reduce) and not self.empty:
            return before
        else:
            for of in node.arguments:
                if not isinstance(self.nodes[of], Constant) and not self._is_view(of, self.stored):
                    self._write(of)
                    before = max(before, self.ready[of] + 1)
            self._add(at, before, CALL)
        self.stored.add(at)
        return before + 1

    def _write(self, at: int) -> None:
        self._add(at, self.ready[at], CALL if self.empty else WRITE, self.node_types[at].shape)

    def _add(self, at: int, before: int, what: int, domain: Any = None) -> None:
        several = self.work.setdefault((before, what, domain), [])
        if at not in several:
            several.append(at)

    def _one_kernel(self, in_order: Sequence[tuple[int, int, Any]]) -> list[Launch | ByModule]:
        """Return the launch of rows on chip, if there are several passes over the blocks."""
        kinds = {what for _, what, _ in self.work}
        # merging moments takes long unless counts are known
        moments = any(state.shifts for _, state in self.known.reductions.values())
        if not (kinds == {WRITE, REDUCE} or (kinds == {REDUCE} and moments)):
            return []
        passes: dict[int, list[int]] = {}
        for before, what, domain in in_order:
            if what == REDUCE:
                passes.setdefault(before, []).extend(self.work[before, what, domain])
        results = [at for at in self.results if not self._is_view(at, self.known.arrays)]
        launch = on_chip(results, [*passes.values()], self.known)
        return [launch] if launch else []

    def _passes(self, in_order: Sequence[tuple[int, int, Any]]) -> list[Launch | ByModule]:
        steps: list[Launch | ByModule] = []
        for key in in_order:
            nodes, (_, what, _) = self.work[key], key
            if what == WRITE:
                steps.append(elementwise(nodes, self.known))
            elif what == REDUCE:
                launch = reduction(nodes, self.known)
                self.known.arrays.update({x.node: x.array for x in launch.outputs})
                steps.append(launch)
            else:
                for at in nodes:
                    dtype, shape, *_ = self.node_types[at]
                    array = Array(dtype, shape, contiguous(shape), aligned=1)
                    self.known.arrays[at] = array
                    steps.append(ByModule(at, array))
        return steps
