"""Helpers to read what Dask built and what the rules make of it."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from graph_opt.dask_graph.emit import TaskFunctions
from graph_opt.dask_graph.parse import parse
from graph_opt.dask_graph.reader import LayerReader, Runtime
from graph_opt.dask_graph.rules import find
from graph_opt.model.piece import Blockwork, Member, Region
from graph_opt.model.reader import Matches
from graph_opt.passes import partition
from graph_opt.pieces.matmul import MatmulPiece


def stage(block: Any, declared: Any) -> Any:
    """Check a block that a collective reads against what the graph declares it to be."""
    if declared is not None:
        _, dtype, shape, container = declared
        assert (block.dtype, block.shape, container) == (dtype, shape, "numpy.ndarray")
    return block


def gang(region: Region, *staged: list[Any]) -> dict[Any, Any]:
    """Carry a region out in NumPy, one member after the other."""
    blocks: dict[Any, Any] = {}
    for (node, indices), given in zip(region.inputs, staged, strict=True):
        blocks.update({(node.name, *index): one for index, one in zip(indices, given, strict=True)})
    for member in region.members:
        for step in member.steps if isinstance(member, Blockwork) else (member,):
            made = _made(step, blocks)
            blocks.update({(step.output.name, *index): block for index, block in made.items()})
    return {(name, *index): blocks[name, *index] for name, some in region.wanted for index in some}


def _made(member: Member, blocks: dict[Any, Any]) -> dict[tuple[int, ...], Any]:
    if isinstance(member, Blockwork):
        return {key[1:]: task(blocks) for key, task in member.layer.items()}
    assert isinstance(member, MatmulPiece)
    left, right = member.left.name, member.right.name
    inner = range(len(member.left.chunks[1]))
    return {
        (i, j): sum(blocks[left, i, k] @ blocks[right, k, j] for k in inner)
        for i, j in member.computed
    }


def out(handle: Any, block: tuple[Any, ...]) -> Any:
    """Return one block."""
    return handle[block]


FUNCTIONS = TaskFunctions(stage, gang, out)


def array(*shape: int, chunks: Any = 4, seed: int = 0, dtype: Any = float) -> da.Array:
    """Return a Dask array of small random integers: products of these are exact."""
    values = np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)
    return da.from_array(values, chunks=chunks)


def matches(*arrays: da.Array) -> Matches:
    """Return what the rules find in the graph of some arrays."""
    merged = HighLevelGraph.merge(*(each.__dask_graph__() for each in arrays))
    return find(parse(merged, [each.__dask_keys__() for each in arrays]))


def keys_of(*arrays: da.Array) -> list[Any]:
    """Return the keys of all blocks."""
    return list(flatten([each.__dask_keys__() for each in arrays]))


def emitted(*arrays: da.Array) -> HighLevelGraph:
    """Return the graph of some arrays with gangs that compute in NumPy."""
    wanted = frozenset(keys_of(*arrays))
    merged = HighLevelGraph.merge(*(each.__dask_graph__() for each in arrays))
    reader = LayerReader(merged, wanted, Runtime(FUNCTIONS, lambda fusion: fusion, {}, {}))
    graph = reader.with_pieces(products(*arrays), left=reader.dependencies)
    return graph.emit((region, region) for region in partition(graph))


def products(*arrays: da.Array) -> tuple[MatmulPiece, ...]:
    """Return the products in the graph of some arrays."""
    return tuple(piece for piece in matches(*arrays).pieces if isinstance(piece, MatmulPiece))
