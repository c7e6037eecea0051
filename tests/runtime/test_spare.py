"""Kernels overwrite blocks that only they need, and no others."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.kernels.fused import evaluate
from dask_dgpu.kernels.fused.host import evaluate_host
from dask_dgpu.runtime import calls, fused
from dask_dgpu.runtime.calls import InPlace, Spare, is_alone
from graph_opt.dask_graph.internals import List, Task, TaskRef
from graph_opt.model.expression import Apply, Expression, Input, Reduce, View
from tests.kernels.fused.drawing import Drawn, drawn
from tests.support.memory import traced
from tests.support.profiles import examples

SYNC = {"scheduler": "synchronous"}
TANH = Expression((Input(0), Apply("square", (0,)), Apply("tanh", (1,))), (2,))
SIDE = 600
"""Of blocks that are larger than two tiles."""


def random(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape)


@pytest.fixture
def overwritten(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a result of a kernel was in a block that it read, one entry a kernel."""
    found: list[bool] = []

    def noting(expression: Expression, blocks: Sequence[Any], spare: Any = ()) -> Any:
        results = evaluate(expression, blocks, spare)
        found.append(any(result is block for result in results for block in blocks))
        return results

    monkeypatch.setattr(fused, "evaluate", noting)
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@examples(300)
@given(pair=drawn(exact=False), exact=drawn(exact=True), tile=st.sampled_from((16, 64, 160)))
def test_results_over_blocks_are_right(
    pair: tuple[Drawn, Expression], exact: tuple[Drawn, Expression], tile: int
) -> None:
    for found, expression in (pair, exact):
        blocks, again = ([np.copy(x, order="K") for x in found.blocks] for _ in range(2))
        expected = evaluate_host(expression, blocks, tile)
        results = evaluate_host(expression, again, tile, range(len(again)))
        for result, value in zip(results, expected, strict=True):
            assert np.asarray(result).dtype == np.asarray(value).dtype
            np.testing.assert_array_equal(result, value)


@pytest.mark.parametrize("order", ["C", "F"])
def test_no_memory_is_allocated_for_a_result_over_a_block(order: Any) -> None:
    x = np.asarray(random(SIDE, SIDE), order=order)
    expected = np.tanh(x * x)
    evaluate(TANH, [x])
    (found,), peak = traced(lambda: evaluate(TANH, [x], [0]))
    assert found is x
    assert peak < x.nbytes
    np.testing.assert_array_equal(found, expected)


