"""Generated kernels against NumPy, on a GPU."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given

from dask_dgpu.kernels.fused import evaluate, evaluate_all
from dask_dgpu.kernels.fused.device_functions import FUNCTIONS
from dask_dgpu.kernels.fused.nodes import node_value
from dask_dgpu.kernels.fused.typed import Typed, typed
from graph_opt.model.expression import Apply, Cast, Constant, Expression, Input
from tests.kernels.fused.drawing import Drawn, drawn
from tests.kernels.fused.tracing import Names, Traced, traced
from tests.support.profiles import examples

pytestmark = pytest.mark.gpu

Array = Any

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
ULPS = 4
"""Most units in the last place between NumPy and a function on the GPU."""

REDUCTIONS = (
    *("sum", "prod", "min", "max", "any", "all", "mean", "var", "std", "argmin", "argmax"),
    *("nansum", "nanprod", "nanmin", "nanmax", "count_nonzero"),
)


def specials(dtype: str) -> Array:
    """Numbers at which functions differ, and some random ones."""
    rng = np.random.default_rng(3)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return np.array([True, False, True])
    if kind in "iu":
        limits = np.iinfo(dtype)
        edges = [0, 1, 2, 3, 5, 7, 31, 63, limits.max, limits.min, limits.max - 1]
        if kind == "i":
            edges += [-1, -2, -7]
        return np.array(edges, dtype)
    limits = np.finfo(dtype)
    edges = [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -3, 2.5, 3.5, np.inf, -np.inf, np.nan]
    edges += [limits.max, limits.tiny, limits.smallest_subnormal, 1e-3, 0.7]
    values = np.array([*edges, *rng.normal(0, 2, 13)])
    if kind == "c":
        finite = values[np.isfinite(values) & (np.abs(values) < 1e3) & (np.abs(values) > 1e-3)]
        return (finite + 1j * finite[::-1]).astype(dtype)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def pairs(dtype: str) -> tuple[Array, Array]:
    values = specials(dtype)
    x, y = np.broadcast_arrays(values[:, None], values[None, :])
    return x.ravel().copy(), y.ravel().copy()


def close(found: Array, wanted: Array, ulps: float = ULPS) -> None:
    """Compare dtype, shape and values; NaN, infinities and signs of zeros are exact."""
    found = found.get() if hasattr(found, "get") else found
    wanted = np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind == "c":
        limit = ulps * np.finfo(wanted.dtype).eps * np.abs(wanted)
        far = np.abs(found - wanted) > limit
        assert not far.any(), (found[far][:5], wanted[far][:5])
    elif wanted.dtype.kind == "f":
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        known = np.isfinite(wanted)
        other = ~known & ~np.isnan(wanted)
        np.testing.assert_array_equal(found[other], wanted[other])
        with np.errstate(all="ignore"):
            apart = np.abs(found[known].astype("f8") - wanted[known].astype("f8"))
            far = apart > ulps * np.spacing(np.abs(wanted[known])).astype("f8")
        assert not far.any(), (found[known][far][:5], wanted[known][far][:5])
    else:
        np.testing.assert_array_equal(found, wanted)


def check(expression: Expression, *blocks: Array, ulps: float = ULPS) -> None:
    """Compare all results on the GPU with those on the host."""
    import cupy

    found = evaluate(expression, [on_device(block) for block in blocks])
    with np.errstate(all="ignore"):
        wanted = evaluate(expression, blocks)
    for one, other in zip(found, wanted, strict=True):
        assert isinstance(one, cupy.ndarray)
        close(one, other, ulps)


def on_device(block: Array) -> Array:
    """Return a copy with the same strides."""
    import cupy

    base = block if block.base is None else block.base
    if base.base is not None or not isinstance(base, np.ndarray):
        return cupy.asarray(block)
    start = block.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    there = cupy.asarray(base)
    if not (base.flags.c_contiguous and there.flags.c_contiguous):
        return cupy.asarray(block)
    memory = there.ravel().view(np.uint8)[start:]
    return cupy.ndarray(block.shape, block.dtype, memory.data, block.strides)


def named(arity: int, dtype: str) -> list[str]:
    """Return the functions of so many arguments that NumPy has for a dtype."""
    found = []
    for name in FUNCTIONS:
        ufunc = getattr(np, name)
        one = np.ones(2, dtype)
        if ufunc.nin != arity:
            continue
        try:
            with np.errstate(all="ignore"):
                ufunc(*[one] * arity)
        except TypeError:
            continue
        found.append(name)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_one_argument(dtype: str) -> None:
    names = named(1, dtype)
    expression = traced(lambda xp, x: tuple(getattr(xp, name)(x) for name in names), 1)
    x = specials(dtype)
    found = evaluate(expression, [on_device(x)])
    failed = []
    for name, one in zip(names, found, strict=True):
        with np.errstate(all="ignore"):
            wanted = getattr(np, name)(x)
        one = one.get()
        if name == "reciprocal" and x.dtype.kind in "iu":  # of 0 it is undefined
            one, wanted = one[x != 0], wanted[x != 0]
        try:
            close(one, wanted)
        except AssertionError as error:
            failed.append((name, str(error)[:300]))
    assert not failed


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_two_arguments(dtype: str) -> None:
    names = named(2, dtype)
    x, y = pairs(dtype)
    expression = traced(lambda xp, x, y: tuple(getattr(xp, name)(x, y) for name in names), 2)
    found = evaluate(expression, [on_device(x), on_device(y)])
    failed = []
    for name, one in zip(names, found, strict=True):
        with np.errstate(all="ignore"):
            known = np.ones(len(x), bool)
            if name == "power" and np.dtype(dtype).kind in "iu":
                known = y >= 0
            wanted = getattr(np, name)(x[known], y[known])
        shift = 8 if "logaddexp" in name else 0  # its terms may cancel
        if np.dtype(dtype).kind == "c" and "power" in name:
            continue  # CuPy's own
        try:
            close(one.get()[known] + shift, wanted + shift)
        except AssertionError as error:
            failed.append((name, str(error)[:300]))
    assert not failed


def test_other_functions() -> None:
    x = specials("float32")
    z = specials("complex64")
    check(
        traced(
            lambda xp, x: (
                xp.where(x > 0, x, -1),
                xp.clip(x, -1, 2),
                xp.clip(x, None, 2.5),
                xp.round(x, decimals=1),
                xp.round(x),
                xp.nan_to_num(x),
                xp.real(x),
                xp.imag(x),
                x**3,
                x**2,
                x**-1,
                x**2.5,
                x * np.float64(2),
                x.astype("float16"),
                x.astype("float64") * 3,
            ),
            1,
        ),
        x,
    )
    check(traced(lambda xp, z: (xp.real(z), xp.imag(z), xp.angle(z), xp.exp(z), z * 2j), 1), z)


@pytest.mark.parametrize("value", [200, -1, 2**40, -(2**40)])
def test_comparisons_with_any_integer(value: int) -> None:
    x = np.arange(100, dtype="uint8")
    check(traced(lambda xp, x: (x > value, xp.equal(x, value)), 1), x)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint32", "uint64"])
def test_the_least_integer_has_no_absolute_value(dtype: str) -> None:
    """ptxas takes ``abs`` for positive; NumPy's result is negative, also where it is used."""
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.min + 1, 0, 1, limits.max], dtype)
    found = traced(lambda xp, x: (abs(x), xp.less(abs(x), 0), abs(x) * 0.5, xp.exp(abs(x))), 1)
    check(found, x)


