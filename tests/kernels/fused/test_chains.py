"""Long chains of steps that share values: each value is written and computed once."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from dask_dgpu.kernels.fused import evaluate
from dask_dgpu.kernels.fused.host import evaluate_host
from dask_dgpu.kernels.fused.kernel import Array, Launch
from dask_dgpu.kernels.fused.plan import planned
from dask_dgpu.kernels.fused.planning import Planner
from graph_opt.model.expression import Expression
from tests.kernels.fused.tracing import traced
from tests.planner.test_chains import mandelbrot

LONG = 250
"""Steps of which Python could not follow the nodes by recursion."""

SHAPE = 64, 512


def averaged(xp: Any, re: Any, im: Any, steps: int) -> Any:
    """Return the same less the mean of each row: one kernel on a GPU, or one pass over tiles."""
    count = mandelbrot(xp, re, im, steps)
    return count - count.mean(1, keepdims=True)


FUNCTIONS = mandelbrot, averaged


def expression(function: Any, steps: int) -> Expression:
    return traced(lambda xp, re, im: function(xp, re, im, steps), 2)


def blocks(dtype: str = "f4") -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    return tuple(rng.normal(size=(2, *SHAPE)).astype(dtype))  # type: ignore[return-value]


def sources(function: Any, steps: int) -> list[str]:
    block = Array(np.dtype("f4"), SHAPE, (SHAPE[1], 1), 0)
    plan = planned(expression(function, steps), [block, block])
    return [step.source for step in plan if isinstance(step, Launch)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_value_is_written_once(function: Any) -> None:
    lengths = [sum(map(len, sources(function, steps))) for steps in range(3, 25, 3)]
    added = np.diff(lengths)
    assert 0 < added.max() < 1.2 * added.min()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_compiler_does_not_follow_values_to_where_they_come_from(function: Any) -> None:
    """NVRTC tries to evaluate ``const`` variables, and all that they are computed from."""
    found = sources(function, 24)
    assert found
    for source in found:
        assert re.search(r"\bv100 = ", source)
        assert not re.search(r"\bconst \w+ v\d+\b", source)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_long_chain_has_a_kernel(function: Any) -> None:
    assert sources(function, LONG)


def test_each_value_is_one_step_of_a_tile() -> None:
    found = expression(mandelbrot, LONG)
    planner = Planner(found, found.shapes([SHAPE, SHAPE]), [], 8 * SHAPE[1])
    steps, _ = planner.steps(found.results, 0)
    assert len(steps) == len({step.node for step in steps}) <= len(found.nodes)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("steps", [12, 100])
def test_tiles_equal_numpy(function: Any, steps: int) -> None:
    re, im = blocks()
    (found,) = evaluate_host(expression(function, steps), (re, im), tile_bytes=1 << 14)
    np.testing.assert_array_equal(found, function(np, re, im, steps))


@pytest.mark.gpu
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("steps", [1, 12, 24, 100])
def test_a_gpu_equals_numpy(function: Any, dtype: str, steps: int) -> None:
    import cupy

    re, im = blocks(dtype)
    (found,) = evaluate(expression(function, steps), (cupy.asarray(re), cupy.asarray(im)))
    np.testing.assert_allclose(found.get(), function(np, re, im, steps), rtol=1e-5, atol=1e-4)
