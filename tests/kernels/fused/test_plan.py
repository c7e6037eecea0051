"""What is launched for an expression on a GPU, and with which source; without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from dask_dgpu.kernels.fused.device_functions import TYPES, literal
from dask_dgpu.kernels.fused.kernel import Array, Launch
from dask_dgpu.kernels.fused.plan import ByModule, planned
from dask_dgpu.kernels.fused.typed import typed
from graph_opt.model.expression import Constant, Expression
from tests.kernels.fused.drawing import Drawn, drawn
from tests.kernels.fused.tracing import Function, Names, Traced, traced
from tests.support.profiles import examples

ROWS = np.zeros((64, 512), "f4")


def described(block: Any) -> Array:
    strides = tuple(stride // block.itemsize for stride in block.strides)
    return Array(block.dtype, block.shape, strides, 0)


def plan_of(function: Function, *blocks: Any) -> list[Launch | ByModule]:
    return planned(traced(function, len(blocks)), [described(block) for block in blocks])


def launches(function: Function, *blocks: Any) -> list[str]:
    return [
        step.entries[0].name if isinstance(step, Launch) else "module"
        for step in plan_of(function, *blocks)
    ]


def gelu(xp: Names, x: Traced) -> Traced:
    return 0.5 * x * (1 + xp.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def softmax(xp: Names, x: Traced) -> Traced:
    e = xp.exp(x - x.max(1, True))
    return e / e.sum(1, True)


def standardise(xp: Names, x: Traced) -> Traced:
    return (x - x.mean(0)) / x.std(0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@examples(100)
@given(drawn(exact=False))
def test_dtypes_and_shapes_are_numpys(pair: tuple[Drawn, Expression]) -> None:
    found, expression = pair
    dtypes, shapes = zip(*((x.dtype, x.shape) for x in map(np.asarray, found.blocks)), strict=True)
    for node, kind, value in zip(
        expression.nodes, typed(expression, dtypes, shapes), found.values, strict=True
    ):
        assert kind.shape == np.shape(value)
        if not isinstance(node, Constant):
            assert kind.dtype == np.asarray(value).dtype


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@examples(60)
@given(drawn(exact=True))
def test_any_expression_has_a_plan(pair: tuple[Drawn, Expression]) -> None:
    found, expression = pair
    blocks = [np.asarray(block) for block in found.blocks]
    plan = planned(expression, [described(block) for block in blocks])
    if any(0 in np.shape(found.values[at]) for at in expression.cone(*expression.results)):
        assert all(isinstance(step, ByModule) for step in plan)
    for step in plan:
        if isinstance(step, Launch):
            assert all(entry.name in step.source for entry in step.entries)
            for output in step.outputs:
                assert output.array.shape == np.shape(found.values[output.node])


def test_launches() -> None:
    assert launches(gelu, ROWS) == ["fused"]
    assert launches(softmax, ROWS) == ["on_chip"]
    assert launches(standardise, ROWS) == ["columns", "fused"]
    assert launches(lambda xp, x: x.sum(0), ROWS) == ["columns"]
    assert launches(lambda xp, x: x.sum(1), ROWS) == ["rows"]
    assert launches(lambda xp, x: x.sum((0, 1)), ROWS) == ["rows"]
    assert launches(lambda xp, x: x.sum(0), ROWS.T) == ["rows"]
    assert launches(lambda xp, x: (x.sum(0), x.max(0), x.argmax(0)), ROWS) == ["columns"]
    assert launches(lambda xp, x: (x, x.view(1, 0)), ROWS) == []
    assert launches(softmax, np.zeros((64, 200_000), "f4")) == ["rows", "rows", "fused"]
    assert launches(softmax, np.zeros((512, 64), "f4").T) == ["columns", "columns", "fused"]


def test_functions_without_code_are_the_modules() -> None:
    assert launches(lambda xp, x: xp.spacing(x * 2) + 1, ROWS) == ["fused", "module", "fused"]
    assert launches(lambda xp, x: xp.exp(x), ROWS.astype("c8")) == ["module"]
    (step,) = plan_of(lambda xp, x: xp.spacing(x), ROWS)
    assert isinstance(step, ByModule)


def first(function: Function, *blocks: Any) -> Launch:
    step = plan_of(function, *blocks)[0]
    assert isinstance(step, Launch)
    return step


def test_one_source_for_all_lengths() -> None:
    for function in (gelu, standardise, lambda xp, x: x.sum(1)):
        sources = {first(function, np.zeros((n, 512), "f4")).source for n in (4096, 8192)}
        assert len(sources) == 1


def test_constants_are_parameters() -> None:
    found = [first(lambda xp, x: x * step + 1, ROWS) for step in (0.1, 0.2)]  # noqa: B023
    assert found[0].source == found[1].source
    steps = [next(iter(launch.entries[0].numbers.values())) for launch in found]
    assert steps == [np.float32(0.1), np.float32(0.2)]


def test_vectors() -> None:
    def lanes(x: Any) -> int:
        text = first(lambda xp, x: x * 2, x).source
        return next(n for n in (16, 8, 4, 2, 1) if f"Lanes<{n}>" in text)

    assert lanes(np.zeros(64, "f4")) == 4
    assert lanes(np.zeros(64, "i1")) == 16
    assert lanes(np.zeros(64, "c16")) == 1
    assert lanes(np.zeros((64, 64), "f4")[:, ::2]) == 1
    assert lanes(np.zeros((64, 64), "f4").T) == 4
    assert lanes(np.zeros((64, 66), "f4")[:, :64]) == 1  # rows begin between vectors
    assert lanes(np.zeros((64, 68), "f4")[:, :64]) == 4


def test_wide_indices() -> None:
    large = np.lib.stride_tricks.as_strided(np.zeros(1, "i1"), (2**31 + 16,), (1,))
    assert "typedef long long Index" in first(lambda xp, x: x * 2, large).source
    assert "typedef int Index" in first(lambda xp, x: x * 2, ROWS).source


def test_literals() -> None:
    for dtype in map(np.dtype, TYPES):
        if dtype.kind == "f":
            assert literal(np.nan, dtype).startswith("__")
            assert literal(-np.inf, dtype).startswith("__")
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            assert str(limits.max) in literal(limits.max, dtype)
    assert literal(0.1, np.dtype("f4")) == "0.10000000149011612f"
    assert literal(-0.0, np.dtype("f8")) == "-0.0"
    assert literal(1 + 2j, np.dtype("c8")) == "Complex<float>{1.0f, 2.0f}"
    assert literal(-(2**63), np.dtype("i8")) == "(-9223372036854775807ll - 1)"


def test_equal_constants_of_other_types_are_other_expressions() -> None:
    def add(value: Any) -> Expression:
        return traced(lambda xp, x: x + value, 1)

    assert add(1) == add(1)
    assert hash(add(1)) == hash(add(1))
    assert len({add(1), add(1.0), add(True), add(np.float32(1)), add(-0.0), add(0.0)}) == 6
