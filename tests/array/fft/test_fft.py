"""``dgpu.fft`` against NumPy and SciPy, for any chunks, with and without a cluster."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from dask.core import flatten
from dask.local import get_sync
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.cluster.conftest import start_cluster
from tests.support.profiles import examples

ONE_AXIS = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
SEVERAL_AXES = ["fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"]
EVERY = [*ONE_AXIS, *SEVERAL_AXES]
DASKS_OWN = {name: getattr(da.fft, name) for name in EVERY}
REAL_DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64"]
DTYPES = [*REAL_DTYPES, "complex64", "complex128"]


def numbers(*shape: int, dtype: str = "float64") -> Any:
    """Return numbers with a mean that is far from 0, so that no sum cancels."""
    rng = np.random.default_rng(sum(shape))
    values = rng.random(shape) + 0.5
    if dtype.startswith("c"):
        values = values + 1j * rng.random(shape)
    return (values if dtype[0] in "fc" else 5 * values).astype(dtype)


def check(y: da.Array, expected: Any, n: int) -> None:
    """Compare values, and each block's shape, dtype and type with what was declared."""
    assert y.shape == expected.shape
    assert y.dtype == expected.dtype
    blocks = np.empty(y.numblocks, object)
    found = get_sync(y.dask, list(flatten(y.__dask_keys__())))
    for index, block in zip(np.ndindex(y.numblocks), found, strict=True):
        assert block.shape == tuple(sizes[at] for sizes, at in zip(y.chunks, index, strict=True))
        assert block.dtype == y.dtype
        assert type(block) is type(y._meta)
        blocks[index] = block
    value = np.block(blocks.tolist())
    eps = np.finfo(expected.dtype).eps
    error = np.linalg.norm((value - expected).ravel())
    assert error <= 8 * eps * max(1, math.log2(n)) * np.linalg.norm(expected.ravel())


def exact(name: str, a: Any, **arguments: Any) -> Any:
    """Return what SciPy computes in double precision, in the dtype that NumPy gives it."""
    with warnings.catch_warnings(action="ignore"):
        dtype = getattr(np.fft, name)(a, **arguments).dtype
    wide = a.astype("complex128" if a.dtype.kind == "c" else "float64")
    return getattr(scipy.fft, name)(wide, **arguments).astype(dtype)


def numpys(name: str, a: Any, **arguments: Any) -> Any:
    return getattr(np.fft, name)(a, **arguments)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Any, Any, dict[str, Any]]:
    name = draw(st.sampled_from(EVERY))
    several = name in SEVERAL_AXES
    sizes = st.lists(
        st.sampled_from([1, 2, 3, 5, 6, 7, 11, 16]), min_size=2 if several else 1, max_size=3
    )
    shape = draw(sizes)
    dtype = draw(st.sampled_from(REAL_DTYPES if name.startswith(("rfft", "ihfft")) else DTYPES))
    chunks = []
    for length in shape:
        cuts = draw(st.sets(st.integers(1, length), max_size=4))
        edges = sorted({0, length} | cuts)
        chunks.append(tuple(np.diff(edges).tolist()))
    arguments: dict[str, Any] = {}
    if draw(st.booleans()):
        arguments["norm"] = draw(st.sampled_from(["backward", "ortho", "forward", None]))
    axes = st.integers(-len(shape), len(shape) - 1)
    default = [-1]
    if several:
        count = 2 if name.endswith("2") else draw(st.integers(1, len(shape)))
        chosen = st.lists(
            axes, min_size=count, max_size=count, unique_by=lambda axis: axis % len(shape)
        )
        default = draw(chosen)
        arguments["axes"] = tuple(default)
    elif draw(st.booleans()):
        default = [draw(axes)]
        arguments["axis"] = default[0]
    to_real = name.startswith(("irfft", "hfft"))
    short = to_real and shape[default[-1]] == 1
    if short or draw(st.booleans()):
        lengths = [draw(st.integers(1, 20)) for _ in default]
        arguments |= {"s": tuple(lengths)} if several else {"n": lengths[0]}
    return name, numbers(*shape, dtype=dtype), tuple(chunks), arguments


@examples(200)
@given(call=calls(), layout=st.sampled_from(["any", "input"]))
def test_values(call: Any, layout: str) -> None:
    name, a, chunks, arguments = call
    x = da.from_array(a, chunks=chunks)
    with dask.config.set({"dgpu.fft.output-layout": layout}):
        y = getattr(dgpu.fft, name)(x, **arguments)
    axes = arguments.get("axes", [arguments.get("axis", -1)])
    moves = any(x.numblocks[axis] > 1 for axis in axes)
    # NumPy, and so Dask, scales float16 in half precision
    oracle = exact if moves or a.dtype != "float16" else numpys
    check(y, oracle(name, a, **arguments), max(*y.shape, *x.shape, 1))
    if layout == "input" and moves:
        for old, new in zip(x.chunks, y.chunks, strict=True):
            assert new == old or sum(new) != sum(old)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("optimize_graph", [True, False])