def test_integers_of_both_signs() -> None:
    x, y = np.array([0, 5, 2**63 + 1], "uint64"), np.array([-1, 5, 2**62], "int64")
    check(traced(lambda xp, x, y: (xp.less(x, y), xp.equal(x, y), xp.greater(y, x)), 2), x, y)


def test_broadcasting_and_views() -> None:
    rng = np.random.default_rng(1)
    x = rng.random((37, 64))
    check(traced(lambda xp, x, y: x * y + 1, 2), x, rng.random(64))
    check(traced(lambda xp, x, y: x * y + 1, 2), x, rng.random((37, 1)))
    check(traced(lambda xp, x, y: x * y, 2), rng.random((5, 1, 7)), rng.random((3, 1)))
    check(traced(lambda xp, x: x + x.view(1, 0), 1), rng.random((33, 33)).astype("f4"))
    check(traced(lambda xp, x: x.view(1, None, 0) * 2, 1), x)
    check(traced(lambda xp, x: x + 1, 1), x[::2, 1:])
    check(traced(lambda xp, x: x + 1, 1), x[::-1, ::-3])
    check(traced(lambda xp, x: x + 1, 1), x.T)
    check(traced(lambda xp, x: x + 1, 1), np.broadcast_to(x[0], (9, 64)))
    check(traced(lambda xp, x: (x, x.view(1, 0), x * 1), 1), x)
    check(traced(lambda xp, x: x * 2, 1), np.array(3.0))
    for size in (1, 3, 4, 5, 1023, 4097):
        check(traced(lambda xp, x, y: x + y, 2), rng.random(size), rng.random(size).astype("f4"))


