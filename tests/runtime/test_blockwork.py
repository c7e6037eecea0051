"""Fused tasks: what Dask makes of them, in any shape, and let go of when nobody needs it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Task, TaskRef, execute_graph
from dask.blockwise import Blockwise, optimize_blockwise
from dask.core import flatten
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.runtime.program import Blockworks, run_fused


def total(*values: Any) -> Any:
    return sum(values, start=1)


@given(st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=30))
def test_any_tasks_are_run_as_dask_runs_them(needs: list[list[int]]) -> None:
    """Task ``i`` needs some tasks before it, and blocks from outside."""
    names = ["block-0", "block-1"]
    keys = [*names, *(f"task-{i}" for i in range(len(needs)))]
    tasks: dict[str, Any] = {}
    for i, some in enumerate(needs):
        refs = [TaskRef(keys[k % (i + 2)]) for k in some]
        tasks[f"task-{i}"] = Task(f"task-{i}", total, *refs)
    last = f"task-{len(needs) - 1}"
    outside = {name: DataNode(name, value) for name, value in zip(names, (10, 100), strict=True)}
    wanted = execute_graph({**outside, **tasks}, keys=[last])[last]
    assert run_fused(tasks, last, names, 10, 100) == wanted


def test_aliases_and_long_chains() -> None:
    tasks: dict[str, Any] = {"0": Alias("0", "x")}
    tasks |= {str(i): Task(str(i), total, TaskRef(str(i - 1))) for i in range(1, 5000)}
    assert run_fused(tasks, "4999", ["x"], 0) == 4999


def test_what_is_made_is_let_go_of_after_its_last_use() -> None:
    alive: list[int] = []
    made: list[weakref.ref[Any]] = []

    def grown(block: Any) -> Any:
        result = block + 1
        made.append(weakref.ref(result))
        alive.append(sum(each() is not None for each in made))
        return result

    tasks = {"0": Task("0", grown, TaskRef("x"))}
    tasks |= {str(i): Task(str(i), grown, TaskRef(str(i - 1))) for i in range(1, 9)}
    assert (run_fused(tasks, "8", ["x"], np.zeros(3)) == 9).all()
    assert max(alive) == 2


def test_errors_are_those_of_the_task() -> None:
    def broken(_: Any) -> Any:
        raise ArithmeticError("no such number")

    tasks: Mapping[str, Any] = {"broken-01": Task("broken-01", broken, TaskRef("x"))}
    with pytest.raises(ArithmeticError, match="no such number") as raised:
        run_fused(tasks, "broken-01", ["x"], 1)
    assert raised.value.__notes__ == ["in broken-01"]


X = da.from_array(np.arange(24.0).reshape(4, 6), chunks=(2, 3)).persist(scheduler="sync")
ROW = da.from_array(np.arange(6.0), chunks=3).persist(scheduler="sync")


def pairs(left: Any, right: Any, scale: float, offset: Any = None) -> Any:
    return left * scale + right.sum() + (0 if offset is None else offset.sum())


def at_corner(block: Any, block_info: Any = None) -> Any:
    return block + sum(lo for lo, _ in block_info[0]["array-location"])


COMMON = {
    "elementwise": lambda: X * X,
    "one of the arrays has one block": lambda: X * X[:1, :1].persist(scheduler="sync"),
    "fewer axes": lambda: X - ROW,
    "transposed": lambda: X.T + 1,
    "constants": lambda: X.map_blocks(pairs, X, 2.0, offset=np.arange(3), dtype=float),
    "a new axis": lambda: X.map_blocks(lambda b: b[None], new_axis=0, dtype=float),
    "block numbers": lambda: X.map_blocks(lambda b, block_id=None: b + block_id[0], dtype=float),
    "fused": lambda: ((X + 1) * ROW - X.map_blocks(at_corner, dtype=float)) / 2,
    "created": lambda: da.full((4, 6), 3.0, chunks=(3, 2)),
}
EACH_ITS_OWN = {
    "several blocks": lambda: da.blockwise(
        lambda b: b.sum(axis=1), "i", X, "ij", concatenate=True, dtype=float
    ),
}


@pytest.mark.parametrize("case", [*COMMON, *EACH_ITS_OWN])
def test_a_blockwise_layer_has_one_task_for_all_blocks(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes what Dask's own tasks make, of which none is made where one is enough."""
    y = (COMMON | EACH_ITS_OWN)[case]()
    graph = optimize_blockwise(y.__dask_graph__(), keys=list(flatten(y.__dask_keys__())))
    layer = graph.layers[y.name]
    assert isinstance(layer, Blockwise)
    tasks = graph.to_dict()
    values = dict(zip(tasks, dask.get(tasks, list(tasks)), strict=True))
    made: list[str] = []
    makes = dask.blockwise._make_blockwise_graph

    def counted(task: Any, output: str, *args: Any, **kwargs: Any) -> Any:
        made.append(output)
        return makes(task, output, *args, **kwargs)

    monkeypatch.setattr(dask.blockwise, "_make_blockwise_graph", counted)
    blocks = [key[1:] for key in layer.get_output_keys()]
    for index, task in Blockworks({y.name: layer}).tasks(y.name, blocks).items():
        np.testing.assert_array_equal(task(values), values[y.name, *index])
    assert made == ([] if case in COMMON else [y.name])
