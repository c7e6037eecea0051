"""The piece of a matrix product, and its rule; its target is the ``summa`` algorithm.

Dask builds three or more layers for one product of two matrices::

    da.matmul, @       _matmul -> chunk_sum -> _chunk_sum-partial ... -> _chunk_sum-aggregate
      K in one chunk   _matmul -> getitem (drops the contracted axis)
    da.dot             _tensordot -> sum -> sum-partial ... -> sum-aggregate

The first layer is blockwise with one axis for the contraction; the last is the result. For
one-dimensional operands Dask adds other layers around these.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product as cartesian
from typing import Any, Self, cast

import dask.array as da
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from graph_opt.dask_graph.internals import Alias, _matmul, _tensordot
from graph_opt.dask_graph.layers import array_of
from graph_opt.dask_graph.parse import (
    ArrayGraph,
    Rule,
    array_operands,
    block_function,
    follow,
    function_name,
    unsupported,
)
from graph_opt.model.cost import Machine, dask_product_seconds
from graph_opt.model.layout import ArrayNode, Cuts, Declined, Index, cuts_of
from graph_opt.model.piece import Piece

MATMUL = da.matmul
"""Dask's own function: settings may replace it."""

REDUCTIONS = (
    (_matmul, ("chunk_sum-", "_chunk_sum-partial-", "_chunk_sum-aggregate-", "getitem-")),
    (_tensordot, ("sum-", "sum-partial-", "sum-aggregate-")),
)


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


