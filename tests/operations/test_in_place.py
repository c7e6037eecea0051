"""A product whose operands lie right allocates its result, and copies nothing."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Operation, Placed, Request, Value
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Layout, cuts_of
from graph_opt.model.subscripts import Subscripts
from tests.support.memory import traced
from tests.support.programs import on_threads, run_operation

CONTRACT, MATMUL = OPERATIONS["contract"], OPERATIONS["matmul"]
Chunks = tuple[int, ...]
SIDE, HALF = (192, 192), (96, 96, 96, 96)
SMALL = 100_000
"""Bytes of Python's own objects: less than a block."""


def request(size: int, subscripts: str, chunks: dict[str, Chunks], matrices: bool) -> Request:
    """Return a product with the blocks of each operand in even shares in their order."""
    *terms, output = subscripts.replace("->", ",").split(",")
    operands = []
    for term in terms:
        cuts = tuple(cuts_of(chunks[letter]) for letter in term)
        count = prod(len(chunks[letter]) for letter in term)
        owners = tuple(at * size // count for at in range(count))
        operands.append(Placed(Layout(cuts, owners), "float64"))
    result = Value(tuple(cuts_of(chunks[letter]) for letter in output), "float64")
    lines = tuple(tuple(range(blocks)) for blocks in result.grid)
    task = (*lines, None, None) if matrices else (Subscripts(*terms, output), ())
    return Request(tuple(operands), result, task, size, HOST, None)


def allocated(operation: Operation, given: Request) -> tuple[dict[Any, Any], int]:
    """Return the blocks of the result, and the most bytes of all ranks besides the operands."""
    plan, rng = operation.plan(given), np.random.default_rng(0)
    whole = [
        {index: rng.random(each.layout.block_shape(index)) for index in each.layout.indices()}
        for each in given.inputs
    ]

    def run() -> list[Any]:
        return on_threads(
            given.size, lambda comm: run_operation(operation, plan, given, whole, comm)
        )

    run()  # imports, and workspaces of BLAS
    ranks, most = traced(run)
    return {index: block for made in ranks for index, block in made.items()}, most


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    ("subscripts", "chunks"),
    [
        ("abc,acd->abd", {"a": (1,) * 8, "b": SIDE[:1], "c": SIDE[:1], "d": SIDE[:1]}),
        ("abc,adc->abd", {"a": (2,) * 4, "b": SIDE[:1], "c": SIDE[:1], "d": SIDE[:1]}),
        ("acb,acd->abd", {"a": (2,) * 4, "b": SIDE, "c": SIDE, "d": SIDE}),
        ("abcd,abde->abce", {"a": (1,) * 4, "b": (3,), "c": SIDE, "d": SIDE, "e": SIDE}),
    ],
)
def test_a_batch(size: int, subscripts: str, chunks: dict[str, Chunks]) -> None:
    given = request(size, subscripts, chunks, matrices=False)
    blocks, most = allocated(CONTRACT, given)
    result = sum(block.nbytes for block in blocks.values())
    assert result == 8 * prod(cuts[-1] for cuts in given.result.cuts)
    assert result <= most <= result + SMALL


@pytest.mark.parametrize(
    ("rows", "inner", "copied"), [((384,), (384,), 0), (HALF, (384,), 0), ((384,), SIDE, 1)]
)
def test_a_product_on_one_rank(rows: Chunks, inner: Chunks, copied: bool) -> None:
    """Blocks along the contraction that are too short are copied into panels, as planned."""
    given = request(1, "ik,kj->ij", {"i": rows, "k": inner, "j": (384,)}, matrices=True)
    assert MATMUL.plan(given).plan.in_place == (not copied,) * 2
    blocks, most = allocated(MATMUL, given)
    result = sum(block.nbytes for block in blocks.values())
    assert result == 8 * 384**2
    assert result <= most
    assert (most > result + SMALL) == copied


def test_a_copy_is_counted() -> None:
    """Otherwise the tests above could not fail: a block that another rank has is received."""
    chunks = {"a": (1,) * 8, "b": SIDE[:1], "c": SIDE[:1], "d": SIDE[:1]}
    given = request(4, "abc,acd->abd", chunks, matrices=False)
    left, right = given.inputs
    moved = Placed(Layout(left.layout.cuts, left.layout.owners[::-1]), "float64")
    blocks, most = allocated(
        CONTRACT, Request((moved, right), given.result, given.task, 4, HOST, None)
    )
    assert most > sum(block.nbytes for block in blocks.values()) + SMALL
