"""Plans and places follow from a program and the owners of its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dask_dgpu.algorithms.pencil_fft import plan_pencil_fft
from dask_dgpu.comm.local import run_local
from dask_dgpu.kernels.device.host import HostDevice
from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.value import Collective, Value
from dask_dgpu.runtime.execute import execute
from dask_dgpu.runtime.plans import plans
from dask_dgpu.runtime.program import Limits, Program
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Layout, cuts_of

ROWS, COLUMNS, WHOLE = cuts_of((2, 3)), cuts_of((3, 4)), (0, 7)
A = np.arange(35.0).reshape(5, 7)


def program(*steps: Any, inputs: Any, outputs: Any) -> Program:
    return Program("test", inputs, steps, outputs, HOST, "gloo", Limits())


def run(made: Program, size: int, owners: Any, blocks: Any) -> dict[Any, Any]:
    """Run on threads; each block of a result must be where the plan says, and there alone."""
    fixed = plans(made, owners, size)

    def rank(comm: Any) -> Any:
        mine = {
            name: {
                index: blocks[name][index]
                for index, owner in zip(value.indices(), owners[name], strict=True)
                if owner == comm.rank
            }
            for name, value in made.inputs
        }
        return execute(made, fixed, comm, HostDevice(), mine)

    parts = run_local(size, rank)
    placed = fixed.placed()
    assert sum(map(len, parts)) == len(placed)
    for rank_of_part, part in enumerate(parts):
        assert all(placed[key] == rank_of_part for key in part)
    return {key: block for part in parts for key, block in part.items()}


def cut(array: Any, value: Value) -> dict[Any, Any]:
    return {
        index: array[tuple(slice(c[i], c[i + 1]) for c, i in zip(value.cuts, index, strict=True))]
        for index in value.indices()
    }


def test_values_of_which_only_some_blocks_are_there() -> None:
    value = Value((ROWS, COLUMNS), "float64", ((0, 1), (1, 0)))
    assert value.grid == (2, 2)
    placed = value.placed((2, 1))
    assert placed.layout == Layout((ROWS, COLUMNS), (-1, 2, 1, -1))
    assert dict(placed.owners()) == {(0, 1): 2, (1, 0): 1}
    turned = placed.transposed((1, 0))
    assert turned.layout == Layout((COLUMNS, ROWS), (-1, 1, 2, -1))
    assert [value.nbytes(index) for index in value.indices()] == [2 * 4 * 8, 3 * 3 * 8]


def test_several_collectives_and_a_transpose() -> None:
    """``(a.T rechunked) @ b`` as one program: a plan's layout is the next one's input."""
    b = A[:, :3].copy()
    steps = (
        Collective("rechunk", ("a",), "t", Value((COLUMNS, (0, 5)), "float64"), (1, 0)),
        Collective("matmul", ("t", "b"), "c", Value((COLUMNS, (0, 3)), "float64"), ((0, 1), (0,))),
    )
    left, right = Value((ROWS, WHOLE), "float64"), Value(((0, 5), (0, 3)), "float64")
    made = program(*steps, inputs=(("a", left), ("b", right)), outputs=(("c", ((0, 0), (1, 0))),))
    owners = {"a": (0, 1), "b": (2,)}
    fixed = plans(made, owners, 3)
    assert fixed.collectives["c"].plan.a.owners == fixed.collectives["t"].plan.target.owners
    blocks = run(made, 3, owners, {"a": cut(A, left), "b": {(0, 0): b}})
    together = np.concatenate([blocks["c", 0, 0], blocks["c", 1, 0]])
    np.testing.assert_array_equal(together, A.T @ b)


def test_a_part_of_a_product_keeps_the_numbers_of_its_blocks() -> None:
    left, right = Value((ROWS, (0, 7)), "float64"), Value(((0, 7), (0, 5)), "float64")
    part = Value(left.cuts, "float64", ((1, 0),))
    result = Value((ROWS, (0, 5)), "float64", ((1, 0),))
    step = Collective("matmul", ("a", "b"), "c", result, ((1,), (0,)))
    made = program(step, inputs=(("a", part), ("b", right)), outputs=(("c", ((1, 0),)),))
    given = {"a": {(1, 0): A[2:]}, "b": {(0, 0): A.T.copy()}}
    blocks = run(made, 2, {"a": (1,), "b": (0,)}, given)
    assert blocks.keys() == {("c", 1, 0)}
    np.testing.assert_array_equal(blocks["c", 1, 0], A[2:] @ A.T)


TASKS = {
    "overlap": (((1, 1), (0, 2)), (None, None)),
    "sum": ((0, 1), True, "compensated", "sum"),
    "fft": plan_pencil_fft(((0,), (0,)), "float64", ()),
    "matmul": ((0,), (0,)),
}


ITERATIONS = ("jacobi", "stencil")  # empty arrays never get so far


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each not in ITERATIONS])
def test_costs_of_nothing_to_do(operation: str) -> None:
    empty = Value(((0, 0), (0, 0)), "float64")
    names = ("a", "b") if operation == "matmul" else ("a",)
    step = Collective(operation, names, "c", empty, TASKS.get(operation))
    inputs = tuple((name, empty) for name in names)
    made = program(step, inputs=inputs, outputs=(("c", ((0, 0),)),))
    fixed = plans(made, dict.fromkeys(names, (0,)), 2)
    cost = OPERATIONS[operation].cost(fixed.collectives["c"], HOST)
    assert (cost.moved_bytes, cost.peak_bytes) == (0, 0)
