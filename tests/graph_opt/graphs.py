"""Helpers to read what Dask built and what the rules make of it."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from graph_opt.emit import GangLayer, TaskFunctions
from graph_opt.parse import parse
from graph_opt.piece import Piece
from graph_opt.product import Product
from graph_opt.redistribution import Redistribution
from graph_opt.rewrite import Matches, find, replace


def stage(block: Any, declared: Any) -> Any:
    """Check the block against what the graph declares it to be."""
    dtype, shape, container = declared
    assert (block.dtype, block.shape, container) == (dtype, shape, "numpy.ndarray")
    return block


def gang(program: Any, left: list[Any], right: list[Any]) -> Any:
    """Multiply in NumPy."""
    rows, inner, inner_right, columns, computed = program
    assert (len(left), len(right)) == (rows * inner, inner_right * columns)
    a = np.block([left[i * inner : (i + 1) * inner] for i in range(rows)])
    b = np.block([right[k * columns : (k + 1) * columns] for k in range(inner_right)])
    heights = [left[i * inner].shape[0] for i in range(rows)]
    widths = [block.shape[1] for block in right[:columns]]
    blocks = [
        block
        for row in np.split(a @ b, np.cumsum(heights)[:-1])
        for block in np.split(row, np.cumsum(widths)[:-1], axis=1)
    ]
    return dict(zip(computed, blocks, strict=True))


def out(handle: Any, index: tuple[int, int]) -> Any:
    """Return one block."""
    return handle[index]


def make_program(piece: Piece) -> Any:
    """Numbers of blocks, and the places of those that are made."""
    assert isinstance(piece, Product)
    rows, columns = piece.kept
    inner, inner_right = len(piece.left.chunks[1]), len(piece.right.chunks[0])
    return len(rows), inner, inner_right, len(columns), piece.computed


FUNCTIONS = TaskFunctions(stage, gang, out)


def layer_of(piece: Piece) -> GangLayer:
    """Return a gang that multiplies in NumPy."""
    return GangLayer(piece, FUNCTIONS, make_program)


def array(*shape: int, chunks: Any = 4, seed: int = 0, dtype: Any = float) -> da.Array:
    """Return a Dask array of small random integers: products of these are exact."""
    values = np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)
    return da.from_array(values, chunks=chunks)


def matches(*arrays: da.Array) -> Matches:
    """Return what the rules find in the graph of some arrays."""
    merged = HighLevelGraph.merge(*(each.__dask_graph__() for each in arrays))
    return find(parse(merged, [each.__dask_keys__() for each in arrays]))


def rewritten(x: da.Array) -> HighLevelGraph:
    """Return the graph of an array with gangs that multiply in NumPy."""
    return replace(x.__dask_graph__(), products(x), layer_of)


def products(*arrays: da.Array) -> tuple[Product, ...]:
    """Return the products in the graph of some arrays."""
    return tuple(piece for piece in matches(*arrays).pieces if isinstance(piece, Product))


def rechunks(*arrays: da.Array) -> tuple[Redistribution, ...]:
    """Return the rechunks in the graph of some arrays."""
    return tuple(piece for piece in matches(*arrays).pieces if isinstance(piece, Redistribution))


def one(x: da.Array) -> Product:
    """Return the one product in the graph of an array."""
    (product,) = products(x)
    return product


def reason(*arrays: da.Array) -> str:
    """Return why the one product was declined."""
    found = matches(*arrays)
    assert not products(*arrays)
    (declined,) = found.declined
    return declined.reason
