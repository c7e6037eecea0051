"""The piece of a contraction of two arrays of any number of axes, and its rule.

Dask builds a blockwise layer with partial products, and sums them over the contracted axes::

    da.matmul, @   _matmul       -> chunk_sum -> _chunk_sum-partial ... -> _chunk_sum-aggregate
      K in one chunk  _matmul    -> getitem (drops the contracted axis)
    da.tensordot   _tensordot    -> sum -> sum-partial ... -> sum-aggregate
    da.einsum      chunk_einsum  -> sum -> sum-partial ... -> sum-aggregate

Products of two matrices by ``matmul`` and ``dot`` are pieces of :mod:`graph_opt.pieces.matmul`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product as cartesian
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from graph_opt.dask_graph.internals import _matmul, chunk_einsum
from graph_opt.dask_graph.parse import (
    ArrayGraph,
    Rule,
    array_operands,
    block_function,
    follow,
    function_name,
    unsupported,
)
from graph_opt.dask_graph.work import LOOP_SLOWDOWN
from graph_opt.model.cost import Machine, dask_product_seconds
from graph_opt.model.layout import ArrayNode, Chunks, Declined, Index
from graph_opt.model.subscripts import REPEATED, Subscripts
from graph_opt.pieces import matmul

SUMS = ("sum-", "sum-partial-", "sum-aggregate-")
REDUCTIONS = (*matmul.REDUCTIONS, (chunk_einsum, SUMS))

Axes = tuple[int, ...]


@dataclass(frozen=True)
class ContractPiece(matmul.ProductPiece):
    """A contraction of two arrays, by letters for their axes.

    ``kept`` are the computed blocks along each axis of the output, ``None`` for all. ``loops`` is
    whether plain Dask multiplies blocks without BLAS.
    """

    subscripts: Subscripts
    kept: tuple[Axes, ...] | None = None
    loops: bool = field(default=False, kw_only=True)

    operation = "contract"

    @cached_property
    def task(self) -> tuple[Subscripts, tuple[tuple[str, Axes], ...]]:
        """The letters of all axes, and the blocks along those of which not all need to be read."""
        letters = self.subscripts.output + self._cut
        return self.subscripts, tuple(zip(letters, (*self._lines, self.multiplied), strict=True))

    @cached_property
    def contracted(self) -> tuple[int, int]:
        return self.subscripts.left.index(self._cut), self.subscripts.right.index(self._cut)

    def plain(self) -> Array:
        operands = [
            self.operand(which)[tuple(0 if each == REPEATED else slice(None) for each in letters)]
            for which, letters in enumerate((self.subscripts.left, self.subscripts.right))
        ]
        product: Array = da.einsum(str(self.subscripts).replace(REPEATED, ""), *operands)
        return product

    @property
    def _cut(self) -> str:
        """The letter of the contracted axis with most blocks."""
        blocks = dict(zip(self.subscripts.left, self.left.grid, strict=True))
        return max(self.subscripts.inner, key=blocks.__getitem__)

    @property
    def _lines(self) -> tuple[Axes, ...]:
        """The computed blocks along each axis of the output."""
        whole = tuple(tuple(range(blocks)) for blocks in self.output.grid)
        return whole if self.kept is None else self.kept

    @property
    def summary(self) -> str:
        left, right = (tuple(map(sum, chunks)) for chunks in self._read)
        return f"{self.subscripts} of {left} and {right} {self.output.dtype}"

    @property
    def facts(self) -> dict[str, Any]:
        computed = tuple(self._lengths[letter] for letter in self.subscripts.output)
        extra = {"shape": computed, "subscripts": str(self.subscripts)}
        return {**super().facts, **extra, "inner": self._product(self.subscripts.inner)}

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The blocks at the crossings of the kept blocks of all axes."""
        return tuple(cartesian(*self._lines))

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """The blocks of either operand that computed ones depend on."""
        left, right = (tuple(cartesian(*blocks)) for blocks in self._blocks())
        return left, right

    def _blocks(self) -> Iterator[list[Sequence[int]]]:
        """Yield the blocks along each axis of each operand that are read."""
        kept, letters_of = dict(self.task[1]), (self.subscripts.left, self.subscripts.right)
        for node, letters in zip(self.inputs, letters_of, strict=True):
            grid = zip(letters, node.grid, strict=True)
            yield [kept.get(letter, range(blocks)) for letter, blocks in grid]

    @cached_property
    def _read(self) -> tuple[Chunks, ...]:
        """The sizes of the chunks of each operand that are read."""
        return tuple(
            tuple(
                tuple(sizes[at] for at in along)
                for sizes, along in zip(node.chunks, blocks, strict=True)
            )
            for node, blocks in zip(self.inputs, self._blocks(), strict=True)
        )

    @cached_property
    def _lengths(self) -> dict[str, int]:
        """The length of each letter, in the computed part."""
        letters = self.subscripts.left + self.subscripts.right
        chunks = (sizes for operand in self._read for sizes in operand)
        return dict(zip(letters, map(sum, chunks), strict=True))

    def _product(self, letters: str) -> int:
        return math.prod(self._lengths[letter] for letter in letters)

    def restrict(self, wanted: frozenset[Index]) -> ContractPiece:
        """Keep, along each axis, the blocks with a wanted one."""
        axes = range(self.output.ndim)
        kept = tuple(tuple(sorted({index[axis] for index in wanted})) for axis in axes)
        return replace(self, kept=kept)

    def fault(self) -> str | None:
        chunks: dict[str, tuple[int, ...]] = {}
        names = "left", "right", "output"
        nodes = self.left, self.right, self.output
        letters = self.subscripts.left, self.subscripts.right, self.subscripts.output
        for name, node, some in zip(names, nodes, letters, strict=True):
            if len(some) != node.ndim:
                return f"expected {len(some)} axes of {name}, got {node.ndim}"
            for letter, sizes in zip(some, node.chunks, strict=True):
                expected = (1,) if letter == REPEATED else chunks.setdefault(letter, sizes)
                if sizes != expected:
                    return f"expected chunks {expected} of {letter} in {name}, got {sizes}"
        for axis, (blocks, count) in enumerate(zip(self._lines, self.output.grid, strict=True)):
            if not set(blocks) <= set(range(count)):
                return f"blocks {blocks} of axis {axis} do not exist"
        return self.subscripts.fault

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask: a product and a sum for each pair of blocks."""
        parts, letters = self.subscripts, self.subscripts.left + self.subscripts.right
        chunks = (sizes for operand in self._read for sizes in operand)
        grid = dict(zip(letters, map(len, chunks), strict=True))
        groups = parts.rows, parts.inner, parts.columns
        m, k, n = map(self._product, groups)
        rows, inner, columns = (math.prod(grid[letter] for letter in group) for group in groups)
        tasks = 2 * math.prod(grid[letter] for letter in set(letters) - {REPEATED})
        if self.loops:
            machine = replace(machine, flops=machine.flops / LOOP_SLOWDOWN, products=())
        terms = (m, k, n), (rows, inner, columns), self.output.dtype, ranks, machine
        batch = self._product(parts.batch)
        return tasks, dask_product_seconds(*terms, batch=batch, tasks=tasks)


def match(graph: ArrayGraph, name: str) -> ContractPiece | Declined | None:
    """Match the contraction whose blockwise layer is ``name``; ``None`` is none."""
    function = block_function(graph, name)
    reductions = [names for product, names in REDUCTIONS if product is function]
    operands = array_operands(graph, name)
    if not reductions or len(operands) < 2 or matmul.match(graph, name) is not None:
        return None
    if len(operands) > 2:
        return Declined(name, f"an einsum of {len(operands)} operands is no product of two")
    left, right = (graph.node(operand) for operand, _ in operands)
    if left is None or right is None:
        return Declined(name, "an operand is not a Dask array with known facts")
    indices = operands[0][1], operands[1][1], _kept(graph, name)
    reason = _subscripts(indices).fault or _options(graph, name, left, right)
    if reason is not None:
        return Declined(name, reason)
    passed = follow(graph, name, reductions[0], ndim=len(indices[2]))
    output = graph.node(passed[-1]) if passed else None
    if output is None:
        return Declined(name, "other layers than the sum read the partial products")
    if not output.known:
        return Declined(output.name, "chunk sizes are unknown")
    subscripts = _subscripts(indices, left, right, output)
    reason = _stretched(subscripts, left, right)
    if reason is not None:
        return Declined(output.name, reason)
    left, right = _up_to_date(subscripts, left, right, output)
    reason = unsupported((left, right), output)
    if reason is None and left.container != right.container:
        reason = "one operand has NumPy blocks and the other CuPy blocks"
    if reason is not None:
        return Declined(output.name, reason)
    loops = function is chunk_einsum and not _keywords(graph, name)["optimize"]
    piece = ContractPiece(output, left, right, subscripts, inner=(name, *passed), loops=loops)
    if piece.fault() is not None:
        return Declined(output.name, "the blocks of the result differ from those of the operands")
    return piece


RULE = Rule(match, functions=tuple(function_name(product) for product, _ in REDUCTIONS))


def _kept(graph: ArrayGraph, name: str) -> tuple[Any, ...]:
    """Return the index of the result: that of the partial products without the summed ones."""
    layer: Any = graph.layers[name]
    index, function = tuple(layer.output_indices), block_function(graph, name)
    if function is _matmul:
        return (*index[:-2], index[-1])
    if function is chunk_einsum:
        return index[: len(index) - _keywords(graph, name)["ncontract_inds"]]
    left, right = (each for _, each in array_operands(graph, name))
    return tuple(each for each in index if each not in left or each not in right)


def _options(graph: ArrayGraph, name: str, left: ArrayNode, right: ArrayNode) -> str | None:
    """Return which option of the call is not supported, ``None`` if all are."""
    layer: Any = graph.layers[name]
    options = _keywords(graph, name)
    if layer.concatenate:
        return "Dask concatenates sparse blocks"
    axes = options.get("axes")
    if axes is not None:
        first, second = (getattr(side, "args", side) for side in getattr(axes, "args", axes))
        if len(first) != len(second):
            return "the operands have different numbers of axes to sum over"
    dtype = options.get("kernel_dtype")
    if dtype is not None and np.dtype(dtype) != np.result_type(left.dtype, right.dtype):
        return f"dtype {dtype} is not that of the product"
    return None


def _keywords(graph: ArrayGraph, name: str) -> dict[str, Any]:
    layer: Any = graph.layers[name]
    found: dict[str, Any] = layer.task.kwargs
    return found


def _subscripts(indices: Sequence[tuple[Any, ...]], *nodes: ArrayNode) -> Subscripts:
    """Name indices by letters; given the arrays, find the axes of length 1 that are repeated."""
    names: dict[Any, str] = {}
    for each in (each for index in indices for each in index):
        names.setdefault(each, chr(ord("a") + len(names)))
    left, right, output = ([names[each] for each in index] for index in indices)
    if nodes:
        chunks = dict(zip(output, nodes[2].chunks, strict=True))
        for letters, others, node in ((left, right, nodes[0]), (right, left, nodes[1])):
            for axis, letter in enumerate(letters):
                if letter not in chunks or letter not in others or node.chunks[axis] != (1,):
                    continue
                if chunks[letter] != (1,) or letters is right:
                    letters[axis] = REPEATED
    return Subscripts("".join(left), "".join(right), "".join(output))


def _stretched(subscripts: Subscripts, left: ArrayNode, right: ArrayNode) -> str | None:
    """Return which summed axis has length 1 in one operand alone, ``None`` if none has."""
    for letter in subscripts.inner:
        axes = subscripts.left.index(letter), subscripts.right.index(letter)
        lengths = [sum(node.chunks[k]) for node, k in zip((left, right), axes, strict=True)]
        stale = any("-aggregate-" in node.name for node in (left, right))  # declared as (1,)
        if 1 in lengths and max(lengths) > 1 and not stale:
            return f"an axis of length 1 is summed against one of length {max(lengths)}"
    return None


def _up_to_date(
    subscripts: Subscripts, left: ArrayNode, right: ArrayNode, output: ArrayNode
) -> tuple[ArrayNode, ArrayNode]:
    """Correct the operands' chunk sizes by those of the result, which Dask declared last."""
    known = dict(zip(subscripts.output, output.chunks, strict=True))
    for letter in subscripts.inner:
        axes = subscripts.left.index(letter), subscripts.right.index(letter)
        known[letter] = matmul.inner_chunks(left, right, axes)

    def corrected(node: ArrayNode, letters: str) -> ArrayNode:
        found = []
        for letter, sizes in zip(letters, node.chunks, strict=True):
            right_size = len(known.get(letter, ())) == len(sizes)
            found.append(known[letter] if right_size else sizes)
        return replace(node, chunks=tuple(found))

    return corrected(left, subscripts.left), corrected(right, subscripts.right)
