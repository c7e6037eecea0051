"""Expressions on NumPy blocks, in small tiles, against NumPy node by node."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels.fused import evaluate
from dask_dgpu.kernels.fused.host import TILE_BYTES, evaluate_host
from dask_dgpu.kernels.fused.nodes import FUNCTIONS, evaluate_nodes
from dask_dgpu.kernels.fused.reductions import REDUCTIONS, Part
from graph_opt.model.expression import Apply, Cast, Constant, Expression, Input, Reduce, View
from tests.kernels.fused.drawing import Drawn, drawn
from tests.support.memory import assert_peak
from tests.support.profiles import examples

Array = Any
TILES = st.sampled_from((16, 64, 160))


def same(found: Array, wanted: Array) -> None:
    """Fail unless values, dtypes, shapes and the signs of zeros are equal."""
    assert np.shape(found) == np.shape(wanted)
    assert np.asarray(found).dtype == np.asarray(wanted).dtype
    np.testing.assert_array_equal(found, wanted)
    for part in ("real", "imag"):
        got, expected = getattr(np.asarray(found), part), getattr(np.asarray(wanted), part)
        if got.dtype.kind == "f":
            number = ~np.isnan(got)
            assert (np.signbit(got) == np.signbit(expected))[number].all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@examples(300)
@given(drawn(exact=False), TILES)
def test_elementwise_work_has_the_bits_of_numpy(
    pair: tuple[Drawn, Expression], tile_bytes: int
) -> None:
    found, expression = pair
    for result, value in zip(
        expression.results, evaluate_host(expression, found.blocks, tile_bytes), strict=True
    ):
        same(value, found.values[result])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@examples(300)
@given(drawn(exact=True), TILES)
def test_work_with_reductions_equals_numpy(pair: tuple[Drawn, Expression], tile_bytes: int) -> None:
    found, expression = pair
    for result, value in zip(
        expression.results, evaluate_host(expression, found.blocks, tile_bytes), strict=True
    ):
        same(value, found.values[result])


def chain(*nodes: Any) -> Expression:
    return Expression(nodes, (len(nodes) - 1,))


SOFTMAX = chain(
    Input(0),
    Reduce("max", 0, (1,), True),
    Apply("subtract", (0, 1)),
    Apply("exp", (2,)),
    Reduce("sum", 3, (1,), True),
    Apply("divide", (3, 4)),
)
STANDARDISE = chain(
    Input(0),
    Reduce("mean", 0, (0,)),
    Reduce("std", 0, (0,)),
    Apply("subtract", (0, 1)),
    Apply("divide", (3, 2)),
)
GELU = chain(
    Input(0),
    Apply("multiply", (0, 0)),
    Apply("multiply", (1, 0)),
    Constant(0.044715),
    Apply("multiply", (2, 3)),
    Apply("add", (0, 4)),
    Apply("tanh", (5,)),
    Constant(0.5),
    Apply("multiply", (7, 0)),
    Apply("multiply", (8, 6)),
)
SYMMETRIC = chain(Input(0), View(0, (1, 0)), Apply("add", (0, 1)))
NEAREST = chain(
    Input(0),
    Input(1),
    View(0, (0, None, 1)),
    Apply("subtract", (2, 1)),
    Apply("square", (3,)),
    Reduce("sum", 4, (2,)),
    Reduce("argmin", 5, (1,)),
)


def random(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("function", ["sum", "mean", "var", "std", "nansum"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_sums_of_parts_are_as_exact_as_pairwise_sums(
    function: str, dtype: str, axes: tuple[int, ...], order: str
) -> None:
    x = np.asarray(random(301, 67, dtype=dtype) + np.asarray(1, dtype), order=order)
    expression = chain(Input(0), Reduce(function, 0, axes, False))
    (found,) = evaluate_host(expression, [x], 512)
    wanted = getattr(np, function)(x.astype("longdouble"), axis=axes)
    assert found.dtype == getattr(np, function)(x, axis=axes).dtype
    n = np.prod([x.shape[axis] for axis in axes])
    np.testing.assert_allclose(
        found, wanted.astype(found.dtype), rtol=np.finfo(dtype).eps * (2 + np.log2(n)), atol=0
    )


def test_variance_of_numbers_far_from_zero_keeps_its_digits() -> None:
    x = random(100_000, dtype="float64") + 1e9
    (found,) = evaluate_host(chain(Input(0), Reduce("var", 0, (0,))), [x], 4096)
    assert found == pytest.approx(np.var(x), rel=1e-9)


@pytest.mark.parametrize("function", ["argmin", "argmax"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("missing", [0, 1, 9])
@pytest.mark.parametrize("dtype", ["int8", "float32", "complex64"])
def test_first_extreme_value_wins(
    function: str, axes: tuple[int, ...], missing: int, dtype: str
) -> None:
    x = np.random.default_rng(missing).integers(0, 4, (53, 29)).astype(dtype)
    if dtype != "int8":
        x.reshape(-1)[np.random.default_rng(1).integers(0, x.size, missing)] = np.nan
    (found,) = evaluate_host(chain(Input(0), Reduce(function, 0, axes)), [x], 64)
    same(found, getattr(np, function)(x, axis=axes[0] if len(axes) == 1 else None))


@pytest.mark.parametrize("function", ["nanmin", "nanmax"])
def test_only_nan_warns_as_numpy_does(function: str) -> None:
    x = np.full((64, 8), np.nan, "float32")
    x[:, 1:] = 1
    x[:50, 2] = np.nan
    expression = chain(Input(0), Reduce(function, 0, (0,)))
    with pytest.warns(RuntimeWarning, match="All-NaN"):
        (found,) = evaluate_host(expression, [x], 64)
    same(found, np.float32([np.nan] + [1] * 7))
    with warnings.catch_warnings(action="error"):
        evaluate_host(expression, [x[:, 1:]], 64)


@pytest.mark.parametrize("shape", [(1000, 40), (40, 1000), (3, 50_000)])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_rows_and_columns(shape: tuple[int, int], axis: int) -> None:
    x = random(*shape) if axis else random(*shape).T
    (found,) = evaluate_host(SOFTMAX, [x], 4096)
    wide = np.exp(x.astype("float64") - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, wide / wide.sum(1, keepdims=True), rtol=2e-5)
    assert found.flags.c_contiguous == x.flags.c_contiguous


def test_results_lie_as_numpys_do() -> None:
    x, row = random(700, 500), random(700)
    nodes = (Input(0), View(0, (1, 0)), Input(1), Apply("subtract", (1, 2)), Apply("exp", (3,)))
    for block in (x, np.asfortranarray(x)):
        (found,) = evaluate_host(chain(*nodes), [block, row], 4096)
        wanted = np.exp(block.T - row)
        np.testing.assert_array_equal(found, wanted)
        assert found.strides == wanted.strides


def test_reduction_within_a_reduction() -> None:
    x, centres = random(5000, 64, dtype="float64"), random(16, 64, dtype="float64")
    (found,) = evaluate(NEAREST, [x, centres])
    wanted = ((x[:, None, :] - centres) ** 2).sum(-1).argmin(1)
    np.testing.assert_array_equal(found, wanted)


def test_errors_are_numpys() -> None:
    big = np.zeros((300, 700))
    with pytest.raises(ValueError, match="operands could not be broadcast together"):
        evaluate(SYMMETRIC, [big])
    with pytest.raises(TypeError, match="ufunc 'invert' not supported"):
        evaluate(chain(Input(0), Apply("invert", (0,))), [np.zeros(1 << 18)])
    with pytest.raises(ValueError, match="zero-size array to reduction operation maximum"):
        evaluate(chain(Input(0), Reduce("max", 0, (0,))), [np.zeros(0)])
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        evaluate(chain(Constant(1.0), Input(0), Apply("divide", (0, 1))), [np.zeros(1 << 18)])


def test_masked_arrays_keep_their_masks() -> None:
    x = np.ma.masked_less(random(1 << 18), 0)
    (found,) = evaluate(GELU, [x])
    assert np.ma.allequal(found.mask, x.mask)


@pytest.mark.parametrize(
    ("expression", "shape", "tiles"),
    [(GELU, (4096, 512), 8), (SOFTMAX, (4096, 512), 10), (STANDARDISE, (4096, 512), 12)],
    ids=["gelu", "softmax", "standardise"],
)
def test_temporaries_are_a_few_tiles(
    expression: Expression, shape: tuple[int, int], tiles: int
) -> None:
    x = random(*shape)
    evaluate(expression, [x])
    assert_peak(lambda: evaluate(expression, [x]), x.nbytes + tiles * TILE_BYTES)


@pytest.mark.parametrize("expression", [SOFTMAX, STANDARDISE], ids=["softmax", "standardise"])
def test_short_work_on_small_blocks_is_done_at_once(expression: Expression) -> None:
    x = random(1200, 512)
    (found,) = evaluate(expression, [x])
    np.testing.assert_array_equal(found, evaluate_nodes(expression, [x])[0])


def test_reductions_of_a_part_share_its_sum() -> None:
    x = random(30, 7)
    sums: dict[Any, Array] = {}
    part = Part(x, (0, 0), x.shape, sums)
    mean, var = (Reduce(name, 0, (0,)) for name in ("mean", "var"))
    _, total = REDUCTIONS["mean"].begin(mean, part)
    _, centre, _ = REDUCTIONS["var"].begin(var, part)
    assert len(sums) == 1
    np.testing.assert_array_equal(centre, total / np.float32(30))


def test_inputs_are_returned_and_never_written() -> None:
    x = random(600, 600)
    before = x.copy()
    nodes = (Input(0), View(0, (1, 0)), Cast(0, "float64"), Apply("negative", (0,)))
    same_block, turned, wide, negative = evaluate(Expression(nodes, (0, 1, 2, 3)), [x])
    assert same_block is x
    assert turned.base is x
    np.testing.assert_array_equal(wide, -negative)
    np.testing.assert_array_equal(x, before)


def test_every_function_is_numpys_own() -> None:
    assert all(callable(getattr(np, name)) for name in FUNCTIONS)
    assert all(getattr(np, name).nin == FUNCTIONS[name] for name in ("exp", "add"))