def test_empty_blocks() -> None:
    x = np.zeros((0, 3), "f4")
    check(traced(lambda xp, x: (x + 1, x.sum(0), x.sum(1), x.prod(0)), 1), x)
    import cupy

    with pytest.raises(ValueError, match="zero-size"):
        evaluate(traced(lambda xp, x: x.min(0), 1), [cupy.zeros((0, 3), "f4")])


LAYOUTS: list[tuple[tuple[int, ...], Any, tuple[int, ...]]] = [
    ((1001,), None, (0,)),
    ((70001,), None, (0,)),
    ((37, 5), None, (0,)),
    ((3001, 3), None, (0,)),
    ((2048, 64), None, (0,)),
    ((67, 1024), None, (1,)),
    ((5, 9000), None, (1,)),
    ((9000, 3), None, (1,)),
    ((129, 64), None, (0, 1)),
    ((129, 64), (1, 0), (0,)),
    ((129, 64), (1, 0), (1,)),
    ((7, 33, 20), None, (1,)),
    ((7, 33, 20), None, (0, 2)),
    ((7, 33, 20), (2, 0, 1), (1,)),
    ((1, 50), None, (0,)),
    ((50, 1), None, (1,)),
]


def accepted(name: str, dtype: str, axes: tuple[int, ...], ndim: int) -> bool:
    if name in ("argmin", "argmax"):
        return len(axes) in (1, ndim) and np.dtype(dtype).kind != "c"
    return True


def sample(shape: tuple[int, ...], dtype: str, order: Any) -> Array:
    rng = np.random.default_rng(5)
    kind = np.dtype(dtype).kind
    if kind == "b":
        x = rng.random(shape) < 0.5
    elif kind in "iu":
        x = rng.integers(0, 100, shape).astype(dtype)
    else:
        x = (1 + rng.random(shape) / (1 if dtype == "float16" else 64)).astype(dtype)
        if kind == "c":
            x = (x + 1j * rng.random(shape) / 64).astype(dtype)
    return x if order is None else x.transpose(order)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float32", "complex128"])
@pytest.mark.parametrize(("shape", "order", "axes"), LAYOUTS)
def test_reductions(dtype: str, shape: tuple[int, ...], order: Any, axes: tuple[int, ...]) -> None:
    x = sample(shape, dtype, order)
    names = [name for name in REDUCTIONS if accepted(name, dtype, axes, len(shape))]
    expression = traced(lambda xp, x: tuple(getattr(x, name)(axes) for name in names), 1)
    length = int(np.prod([x.shape[axis] for axis in axes]))
    found = evaluate(expression, [on_device(x)])
    failed = []
    for name, one in zip(names, found, strict=True):
        with np.errstate(all="ignore"):
            wanted = evaluate(traced(lambda xp, x: getattr(x, name)(axes), 1), [x])[0]  # noqa: B023
        limit = {"var": 64.0 + length / 4, "std": 64.0 + length / 4}.get(name, 16.0)
        if "prod" in name:
            limit = 4.0 + 2 * length
        if dtype in ("float16", "float32") and name in ("sum", "mean", "var", "std", "nansum"):
            wide = traced(lambda xp, x: getattr(x, name)(axes), 1)  # noqa: B023
            with np.errstate(all="ignore"):
                wanted = evaluate(wide, [x.astype("f8")])[0].astype(dtype)
            limit = 8.0
        try:
            close(one, wanted, limit)
        except AssertionError as error:
            failed.append((name, str(error)[:300]))
    assert not failed


