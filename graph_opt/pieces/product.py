"""Products of two arrays, which are sums along a contracted axis."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from graph_opt.dask_graph.internals import Alias
from graph_opt.dask_graph.layers import array_of
from graph_opt.model.layout import ArrayNode, Cuts, cuts_of
from graph_opt.model.piece import Piece


@dataclass(frozen=True)
class ProductPiece(Piece):
    """A product of two arrays, or one term of it.

    ``depth`` are the blocks along the contracted axis that are multiplied, ``None`` for all.
    """

    left: ArrayNode
    right: ArrayNode
    depth: tuple[int, ...] | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def contracted(self) -> tuple[int, int]:
        """The axis of either operand along which ``depth`` counts."""

    @abstractmethod
    def plain(self) -> Array:
        """Return the same product by plain Dask, with all blocks of the output."""

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        return self.left, self.right

    @property
    def title(self) -> str:
        """The first layer, whose name has the operation."""
        return self.layers[0]

    @cached_property
    def multiplied(self) -> tuple[int, ...]:
        """The blocks along the contracted axis of the left operand that are multiplied."""
        blocks = self.left.grid[self.contracted[0]]
        return tuple(range(blocks)) if self.depth is None else self.depth

    @cached_property
    def summed(self) -> Cuts:
        left, right = (
            node.chunks[axis] for node, axis in zip(self.inputs, self.contracted, strict=True)
        )
        cuts = cuts_of([left[at] for at in self.multiplied])
        return cuts if left == right else (0, cuts[-1])

    def term(self, lo: int, hi: int) -> Self:
        blocks = self.multiplied[lo:hi]
        name = f"{self.output.name}-{blocks[0]}-{blocks[-1] + 1}"
        output = replace(self.output, name=name)
        return replace(self, output=output, depth=blocks, inner=self.layers)

    def operand(self, which: int) -> Array:
        """Return an operand for plain Dask: without its graph, and only with multiplied blocks."""
        x, axis = array_of(self.inputs[which]), self.contracted[which]
        if self.depth is None:
            return x
        found: Array = x.blocks[(*(slice(None),) * axis, [*self.depth])]
        return found

    def with_plain(self, graph: HighLevelGraph) -> HighLevelGraph:
        """Add the layers of plain Dask to a graph, with a last one of the name of the output."""
        product, name = self.plain(), self.output.name
        blocks = {
            (name, *at): Alias((name, *at), (product.name, *at)) for at in self.output.indices
        }
        layers = {**product.dask.layers, name: MaterializedLayer(blocks)}
        needed = {**product.dask.dependencies, name: {product.name}}
        return HighLevelGraph({**graph.layers, **layers}, {**graph.dependencies, **needed})
