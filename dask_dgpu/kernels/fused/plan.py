"""What is launched for an expression: one kernel where that is possible, else pass by pass.

A pass evaluates elementwise nodes from the blocks again, because computing them is cheaper than
writing and reading them. Arrays in memory are only the results of reductions, the results of nodes
without generated code, and the arguments of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dask_dgpu.kernels.fused.device_functions import TYPES
from dask_dgpu.kernels.fused.elementwise import elementwise
from dask_dgpu.kernels.fused.kernel import Array, Launch, contiguous
from dask_dgpu.kernels.fused.onchip import on_chip
from dask_dgpu.kernels.fused.reduce import reduction
from dask_dgpu.kernels.fused.source import Known, generated
from dask_dgpu.kernels.fused.states import state_of
from dask_dgpu.kernels.fused.typed import Typed, typed
from graph_opt.model.expression import Constant, Expression, Input, Node, Reduce, View

MOMENTS = ("var", "std")


class ByModule(NamedTuple):
    """A node that the array module evaluates itself."""

    node: int
    array: Array


def planned(expression: Expression, blocks: Sequence[Array]) -> list[Launch | ByModule]:
    """Return launches and calls in order; no kernel is for an expression with an empty array.

    Raises what NumPy raises for these dtypes and shapes.
    """
    dtypes, shapes = [block.dtype for block in blocks], [block.shape for block in blocks]
    found = typed(expression, dtypes, shapes)
    nodes, results = expression.nodes, expression.results
    cone = list(expression.cone(*results))
    if not any(0 in found[at].shape for at in cone):
        return _Planner(expression, blocks, found).plan()
    called = [at for at in cone if at in results or not isinstance(nodes[at], Constant)]
    return [_called(at, found[at]) for at in called if not isinstance(nodes[at], Input)]


def _called(at: int, found: Typed) -> ByModule:
    return ByModule(at, Array(found.dtype, found.shape, contiguous(found.shape), aligned=1))


class _Planner:
    def __init__(
        self, expression: Expression, blocks: Sequence[Array], found: Sequence[Typed]
    ) -> None:
        self.nodes, self.found = expression.nodes, found
        self.cone = list(expression.cone(*expression.results))
        self.results = expression.results
        self.arrays = {
            at: blocks[node.at] for at, node in enumerate(self.nodes) if isinstance(node, Input)
        }
        self.known = Known(self.nodes, found, self.arrays)
        self.stored = set(self.arrays)  # nodes that will be arrays in memory
        self.reductions: dict[tuple[Any, ...], list[int]] = {}
        self.written: dict[tuple[Any, ...], list[int]] = {}  # elementwise
        self.by_module: dict[int, list[int]] = {}
        self.ready: dict[int, int] = {}  # the passes before a node has its value

    def plan(self) -> list[Launch | ByModule]:
        """Return the steps."""
        for at in self.cone:
            self.ready[at] = self._scheduled(at, self.nodes[at])
        for at in dict.fromkeys(self.results):
            if at not in self.stored and not self.is_view(at):
                self._write(at)
        return self._one_kernel() or self._passes()

    def is_view(self, at: int) -> bool:
        """Whether a node is an array in memory, or a view of one."""
        node = self.nodes[at]
        return at in self.stored or (isinstance(node, View) and self.is_view(node.argument))

    def _scheduled(self, at: int, node: Node) -> int:
        """Note what must be launched for a node; return after how many passes it has its value."""
        before = max((self.ready[of] for of in node.arguments), default=0)
        if isinstance(node, Input):
            return 0
        if isinstance(node, Reduce) and self._reducible(at, node):
            self.reductions.setdefault((before, *self.known.domain(at)), []).append(at)
        elif not isinstance(node, Reduce) and generated(at, self.nodes, self.found):
            return before
        else:
            if isinstance(node, Constant):
                return 0
            for of in node.arguments:
                if not isinstance(self.nodes[of], Constant) and not self.is_view(of):
                    self._write(of)
                    before = max(before, self.ready[of] + 1)
            self.by_module.setdefault(before, []).append(at)
        self.stored.add(at)
        return before + 1

    def _reducible(self, at: int, node: Reduce) -> bool:
        argument, found = self.found[node.argument], self.found[at]
        if isinstance(self.nodes[node.argument], Constant):
            return False
        return argument.dtype.name in TYPES and state_of(node, argument, found) is not None

    def _write(self, at: int) -> None:
        several = self.written.setdefault((self.ready[at], self.found[at].shape), [])
        if at not in several:
            several.append(at)

    def _one_kernel(self) -> list[Launch | ByModule]:
        """Return the launch of rows on chip, if there are several passes over the blocks."""
        if self.by_module or not (self.written or self._moments()) or not self.reductions:
            return []
        results = [at for at in dict.fromkeys(self.results) if not self._is_block(at)]
        passes: dict[int, list[int]] = {}
        for (before, *_), several in self.reductions.items():
            passes.setdefault(before, []).extend(several)
        in_order = [passes[before] for before in sorted(passes)]
        launch = on_chip(results, in_order, self.known)
        return [launch] if launch else []

    def _moments(self) -> bool:
        """Whether some reduction merges moments, which takes long unless counts are known."""
        several = (self.nodes[at] for group in self.reductions.values() for at in group)
        return any(isinstance(node, Reduce) and node.function in MOMENTS for node in several)

    def _is_block(self, at: int) -> bool:
        node = self.nodes[at]
        return isinstance(node, Input) or (isinstance(node, View) and self._is_block(node.argument))

    def _passes(self) -> list[Launch | ByModule]:
        steps: list[Launch | ByModule] = []
        times = {time for time, *_ in (*self.reductions, *self.written)} | set(self.by_module)
        for time in sorted(times):
            made = [
                elementwise(several, self.known)
                for (when, _), several in self.written.items()
                if when == time
            ]
            made += [
                reduction(several, self.known)
                for (when, *_), several in self.reductions.items()
                if when == time
            ]
            calls = [_called(at, self.found[at]) for at in self.by_module.get(time, ())]
            for launch in made:
                for output in launch.outputs:
                    if output.node in self.stored:
                        self.arrays[output.node] = output.array
            self.arrays.update({call.node: call.array for call in calls})
            steps += [*made, *calls]
        return steps