@pytest.mark.parametrize("axis", [0, 1])
def test_nan_and_infinities_in_reductions(axis: int) -> None:
    x = np.ones((70, 80), "f4")
    x[3, 5] = np.nan
    x[4, 7] = np.inf
    x[5, 9], x[6, 9] = np.inf, -np.inf
    x[9, :] = np.nan
    x[:, 11] = np.nan
    x[:, 13] = 2.0**100
    names = [name for name in REDUCTIONS if name not in ("prod", "nanprod")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        check(traced(lambda xp, x: tuple(getattr(x, name)((axis,)) for name in names), 1), x)


def test_sums_lose_less_than_numpys() -> None:
    rng = np.random.default_rng(2)
    for shape, axis in (((1 << 20, 4), 0), ((4, 1 << 20), 1), ((1 << 22,), 0), ((1 << 14, 64), 0)):
        import cupy

        x = rng.random(shape).astype("f4")
        found = evaluate(traced(lambda xp, x: x.sum((axis,)), 1), [cupy.asarray(x)])[0].get()  # noqa: B023
        exact = x.astype("f8").sum(axis)
        pairwise = 16 + np.log2(x.shape[axis])  # roundings in a row
        assert np.all(np.abs(found - exact) <= pairwise * np.finfo("f4").eps / 2 * exact)


def test_shifted_moments() -> None:
    rng = np.random.default_rng(2)
    x = (1e4 + rng.random((4096, 64))).astype("f4")
    for axes in ((0,), (1,), (0, 1)):
        import cupy

        found = evaluate(traced(lambda xp, x: x.var(axes), 1), [cupy.asarray(x)])[0].get()  # noqa: B023
        np.testing.assert_allclose(found, x.astype("f8").var(axes), rtol=1e-3)


def softmax(xp: Names, x: Traced) -> Traced:
    e = xp.exp(x - x.max(1, True))
    return e / e.sum(1, True)


def layer_norm(xp: Names, x: Traced, gain: Traced, bias: Traced) -> Traced:
    c = x - x.mean(1, True)
    return c / xp.sqrt((c * c).mean(1, True) + 1e-5) * gain + bias


@pytest.mark.parametrize(
    "shape", [(70, 512), (7, 11), (300, 3), (1, 1), (5, 3000), (131, 4096), (2, 70000), (9, 1023)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_several_passes(shape: tuple[int, int], dtype: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=shape).astype(dtype)
    gain, bias = rng.normal(size=(2, shape[1])).astype(dtype)
    for function, blocks in (
        (softmax, (x,)),
        (layer_norm, (x, gain, bias)),
        (lambda xp, x: (x - x.mean(0)) / (x.std(0) + 1), (x,)),
        (lambda xp, x: (x - x.mean(1, True)) / (x.std(1, True) + 1), (x,)),
        (lambda xp, x: xp.log(xp.exp(x - x.max(1, True)).sum(1)) + x.max(1), (x,)),
        (lambda xp, x: (x - x.mean((0, 1)), x.view(1, 0) * 2, x.argmax(1)), (x,)),
    ):
        expression = traced(function, len(blocks))
        with np.errstate(all="ignore"):
            wanted = evaluate(expression, [block.astype("f8") for block in blocks])
        import cupy

        found = evaluate(expression, [cupy.asarray(block) for block in blocks])
        for one, other in zip(found, wanted, strict=True):
            if one.dtype.kind == "i":
                np.testing.assert_array_equal(one.get(), other)
                continue
            assert one.dtype == dtype
            eps = np.finfo(dtype).eps
            np.testing.assert_allclose(one.get(), other, rtol=64 * eps, atol=64 * eps)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@examples(60)
@given(drawn(exact=True))
def test_any_expression_without_roundings(pair: tuple[Drawn, Expression]) -> None:
    found, expression = pair
    values = evaluate(expression, [on_device(np.asarray(block)) for block in found.blocks])
    for result, value in zip(expression.results, values, strict=True):
        wanted = np.asarray(found.values[result])
        assert value.dtype == wanted.dtype
        np.testing.assert_array_equal(value.get(), wanted)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@examples(60)
@given(drawn(exact=False))
def test_each_node_of_any_expression(pair: tuple[Drawn, Expression]) -> None:
    """All nodes are results; each is compared with NumPy's function of the GPU's arguments."""
    import cupy

    found, expression = pair
    functions = {node.function for node in expression.nodes if isinstance(node, Apply)}
    assume(all(hasattr(cupy, function) for function in functions))  # it has no spacing
    blocks = [np.asarray(block) for block in found.blocks]
    kinds = typed(expression, [x.dtype for x in blocks], [x.shape for x in blocks])
    dtypes = {
        (getattr(n, "function", ""), k.dtype.kind)
        for n, k in zip(expression.nodes, kinds, strict=True)
    }
    assume(("clip", "c") not in dtypes)  # CuPy has it for real numbers only
    whole = Expression(expression.nodes, tuple(range(len(expression.nodes))))
    values = [x.get() for x in evaluate(whole, [on_device(block) for block in blocks])]
    for at, (node, value) in enumerate(zip(whole.nodes, values, strict=True)):
        if isinstance(node, Input | Constant):
            continue
        assert (value.dtype, value.shape) == (kinds[at].dtype, kinds[at].shape)
        if kinds[at].known and defined(node, [kinds[x] for x in node.arguments]):
            nodes = whole.nodes
            arguments = [
                nodes[x].value if isinstance(nodes[x], Constant) else values[x]
                for x in node.arguments
            ]
            wanted = np.asarray(node_value(node, arguments))
            shift = 8 if isinstance(node, Apply) and "logaddexp" in node.function else 0
            close(value + shift, wanted + shift)


def defined(node: Any, below: list[Typed]) -> bool:
    """Whether C defines the result: not for a float that an integer cannot represent."""
    if isinstance(node, Cast):
        return np.dtype(node.dtype).kind not in "iu" or below[0].dtype.kind not in "fc"
    return node.function != "power" if isinstance(node, Apply) else True


def test_exact_quotients_and_roots() -> None:
    rng = np.random.default_rng(6)
    x = rng.integers(0, 1 << 32, 1 << 20, dtype="u8").astype("u4").view("f4")
    x = x[np.isfinite(x) & (x != 0)]
    whole = rng.integers(1, 1 << 12, x.size).astype("f4")
    small = rng.integers(1, 1 << 11, x.size).astype("f4")
    check(traced(lambda xp, x: (x / x, -x / x), 1), x, ulps=0)
    check(traced(lambda xp, x, y: (x * y / y, xp.sqrt(y * y)), 2), whole, small, ulps=0)
    # in reductions and rows on chip too, which have other code for it
    rows = (x[: 1 << 17].reshape(-1, 64), whole[: 1 << 17].reshape(-1, 64))
    check(traced(lambda xp, x: ((x / x).sum(1), (x / x).min(0)), 1), rows[0], ulps=0)
    check(traced(lambda xp, x: x / x.max(1, True), 1), rows[1])


def test_quotients_and_roots_of_any_numbers() -> None:
    rng = np.random.default_rng(8)
    x, y = rng.integers(0, 1 << 32, (2, 1 << 20), dtype="u8").astype("u4").view("f4")
    check(traced(lambda xp, x, y: (x / y, xp.sqrt(x), 1 / x), 2), x, y)
    normal = rng.normal(size=(2, 1 << 20)).astype("f4")
    check(traced(lambda xp, x, y: (x / y, xp.sqrt(abs(x))), 2), *normal, ulps=1)
    check(traced(lambda xp, x, y: (x / y).max(0), 2), *normal.reshape(2, -1, 64), ulps=1)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of blocks of each launch."""
    from dask_dgpu.kernels.fused import launching

    found: list[int] = []
    launch = launching.driver.launchKernel

    def noting(*arguments: Any) -> None:
        found.append(arguments[3])
        launch(*arguments)

    monkeypatch.setattr(launching.driver, "launchKernel", noting)
    return found


MANY: dict[str, Any] = {
    "elementwise": (lambda xp, x, y: x * y + 1, 1),
    "several results": (lambda xp, x, y: (x - y, x > y, xp.exp(x)), 1),
    "columns": (lambda xp, x, y: (x * y).sum(0), 1),
    "rows": (lambda xp, x, y: (x * y).max(1), 1),
    "softmax": (lambda xp, x, y: softmax(xp, x + y), 1),
    "standardise": (lambda xp, x, y: (x - x.mean(0)) / (x.std(0) + y), 2),
}


@pytest.mark.parametrize("case", MANY)
@pytest.mark.parametrize("shape", [(1, 1), (7, 13), (64, 128)])
@pytest.mark.parametrize("count", [2, 31, 70])
def test_blocks_of_one_kind_share_launches(
    case: str, shape: tuple[int, int], count: int, launched: list[int]
) -> None:
    import cupy

    function, launches = MANY[case]
    if shape == (1, 1):  # each column is a row
        launches = 1
    rng = np.random.default_rng(9)
    expression = traced(function, 2)
    several = [
        [cupy.asarray(rng.normal(size=shape).astype("f4")) for _ in range(2)] for _ in range(count)
    ]
    found = evaluate_all(expression, several)
    assert sum(launched) == count * launches
    assert len(launched) == -(-count // max(launched)) * launches
    assert max(launched) == min(count, 32)
    for blocks, results in zip(several, found, strict=True):
        for one, other in zip(results, evaluate(expression, blocks), strict=True):
            np.testing.assert_array_equal(one.get(), other.get())


def test_segments_of_many_blocks_are_folded(launched: list[int]) -> None:
    import cupy

    rng = np.random.default_rng(10)
    blocks = [cupy.asarray(rng.random((40_000, 8)).astype("f4")) for _ in range(5)]
    expression = traced(lambda xp, x: (x.sum(0), x.var(0)), 1)
    found = evaluate_all(expression, [[block] for block in blocks])
    assert launched == [5, 5]
    for block, results in zip(blocks, found, strict=True):
        for one, other in zip(results, evaluate(expression, [block]), strict=True):
            np.testing.assert_array_equal(one.get(), other.get())


def test_blocks_of_several_kinds() -> None:
    import cupy

    rng = np.random.default_rng(11)
    wide = cupy.asarray(rng.random((40, 40)))
    blocks = [wide[:20, :20], wide[20:, 20:], wide.T[:20, :20], wide[:0], wide[:3], wide[:3].T]
    blocks += [wide.astype("f4"), wide.astype("f4") * 2, cupy.zeros((2, 2))]
    for function in (lambda xp, x: x * 2 + x.view(None, 0, 1), lambda xp, x: xp.exp(x * 1j) + 1):
        found = evaluate_all(traced(function, 1), [[block] for block in blocks])
        for block, (one,) in zip(blocks, found, strict=True):
            (wanted,) = evaluate(traced(function, 1), [block])
            assert (one.dtype, one.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_array_equal(one.get(), wanted.get())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@examples(40)
@given(drawn(exact=True))
def test_any_expression_of_many_blocks(pair: tuple[Drawn, Expression]) -> None:
    found, expression = pair
    several = [
        [on_device(np.asarray(block)) * (number % 3) for block in found.blocks]
        for number in range(5)
    ]
    together = evaluate_all(expression, several)
    for blocks, results in zip(several, together, strict=True):
        alone = evaluate(expression, blocks)
        for one, other in zip(results, alone, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_array_equal(one.get(), other.get())


def test_threads_launch_at_a_time() -> None:
    import cupy

    expressions = [traced(lambda xp, x: x * factor + 1, 1) for factor in (0.5, 1.5, 2.5)]  # noqa: B023

    def work(number: int) -> bool:
        x = cupy.full(1000 + number, number, "f4")
        factor = (0.5, 1.5, 2.5)[number % 3]
        (found,) = evaluate(expressions[number % 3], [x])
        return bool((found == number * factor + 1).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(400)))


def test_errors_are_numpys() -> None:
    import cupy

    with pytest.raises(ValueError, match="broadcast"):
        evaluate(traced(lambda xp, x, y: x + y, 2), [cupy.zeros(3), cupy.zeros(4)])
    with pytest.raises(OverflowError):
        evaluate(traced(lambda xp, x: x + 300, 1), [cupy.zeros(3, "uint8")])
    with pytest.raises(TypeError):
        evaluate(traced(lambda xp, x: xp.bitwise_and(x, x), 1), [cupy.zeros(3)])