@dataclass(frozen=True)
class MatmulPiece(ProductPiece):
    """A matrix product ``output = left @ right``.

    ``rows`` and ``columns`` are the computed block rows and columns of the output, ``None``
    for all. ``options`` are those of the algorithm, ``None`` for its defaults.
    """

    rows: tuple[int, ...] | None = None
    columns: tuple[int, ...] | None = None
    options: Any = None

    operation = "matmul"

    @property
    def contracted(self) -> tuple[int, int]:
        return 1, 0

    @property
    def task(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None, Any]:
        """The computed block rows and block columns, ``depth``, and the options."""
        return *self.lines, self.depth, self.options

    def plain(self) -> Array:
        product: Array = MATMUL(self.operand(0), self.operand(1))
        return product

    @cached_property
    def lines(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The computed block rows and block columns."""
        rows, columns = map(range, self.output.grid)
        return (
            tuple(rows) if self.rows is None else self.rows,
            tuple(columns) if self.columns is None else self.columns,
        )

    @cached_property
    def part(self) -> MatmulPiece:
        """The computed part, as a whole product of smaller matrices."""
        rows = tuple(self.output.chunks[0][i] for i in self.lines[0])
        columns = tuple(self.output.chunks[1][j] for j in self.lines[1])
        left, right = self.left.chunks[1], self.right.chunks[0]
        if self.depth is not None:
            left = right = tuple(left[k] for k in self.depth)
        return MatmulPiece(
            output=replace(self.output, chunks=(rows, columns)),
            left=replace(self.left, chunks=(rows, left)),
            right=replace(self.right, chunks=(right, columns)),
            inner=self.inner,
        )

    @property
    def summary(self) -> str:
        (m, n), k = self.part.output.shape, self.part.left.shape[1]
        return f"({m}, {k}) @ ({k}, {n}) {self.output.dtype}"

    @property
    def facts(self) -> dict[str, Any]:
        part = self.part
        return {**super().facts, "shape": part.output.shape, "inner": part.left.shape[1]}

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The blocks at the crossings of block rows and columns."""
        return tuple(cartesian(*self.lines))

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """Block rows of the left and block columns of the right operand."""
        rows, columns = self.lines
        right = range(self.right.grid[0]) if self.depth is None else self.depth
        return tuple(cartesian(rows, self.multiplied)), tuple(cartesian(right, columns))

    def restrict(self, wanted: frozenset[Index]) -> MatmulPiece:
        """Keep the block rows and columns with a wanted block."""
        rows, columns = (tuple(sorted({index[axis] for index in wanted})) for axis in (0, 1))
        return replace(self, rows=rows, columns=columns)

    def fault(self) -> str | None:
        left, right, output = self.left, self.right, self.output
        if left.shape[1] != right.shape[0]:
            return f"expected equal inner lengths, got shapes {left.shape} and {right.shape}"
        chunks = left.chunks[0], right.chunks[1]
        if output.chunks != chunks:
            return f"expected chunks {chunks}, got {output.chunks}"
        for name, blocks, count in zip(("rows", "columns"), self.lines, output.grid, strict=True):
            if not set(blocks) <= set(range(count)):
                return f"block {name} {blocks} do not exist"
        return None

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask: a product and a sum for each triple of blocks."""
        part = self.part
        (m, n), k = part.output.shape, part.left.shape[1]
        (rows, inner), (_, columns) = part.left.grid, part.output.grid
        blocks = rows, inner, columns
        seconds = dask_product_seconds((m, k, n), blocks, part.output.dtype, ranks, machine)
        return 2 * math.prod(blocks), seconds


def match(graph: ArrayGraph, name: str) -> MatmulPiece | Declined | None:
    """Match the product whose blockwise layer is ``name``; ``None`` is no product of matrices."""
    function = block_function(graph, name)
    reductions = [names for product, names in REDUCTIONS if product is function]
    if not reductions:
        return None
    operands = array_operands(graph, name)
    nodes = [graph.node(operand) for operand, _ in operands]
    if len(nodes) != 2 or nodes[0] is None or nodes[1] is None:
        return Declined(name, "an operand is not a Dask array with known facts")
    left, right = nodes[0], nodes[1]
    if left.ndim != 2 or right.ndim != 2:
        return None
    (rows, inner), (inner_right, columns) = (index for _, index in operands)
    if inner != inner_right or rows == columns or not _contracts_plainly(graph, name):
        return None
    passed = follow(graph, name, reductions[0], ndim=2)
    output = graph.node(passed[-1]) if passed else None
    if output is None:
        return Declined(name, "other layers than the sum read the partial products")
    if not output.known:
        return Declined(output.name, "chunk sizes are unknown")
    if (left.grid[0], right.grid[1]) != output.grid:
        return Declined(output.name, "the blocks of the result differ from those of the operands")
    left, right = _up_to_date(left, right, output)
    reason = unsupported((left, right), output)
    if reason is None and left.container != right.container:
        reason = "one operand has NumPy blocks and the other CuPy blocks"
    if reason is not None:
        return Declined(output.name, reason)
    return MatmulPiece(output, left, right, inner=(name, *passed))


RULE = Rule(match, functions=tuple(function_name(product) for product, _ in REDUCTIONS))


def _up_to_date(
    left: ArrayNode, right: ArrayNode, output: ArrayNode
) -> tuple[ArrayNode, ArrayNode]:
    """Correct the operands' chunk sizes by those of the product, which Dask declared last.

    ``compute_chunk_sizes``, for example, does not update the layer of its array. Only the
    operands have the sizes along the contraction, and Dask has made these equal.
    """
    inner = inner_chunks(left, right, (1, 0))
    rows, columns = output.chunks
    return replace(left, chunks=(rows, inner)), replace(right, chunks=(inner, columns))


def inner_chunks(left: ArrayNode, right: ArrayNode, axes: tuple[int, int]) -> tuple[int, ...]:
    """Return the chunk sizes of an axis of both operands, NaN if they are out of date."""
    sizes, others = left.chunks[axes[0]], right.chunks[axes[1]]
    # Dask declares one value for a reduction with several, so (1,) may be more
    reduced = all("-aggregate-" in node.name for node in (left, right)) and sizes == (1,)
    if any(map(math.isnan, sizes)):
        return others
    if reduced or (not any(map(math.isnan, others)) and sizes != others):
        return (cast(int, math.nan),) * len(sizes)
    return sizes


def _contracts_plainly(graph: ArrayGraph, name: str) -> bool:
    layer: Any = graph.layers[name]
    axes = layer.task.kwargs.get("axes")
    if axes is None:
        return True
    left, right = (tuple(getattr(side, "args", side)) for side in getattr(axes, "args", axes))
    return left in ((1,), (-1,)) and right in ((0,), (-2,)) and not layer.concatenate
