"""Programs run by their plans, and block functions as Dask runs them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Dict, List, Task, TaskRef, Tuple, execute_graph
from dask.blockwise import Blockwise, optimize_blockwise
from dask.core import flatten
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.pencil_fft.plan import plan_pencil_fft
from dask_dgpu.algorithms.shard_map.plan import ShardMapTask
from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Node, Value
from dask_dgpu.runtime.plans import costs_of, plans
from dask_dgpu.runtime.program import Blockworks, Launch, Program
from graph_opt.dask_graph.gathering import Chain
from graph_opt.dask_graph.recipes import Common, bound, recipe_of
from graph_opt.model.cost import HOST
from graph_opt.model.layout import ArrayNode, Layout, cuts_of
from graph_opt.model.piece import Blockwork
from graph_opt.model.subscripts import Subscripts
from tests.support.profiles import examples
from tests.support.programs import cut, run

ROWS, COLUMNS, WHOLE = cuts_of((2, 3)), cuts_of((3, 4)), (0, 7)
A = np.arange(35.0).reshape(5, 7)


def test_values_of_which_only_some_blocks_are_there() -> None:
    value = Value((ROWS, COLUMNS), "float64", ((0, 1), (1, 0)))
    assert value.grid == (2, 2)
    placed = value.placed((2, 1))
    assert placed.layout == Layout((ROWS, COLUMNS), (-1, 2, 1, -1))
    assert dict(placed.owners()) == {(0, 1): 2, (1, 0): 1}
    turned = placed.transposed((1, 0))
    assert turned.layout == Layout((COLUMNS, ROWS), (-1, 1, 2, -1))
    assert [value.nbytes(index) for index in value.indices()] == [2 * 4 * 8, 3 * 3 * 8]


def launch(names: str, *nodes: Node, inputs: Any, outputs: Any) -> Launch:
    return Launch(Program(inputs, nodes, outputs, HOST, "tcp"), tuple(names), ("test",))


def test_several_collectives_and_a_transpose() -> None:
    """``(a.T rechunked) @ b`` as one program: a plan's layout is the next one's input."""
    b = A[:, :3].copy()
    turned, result = Value((COLUMNS, (0, 5)), "float64"), Value((COLUMNS, (0, 3)), "float64")
    nodes = (
        Node("rechunk", (0,), turned, (1, 0)),
        Node("matmul", (2, 1), result, ((0, 1), (0,), None, None)),
    )
    inputs = Value((ROWS, WHOLE), "float64"), Value(((0, 5), (0, 3)), "float64")
    made = launch("abtc", *nodes, inputs=inputs, outputs=((3, ((0, 0), (1, 0))),))
    owners = (0, 1), (2,)
    fixed = plans(made.program, owners, 3)
    assert fixed.collectives[3].plan.a.owners == fixed.collectives[2].plan.target.owners
    blocks = run(made, fixed, owners, [cut(A, inputs[0]), [b]], 3).blocks
    together = np.concatenate([blocks["c", 0, 0], blocks["c", 1, 0]])
    np.testing.assert_array_equal(together, A.T @ b)


def test_a_part_of_a_product_keeps_the_numbers_of_its_blocks() -> None:
    part = Value((ROWS, (0, 7)), "float64", ((1, 0),))
    right = Value(((0, 7), (0, 5)), "float64")
    result = Value((ROWS, (0, 5)), "float64", ((1, 0),))
    node = Node("matmul", (0, 1), result, ((1,), (0,), None, None))
    made = launch("abc", node, inputs=(part, right), outputs=((2, ((1, 0),)),))
    owners = (1,), (0,)
    planned = plans(made.program, owners, 2)
    blocks = run(made, planned, owners, [[A[2:]], [A.T.copy()]], 2).blocks
    assert blocks.keys() == {("c", 1, 0)}
    np.testing.assert_array_equal(blocks["c", 1, 0], A[2:] @ A.T)


TASKS = {
    "overlap": (((1, 1), (0, 2)), (None, None)),
    "fft": (plan_pencil_fft(((0,), (0,)), "float64", ()), (0, 0), (0, 0)),
    "matmul": ((0,), (0,), None, None),
    "contract": (Subscripts("ab", "bc", "ac"), (("a", (0,)), ("c", (0,)))),
    "shard_map": ShardMapTask(b"", "f", (0,), 0),
}

NEVER_EMPTY = ("jacobi", "stencil", "conv2d")
"""Empty arrays never get as far as an iteration, and a convolution has weights."""


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each not in NEVER_EMPTY])
def test_costs_of_nothing_to_do(operation: str) -> None:
    empty = Value(((0, 0), (0, 0)), "float64")
    count = 2 if operation in ("matmul", "contract") else 1
    node = Node(operation, tuple(range(count)), empty, TASKS.get(operation))
    made = Program((empty,) * count, (node,), ((count, ((0, 0),)),), HOST)
    fixed = plans(made, [(0,)] * count, 2)
    (cost,) = costs_of(made, fixed).values()
    assert (cost.moved_bytes, cost.peak_bytes) == (0, 0)


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
    assert Chain.of(tasks, last, names)(10, 100) == wanted


def test_aliases_and_long_chains() -> None:
    tasks: dict[str, Any] = {"0": Alias("0", "x")}
    tasks |= {str(i): Task(str(i), total, TaskRef(str(i - 1))) for i in range(1, 5000)}
    assert Chain.of(tasks, "4999", ["x"])(0) == 4999


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
    assert (Chain.of(tasks, "8", ["x"])(np.zeros(3)) == 9).all()
    assert max(alive) == 2


def test_errors_are_those_of_the_task() -> None:
    def broken(_: Any) -> Any:
        raise ArithmeticError("no such number")

    tasks: Mapping[str, Any] = {"broken-01": Task("broken-01", broken, TaskRef("x"))}
    with pytest.raises(ArithmeticError, match="no such number") as raised:
        Chain.of(tasks, "broken-01", ["x"])(1)
    assert raised.value.__notes__ == ["in broken-01"]


def noted(*args: Any, **options: Any) -> Any:
    return args, sorted(options.items())


BLOCKS = {"a": 1, ("b", 0): np.arange(3), "c": [2, "text"]}
REFS = [TaskRef(key) for key in BLOCKS]
ARGUMENTS = st.recursive(
    st.sampled_from([*REFS, DataNode(None, 5), 6, "a", None, [7], {"a": 8}]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda some: List(*some)),
        st.lists(inner, max_size=3).map(lambda some: Tuple(*some)),
        st.lists(inner, max_size=2).map(
            lambda some: Dict({f"key-{at}": each for at, each in enumerate(some)})
        ),
        st.lists(inner, max_size=3).map(lambda some: Task(None, noted, *some)),
    ),
    max_leaves=8,
)


@given(st.lists(ARGUMENTS, max_size=4), st.dictionaries(st.sampled_from("xyz"), ARGUMENTS))
@examples(200)
def test_bound_tasks_return_what_dask_returns(args: list[Any], options: dict[str, Any]) -> None:
    """Blocks are found anywhere in arguments and keywords; all else is constant."""
    task = Task("task", noted, *args, **options)
    order = list(BLOCKS)
    call = bound(task, order)
    for _ in range(2):
        got = call(*(BLOCKS[key] for key in order))
        assert repr(got) == repr(task(BLOCKS))


@pytest.mark.parametrize("node", [Alias("x", "c"), TaskRef("c"), DataNode("x", BLOCKS["c"])])
def test_nodes_without_a_function(node: Any) -> None:
    assert bound(node, ["a", "c"])(1, BLOCKS["c"]) is BLOCKS["c"]


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
    "a reduced axis of one block": lambda: da.blockwise(
        lambda b: b[0].sum(axis=1), "i", X[:, :1].persist(scheduler="sync"), "ij", dtype=float
    ),
}
EACH_ITS_OWN = {
    "several blocks": lambda: da.blockwise(
        lambda b: b.sum(axis=1), "i", X, "ij", concatenate=True, dtype=float
    ),
}


@pytest.mark.parametrize("case", [*COMMON, *EACH_ITS_OWN])
def test_a_blockwise_layer_has_one_task_for_all_blocks(case: str) -> None:
    """It makes what Dask's own tasks make."""
    y = (COMMON | EACH_ITS_OWN)[case]()
    graph = optimize_blockwise(y.__dask_graph__(), keys=list(flatten(y.__dask_keys__())))
    layer = graph.layers[y.name]
    assert isinstance(layer, Blockwise)
    tasks = graph.to_dict()
    values = dict(zip(tasks, dask.get(tasks, list(tasks)), strict=True))
    blocks = [key[1:] for key in layer.get_output_keys()]
    numbers = {name: number for number, name in enumerate(graph.layers)}
    node = ArrayNode(y.name, y.chunks, y.dtype.name, "numpy.ndarray")
    work = Blockwork(node, (), dict.fromkeys(blocks, ()), layer)
    recipe = recipe_of(work, numbers, {}, {})
    assert isinstance(recipe, Common) == (case in COMMON)
    given = {(numbers[name], tuple(at)): value for (name, *at), value in values.items()}
    for index, call in Blockworks({0: recipe}).calls(0, blocks).items():
        block = call(*(given[read] for read in call.reads))
        np.testing.assert_array_equal(block, values[y.name, *index])