def test_defaults(name: str, scheduler: str, optimize_graph: bool) -> None:
    a = numbers(12, 7, 10)
    y = getattr(dgpu.fft, name)(da.from_array(a, chunks=(5, 3, 4)))
    value = y.compute(scheduler=scheduler, optimize_graph=optimize_graph)
    np.testing.assert_allclose(value, getattr(np.fft, name)(a), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("name", EVERY)
def test_single_chunk_gives_dasks_own_graph(name: str) -> None:
    a = numbers(3, 8, 6)
    x = da.from_array(a, chunks=(1, -1, -1))
    several = name in SEVERAL_AXES
    arguments = {"axes": (-1, 1), "s": (5, 9)} if several else {"axis": 1, "n": 5}
    ours, dasks = getattr(dgpu.fft, name)(x, **arguments), DASKS_OWN[name](x, **arguments)
    assert ours.dask.to_dict() == dasks.dask.to_dict()
    assert (ours.name, ours.chunks, ours.dtype) == (dasks.name, dasks.chunks, dasks.dtype)
    if not name.endswith("n"):
        assert getattr(dgpu.fft, name)(x).name == DASKS_OWN[name](x).name


@pytest.mark.parametrize("name", [name for name in EVERY if name.endswith("n")])
@pytest.mark.parametrize("chunks", [(-1, -1, -1), (2, 3, 4)])
def test_s_without_axes_counts_from_the_end(name: str, chunks: Any) -> None:
    a = numbers(5, 6, 7)
    x = da.from_array(a, chunks=chunks)
    with pytest.warns(DeprecationWarning, match="`axes` should not be `None`") as caught:
        y = getattr(dgpu.fft, name)(x, s=(4, 9))
    assert {warning.filename for warning in caught} == {__file__}
    check(y, exact(name, a, s=(4, 9), axes=(-2, -1)), 9)


@pytest.mark.parametrize("name", SEVERAL_AXES)
@pytest.mark.parametrize("chunks", [(-1, -1), (2, 3)])
@pytest.mark.parametrize("s", [(-1, 8), (5, -1), (-1, -1)])
def test_minus_one_in_s_is_the_length(name: str, chunks: Any, s: tuple[int, int]) -> None:
    a = numbers(6, 7)
    y = getattr(dgpu.fft, name)(da.from_array(a, chunks=chunks), s=s, axes=(0, 1))
    expected = getattr(np.fft, name)(a, s=s, axes=(0, 1))
    check(y, expected, 8)


@pytest.mark.parametrize("name", SEVERAL_AXES)
@pytest.mark.parametrize("chunks", [(-1, -1), (2, 3)])
def test_none_in_s_is_the_default(name: str, chunks: Any) -> None:
    a = numbers(6, 7)
    with pytest.warns(DeprecationWarning, match="`s` should not have an entry of `None`"):
        y = getattr(dgpu.fft, name)(da.from_array(a, chunks=chunks), s=(4, None), axes=(0, 1))
    with pytest.warns(DeprecationWarning, match="`None` values to `s`"):
        expected = getattr(np.fft, name)(a, s=(4, None), axes=(0, 1))
    check(y, expected, 7)


def test_no_axes_do_nothing() -> None:
    a = numbers(4, 5)
    x = da.from_array(a, chunks=2)
    np.testing.assert_array_equal(dgpu.fft.fftn(x, axes=()).compute(), np.fft.fftn(a, axes=()))
    with pytest.raises(IndexError, match="expected axes to have at least one entry"):
        dgpu.fft.rfftn(x, axes=())


@pytest.mark.parametrize(
    ("shape", "chunks", "n"),
    [((0, 6), (1, 2), None), ((0, 6), (1, 2), 4), ((6, 0), (2, 1), 4), ((3, 0), (3, 1), 4)],
)
@pytest.mark.parametrize("name", ONE_AXIS)
def test_empty(name: str, shape: Any, chunks: Any, n: int | None) -> None:
    a = np.zeros(shape)
    check(
        getattr(dgpu.fft, name)(da.from_array(a, chunks=chunks), n=n),
        getattr(np.fft, name)(a, n=n),
        2,
    )


def test_empty_chunks() -> None:
    a = numbers(6, 5)
    x = da.from_array(a, chunks=((3, 0, 3), (0, 5)))
    check(dgpu.fft.fft2(x), np.fft.fft2(a), 6)


def test_long_double() -> None:
    a = numbers(6, 5).astype(np.longdouble)
    check(dgpu.fft.fft2(da.from_array(a, chunks=2)), np.fft.fft2(a), 6)


def test_takes_what_is_no_dask_array() -> None:
    a = numbers(6, 5)
    np.testing.assert_allclose(dgpu.fft.fft2(a.tolist()).compute(), np.fft.fft2(a), atol=1e-12)
    shifted = dgpu.fft.fftshift(dgpu.fft.fftfreq(6, chunks=2))
    np.testing.assert_array_equal(shifted.compute(), np.fft.fftshift(np.fft.fftfreq(6)))


# What an optimizer sees, and everybody else who walks a graph.

A = numbers(12, 10)
X = da.from_array(A, chunks=(5, 4))


def test_one_layer_that_tells_what_it_does() -> None:
    with dask.annotate(priority=3):
        y = dgpu.fft.rfft2(X, norm="ortho")
    assert set(y.dask.layers) == {X.name, y.name}
    layer = y.dask.layers[y.name]
    assert not layer.is_materialized()
    assert layer.annotations == {"priority": 3}
    assert layer.get_output_keys() == set(flatten(y.__dask_keys__()))
    y.dask._repr_html_()
    assert not layer.is_materialized()


def test_names_depend_on_input_and_plan_alone() -> None:
    assert dgpu.fft.fft2(X).name == dgpu.fft.fft2(X, axes=(0, 1)).name
    names = {
        dgpu.fft.fft2(X).name,
        dgpu.fft.fft2(X + 1).name,
        dgpu.fft.fft2(X, norm="ortho").name,
        dgpu.fft.fft2(X, s=(12, 9)).name,
    }
    with dask.config.set({"dgpu.fft.output-layout": "input"}):
        names.add(dgpu.fft.fft2(X).name)
    assert len(names) == 5


def test_layer_travels_without_its_tasks() -> None:
    y = dgpu.fft.fft2(X)
    layer = y.dask.layers[y.name]
    before = dict(layer)
    twin = pickle.loads(pickle.dumps(layer))
    assert layer.is_materialized()
    assert not twin.is_materialized()
    assert twin.annotations == layer.annotations
    assert dict(twin) == before


def test_only_what_is_wanted_is_computed() -> None:
    y = dgpu.fft.fft(X, axis=0)  # along the other axis nothing depends on anything
    part = y[:, :1]
    tasks = dict(dask.optimize(part)[0].dask)
    assert len(tasks) < len(dict(dask.optimize(y)[0].dask)) / 2
    np.testing.assert_allclose(part.compute(), np.fft.fft(A, axis=0)[:, :1], atol=1e-12)
    graph = y.dask.cull({(y.name, 0, 0)})
    (culled,) = (each for each in graph.layers.values() if (y.name, 0, 0) in each)
    assert culled.get_output_keys() == {(y.name, 0, 0)}
    assert set(culled) <= set(y.dask.layers[y.name])
    again = pickle.loads(pickle.dumps(culled))
    assert dict(again) == dict(culled)


def test_tasks_have_the_keys_under_which_they_are_found() -> None:
    x = da.ones((1, 8), chunks=(1, 4))
    with dask.config.set({"dgpu.fft.output-layout": "input"}):
        y = dgpu.fft.fft(x)
    layer = y.dask.layers[y.name]
    assert [task.key for task in layer.values()] == list(layer)
    np.testing.assert_allclose((y + 1).compute(), np.fft.fft(np.ones((1, 8))) + 1, atol=1e-14)


USES: dict[str, Callable[[da.Array], Any]] = {
    "compute": lambda y: y.compute(),
    "persist": lambda y: y.persist().compute(),
    "optimize": lambda y: dask.optimize(y)[0].compute(),
    "to_delayed": lambda y: np.block([[b.compute() for b in row] for row in y.to_delayed()]),
    "delayed": lambda y: dask.delayed(lambda block: block)(y).compute(),
    "slices": lambda y: np.concatenate([y[:3].compute(), y[3:].compute()]),
    "blocks": lambda y: np.block(
        [[y.blocks[i, j].compute() for j in range(y.numblocks[1])] for i in range(y.numblocks[0])]
    ),
    "arithmetic": lambda y: ((2 * y + y) / 3).compute(),
    "there and back": lambda y: dgpu.fft.fft2(dgpu.fft.ifft2(y)).compute(),
    "rechunk": lambda y: y.rechunk((5, 4)).compute(),
    "pickle": lambda y: pickle.loads(pickle.dumps(y)).compute(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("enabled", [False, True])
def test_uses(use: str, enabled: bool) -> None:
    def run() -> Any:
        return USES[use](dgpu.fft.fft2(X))

    if enabled:
        with dgpu.enable(on_error="raise"):
            value = run()
    else:
        value = run()
    np.testing.assert_allclose(value, np.fft.fft2(A), atol=1e-11)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        start_cluster("cpu", n_workers=2) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.usefixtures("client")
def test_uses_on_a_cluster(client: Client) -> None:
    for enabled, (use, function) in product([False, True], USES.items()):
        x = X + len(use) + 100 * enabled  # a graph of its own
        expected = np.fft.fft2(A + len(use) + 100 * enabled)
        if enabled:
            with dgpu.enable(client, on_error="raise", when="always"):
                value = function(da.fft.fft2(x))
        else:
            value = function(dgpu.fft.fft2(x))
        np.testing.assert_allclose(value, expected, atol=1e-10)
    with dgpu.enable(client, on_error="raise", when="always"):
        squared = da.fft.ifft2(da.fft.fft2(X @ X.T)).compute()
    np.testing.assert_allclose(squared, A @ A.T, atol=1e-10)
    y = dgpu.fft.fft2(X)
    unoptimized = client.compute(y + 1, optimize_graph=False).result()
    np.testing.assert_allclose(unoptimized, np.fft.fft2(A) + 1, atol=1e-11)


# Switching on and off.


def originals() -> bool:
    return all(getattr(da.fft, name) is function for name, function in DASKS_OWN.items())


def test_importing_changes_nothing() -> None:
    assert originals()
    with pytest.raises(ValueError, match="Dask array only supports"):
        da.fft.fft2(X)


@pytest.mark.parametrize("name", EVERY)
def test_enabled_dask_and_numpy_take_any_chunking(name: str) -> None:
    expected = getattr(np.fft, name)(A)
    with dgpu.enable(on_error="raise"):
        for function in (getattr(da.fft, name), getattr(np.fft, name)):
            y = function(X)
            assert isinstance(y, da.Array)
            np.testing.assert_allclose(y.compute(), expected, atol=1e-11)
    assert originals()


def test_numpy_passes_arguments_on() -> None:
    with dgpu.enable(on_error="raise"):
        y = np.fft.rfftn(X, s=(7, 20), axes=(1, 0), norm="forward")
    np.testing.assert_allclose(
        y.compute(), np.fft.rfftn(A, s=(7, 20), axes=(1, 0), norm="forward"), atol=1e-12
    )


def test_enabling_twice_and_disabling_once() -> None:
    dgpu.enable()
    with dgpu.enable():
        assert da.fft.fft2 is dgpu.fft.fft2
    assert da.fft.fft2 is dgpu.fft.fft2
    dgpu.enable()
    dgpu.disable()
    assert originals()


def test_what_somebody_else_put_there_stays() -> None:
    def other() -> None: ...

    try:
        with dgpu.enable():
            da.fft.hfft = other
        assert da.fft.hfft is other
    finally:
        da.fft.hfft = DASKS_OWN["hfft"]
    assert originals()


def output_layout() -> str:
    return "input" if dgpu.fft.fft2(X).chunks == X.chunks else "any"


def test_layout_setting() -> None:
    assert output_layout() == "any"
    with dgpu.enable(fft_output_layout="input"):
        assert da.fft.fft2(X).chunks == X.chunks
        with dask.config.set({"dgpu.fft.output-layout": "any"}):
            assert da.fft.fft2(X).chunks != X.chunks
    assert output_layout() == "any"
    with (
        dask.config.set({"dgpu.fft.output-layout": "same"}),
        pytest.raises(ValueError, match=r"dgpu\.fft\.output-layout"),
    ):
        dgpu.fft.fft2(X)


# Unknown chunk sizes.


def unknown_chunks() -> da.Array:
    return X[X[:, 0] > 0]


def test_unknown_chunks_elsewhere_are_left_to_dask() -> None:
    x = unknown_chunks().rechunk({1: -1})
    np.testing.assert_allclose(dgpu.fft.fft(x).compute(), np.fft.fft(A), atol=1e-12)
    with pytest.raises(ValueError, match="got unknown ones along axis 0"):
        dgpu.fft.fft2(x, s=(-1, -1), axes=(0, 1))


# One block.


@pytest.mark.parametrize("own", ["any", "input"])
def test_the_keyword_of_a_layout_ends_with_the_call(own: str) -> None:
    """Not only at the end of a ``with`` block."""
    other = "input" if own == "any" else "any"
    with dask.config.set({"dgpu.fft.output-layout": own}):
        dgpu.enable(fft_output_layout=other)
        dgpu.enable(fft_output_layout=other)
        assert output_layout() == other
        dgpu.enable()
        assert output_layout() == own
        dgpu.enable(fft_output_layout=other)
        with dgpu.enable():
            assert output_layout() == own
        assert output_layout() == other
        dgpu.disable()
        assert output_layout() == own
