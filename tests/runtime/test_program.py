"""Plans and places follow from a program and the owners of its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dask_dgpu.algorithms.pencil_fft import plan_pencil_fft
from dask_dgpu.comm.local import run_local
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.runtime.collectives import ALGORITHMS
from dask_dgpu.runtime.program import Collective, Limits, Local, Program, execute, plans
from dask_dgpu.runtime.value import Value
from graph_opt.cost import HOST
from graph_opt.layout import Layout, cuts_of

ROWS, COLUMNS, WHOLE = cuts_of((2, 3)), cuts_of((3, 4)), (0, 7)
A = np.arange(35.0).reshape(5, 7)


def program(*steps: Any, inputs: Any, kept: Any = None) -> Program:
    return Program("test", inputs, steps, "c", kept, HOST, "gloo", Limits())


def test_values_of_which_only_some_blocks_are_there() -> None:
    value = Value((ROWS, COLUMNS), "float64", ((0, 1), (1, 0)))
    assert value.grid == (2, 2)
    placed = value.placed((2, 1))
    assert placed.layout == Layout((ROWS, COLUMNS), (-1, 2, 1, -1))
    assert dict(placed.owners()) == {(0, 1): 2, (1, 0): 1}
    turned = placed.transposed((1, 0))
    assert turned.layout == Layout((COLUMNS, ROWS), (-1, 1, 2, -1))


def test_several_collectives_and_a_transpose() -> None:
    """``(a.T rechunked) @ b`` as one program: a plan's layout is the next one's input."""
    b = A[:, :3].copy()
    steps = (
        Local("transpose", "a", (1, 0)),
        Collective("redistribute", ("a",), "t", Value((COLUMNS, (0, 5)), "float64")),
        Collective("summa", ("t", "b"), "c", Value((COLUMNS, (0, 3)), "float64")),
    )
    inputs = (("a", Value((ROWS, WHOLE), "float64")), ("b", Value(((0, 5), (0, 3)), "float64")))
    made = program(*steps, inputs=inputs)
    fixed = plans(made, {"a": (0, 1), "b": (2,)}, 3)
    assert fixed.collectives["c"].a.owners == fixed.collectives["t"].target.owners
    assert fixed.values["a"].layout == Layout((WHOLE, ROWS), (0, 1))

    def rank(comm: Any) -> Any:
        mine = {
            "a": {(i, 0): A[slice(*ROWS[i : i + 2])] for i in range(2) if comm.rank == i},
            "b": {(0, 0): b} if comm.rank == 2 else {},
        }
        return execute(made, fixed, comm, HostDevice(), mine)

    parts = run_local(3, rank)
    blocks = {index: block for part in parts for index, block in part.items()}
    np.testing.assert_array_equal(np.concatenate([blocks[0, 0], blocks[1, 0]]), A.T @ b)
    for rank_of_part, part in enumerate(parts):
        assert all(fixed.placed(made)[index] == rank_of_part for index in part)


def test_blocks_are_known_by_their_numbers_in_the_users_array() -> None:
    value = Value((ROWS, COLUMNS), "float64")
    step = Collective("redistribute", ("a",), "c", value)
    made = program(step, inputs=(("a", value),), kept=((4, 7), (0, 2)))
    placed = plans(made, {"a": (1, 1, 0, 0)}, 2).placed(made)
    assert placed == {(4, 0): 1, (4, 2): 1, (7, 0): 0, (7, 2): 0}


TASKS = {"pencil_fft": plan_pencil_fft(((0,), (0,)), "float64", ())}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_costs_of_nothing_to_do(algorithm: str) -> None:
    empty = Value(((0, 0), (0, 0)), "float64")
    names = ("a", "b") if algorithm == "summa" else ("a",)
    step = Collective(algorithm, names, "c", empty, TASKS.get(algorithm))
    made = program(step, inputs=tuple((n, empty) for n in names))
    fixed = plans(made, dict.fromkeys(names, (0,)), 2)
    cost = ALGORITHMS[algorithm].cost(fixed.collectives["c"], HOST)
    assert (cost.moved_bytes, cost.peak_bytes) == (0, 0)