HOSTILE: dict[str, Expression] = {
    "a later pass reads it": Expression(
        (Input(0), Apply("tanh", (0,)), Reduce("max", 1, (0,)), Apply("subtract", (0, 2))), (1, 3)
    ),
    "transposed as well": Expression((Input(0), View(0, (1, 0)), Apply("add", (0, 1))), (2,)),
    "it is a result": Expression((Input(0), Apply("tanh", (0,))), (0, 1)),
    "a view of it is a result": Expression(
        (Input(0), View(0, (1, 0)), Apply("tanh", (0,))), (1, 2)
    ),
    "another dtype": Expression((Input(0), Apply("isnan", (0,))), (1,)),
    "read after the first result": Expression(
        (Input(0), Apply("tanh", (0,)), Apply("multiply", (0, 1))), (1, 2)
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_blocks_that_are_still_read_are_right(name: str) -> None:
    expression, x = HOSTILE[name], random(SIDE, SIDE)
    expected = evaluate(expression, [x.copy()])
    for found, wanted in zip(evaluate(expression, [x], [0]), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_others_referring_to_a_block_are_noticed() -> None:
    blocks = {(0,): np.zeros(3), (1,): np.zeros(3), (2,): np.zeros(3), (3,): np.zeros(3)[1:]}
    other, view = blocks[0,], blocks[1,][:2]
    assert not is_alone(blocks, (0,))
    assert not is_alone(blocks, (1,))
    assert is_alone(blocks, (2,))
    assert not is_alone(blocks, (3,))
    blocks[2,].flags.writeable = False
    assert not is_alone(blocks, (2,))
    del other, view
    assert is_alone(blocks, (0,))
    assert is_alone(blocks, (1,))


def chain(x: Any) -> Any:
    return np.tanh(x * x) - 1


def joined(x: da.Array) -> da.Array:
    """Return blocks that a collective of a gang makes."""
    return x.rechunk((SIDE, SIDE))


def compute(*results: Any) -> Any:
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        return dask.base.compute(*results, **SYNC)


def given_array() -> tuple[Any, da.Array]:
    values = random(SIDE, 2 * SIDE)
    return values, da.from_array(values, chunks=(SIDE // 2, 2 * SIDE))


def test_gangs_overwrite_what_they_have_made(overwritten: list[bool]) -> None:
    values, x = given_array()
    (found,) = compute(chain(joined(x)))
    np.testing.assert_array_equal(found, chain(values))
    assert overwritten == [True] * 2


KEPT: list[Any] = []


def keeping(block: Any) -> Any:
    KEPT.append(block)
    return block


def first(block: Any) -> Any:
    return KEPT[0]


PROGRAMS: dict[str, Callable[[da.Array], Any]] = {
    "requested as well": lambda x: (joined(x), chain(joined(x))),
    "read by two kernels": lambda x: (chain(joined(x)), np.sqrt(abs(joined(x))) * 3),
    "read by a function too": lambda x: (
        chain(joined(x)),
        joined(x).map_blocks(np.sort, dtype=x.dtype),
    ),
    "kept by a function": lambda x: (
        chain(da.concatenate([joined(x).map_blocks(keeping, dtype=x.dtype), joined(x) * 2])),
    ),
    "one block of a function": lambda x: (
        chain(da.concatenate([joined(x).map_blocks(first, dtype=x.dtype), joined(x) * 2])),
    ),
    "one block at two places": lambda x: (chain(da.concatenate([joined(x), joined(x)])),),
    "read by several blocks": lambda x: (chain(joined(x)[:, :1] * 2 + joined(x)),),
    "an input": lambda x: (chain(x) + joined(x).sum(),),
    "transposed": lambda x: (chain(joined(x)) + chain(joined(x)).T.rechunk((SIDE, SIDE))[:1, :1],),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_other_blocks_are_never_overwritten(name: str) -> None:
    values, x = given_array()
    before = values.copy()
    KEPT[:] = [random(SIDE, SIDE)]
    kept = KEPT[0].copy()
    results = PROGRAMS[name](x)
    expected = dask.base.compute(*results, **SYNC)
    KEPT[1:] = []
    for found, wanted in zip(compute(*results), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-14)
    np.testing.assert_array_equal(values, before)
    np.testing.assert_array_equal(KEPT[0], kept)
    for block in KEPT[1:]:
        assert any(np.array_equal(block, part) for part in (values[:, :SIDE], values[:, SIDE:]))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a sum or product of two blocks was written over one, one entry a call."""
    found: list[bool] = []
    call = InPlace.__call__

    def noting(self: Any, *given: Any) -> Any:
        result = call(self, *given)
        found.append(any(isinstance(x, Spare) and result is x.block for x in given))
        return result

    monkeypatch.setattr(InPlace, "__call__", noting)
    return found


@pytest.mark.parametrize(("name", "dtype"), [("cumsum", "f8"), ("cumprod", "f4"), ("cumsum", "i4")])
def test_running_sums_overwrite_the_sums_within_blocks(
    name: str, dtype: str, memory: list[bool]
) -> None:
    values = random(7 * 5, 11).astype(dtype)
    x = da.from_array(values, chunks=(7, 11))
    with dgpu.enable(local_ranks=2, when="always", on_error="raise", fuse=False):
        found = getattr(da, name)(x, axis=0).compute(**SYNC)
    wanted = getattr(np, name)(values, axis=0)
    np.testing.assert_allclose(found, wanted, rtol=35 * np.finfo("f4").eps)
    assert found.dtype == wanted.dtype
    assert sum(memory) == 4  # the first block has no total before it


@pytest.mark.parametrize(
    ("left", "right", "fits"),
    [
        (np.ones((3, 2)), np.ones((3, 2)), True),
        (np.ones((3, 2)), np.ones((1, 2)), True),
        (np.ones((1, 2)), np.ones((3, 2)), False),
        (np.ones((3, 2), "f4"), np.ones((3, 2)), False),
        (np.ones((3, 2), "i8"), np.ones((3, 2), "i4"), False),
        (np.ones(()), np.ones(()), False),
        (np.ones(2, object), np.ones(2, object), False),
        (np.ma.masked_array([1.0, 2.0]), np.ones(2), False),
        (np.ones(2), np.ma.masked_array([1.0, 2.0]), False),
        (np.ones((0, 2)), np.ones((0, 2)), True),
        (np.ones(2, bool), np.ones(2, bool), True),
    ],
)
def test_a_result_over_a_block_that_fits(left: Any, right: Any, fits: bool) -> None:
    expected = left + right
    function = InPlace.of(operator.add)
    found: Any = function(Spare(left), right)
    assert (found is left) == fits
    assert (type(found), found.dtype) == (type(expected), expected.dtype)
    np.testing.assert_array_equal(found, expected)


def test_blocks_that_a_call_reads_twice_are_not_spare() -> None:
    a, b = TaskRef("a"), TaskRef("b")
    part = Task(None, operator.getitem, a, 0)
    cases: dict[Any, set[int]] = {
        Task("t", operator.add, a, b): {0, 1},
        Task("t", operator.add, b, a): {0, 1},
        Task("t", operator.add, a, a): set(),
        Task("t", operator.add, part, b): {1},
        Task("t", operator.add, part, a): set(),
        Task("t", operator.add, a, 2.0): {0},
        Task("t", operator.add, List(a, b), b): set(),
        Task("t", pow, a, b): set(),
        Task("t", overwriting(), List(a, b)): {0, 1},
        Task("t", overwriting(), List(a, a), b): {1},
        Task("t", overwriting(), List(part, b)): set(),
        Task("t", overwriting(), a, b=b): set(),
    }
    for task, expected in cases.items():
        call = calls.bound(task, {"a": 0, "b": 1})
        assert {*calls.overwritten(call, 2)} == expected, task


def overwriting() -> Any:
    """Return a function that overwrites spare blocks."""

    def function(*blocks: Any, **named: Any) -> Any:
        raise NotImplementedError

    function.overwrites = True  # type: ignore[attr-defined]
    return function


def test_quotients_of_integers_and_wrong_shapes() -> None:
    function = InPlace.of(operator.truediv)
    found: Any = function(Spare(np.array([1, 2])), np.array([2, 4]))
    np.testing.assert_array_equal(found, [0.5, 0.5])
    with pytest.raises(ValueError, match="could not be broadcast"):
        function(Spare(np.ones(2)), np.ones(3))


def test_persisted_blocks_are_never_overwritten() -> None:
    values, x = given_array()
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        kept = joined(x * 1).persist(**SYNC)
        expected = chain(values)
        for _ in range(2):
            np.testing.assert_array_equal(chain(kept).compute(**SYNC), expected)
            np.testing.assert_array_equal(chain(kept.rechunk((SIDE // 2, SIDE))), expected)
        np.testing.assert_array_equal(kept.compute(**SYNC), values)
