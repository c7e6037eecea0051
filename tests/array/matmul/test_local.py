"""What a user sees without a cluster: one process, ranks as threads."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from dask.array.core import Array
from dask.core import flatten
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.explained import said
from tests.support.profiles import examples

ALWAYS = {"on_error": "raise", "when": "always"}
DTYPES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


@pytest.fixture(autouse=True, params=[1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[dgpu.Enabled]:
    with dgpu.enable(local_ranks=request.param, **ALWAYS) as state:
        yield state
    assert "array_optimize" not in dask.config.config


@pytest.fixture(params=["synchronous", "threads"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[None]:
    with dask.config.set(scheduler=request.param):
        yield


def numbers(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 10, shape).astype("float64") + (0.5 if dtype[0] in "fc" else 0)
    if dtype[0] == "c":
        values = values + 1j * rng.integers(-9, 10, shape)
    with np.errstate(invalid="ignore"):
        return values.astype(dtype) if dtype != "bool" else rng.random(shape) < 0.3


A, B, V = numbers(11, 13), numbers(13, 7, seed=1), numbers(13, seed=2)
X, Y, U = (
    da.from_array(A, chunks=(4, 5)),
    da.from_array(B, chunks=(5, 3)),
    da.from_array(V, chunks=5),
)


SQUARE = da.from_array(A[:, :11], chunks=4)


def masked(x: da.Array) -> da.Array:
    return x.map_blocks(np.ma.array, meta=np.ma.array(np.empty((0, 0))))


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12, strict=True)


CASES: dict[str, tuple[Callable[[Any, Any, Any], Any], int]] = {
    "matmul": (lambda x, y, u: x @ y, 1),
    "dot": (lambda x, y, u: x.dot(y), 1),
    "gram": (lambda x, y, u: x.T @ x, 1),
    "vector right": (lambda x, y, u: x @ u, 1),
    "vector left": (lambda x, y, u: u @ y, 1),
    "inner": (lambda x, y, u: u @ u, 1),
    "chain": (lambda x, y, u: x @ x.T @ x @ y, 1),
    "sum": (lambda x, y, u: (x @ y).sum(axis=0), 1),
    "slice": (lambda x, y, u: (x @ y)[3:9, ::2], 1),
    "corner": (lambda x, y, u: (x @ y)[:4, :3] * 2, 1),
    "reused": (lambda x, y, u: (x @ y) + (x @ y).mean(), 1),
    "transposed operands": (lambda x, y, u: y.T @ x.T, 1),
    "elementwise operands": (lambda x, y, u: (x + 1) @ (y * 2), 1),
    "reversed": (lambda x, y, u: x[::-1, ::-1] @ y[::-1], 1),
}


@pytest.mark.usefixtures("scheduler")
@pytest.mark.parametrize("case", CASES)
def test_values(case: str, gangs: list[str]) -> None:
    multiply, count = CASES[case]
    result = multiply(X, Y, U)
    value = result.compute()
    close(value, multiply(A, B, V))
    assert isinstance(value, np.ndarray | np.generic)
    assert value.dtype == result.dtype
    assert len(gangs) == count


@pytest.mark.slow
@pytest.mark.parametrize("inner", [5, 13])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("multiply", [da.matmul, da.dot])
def test_dtype_is_the_one_dask_declares(dtype: str, inner: int, multiply: Any) -> None:
    a, b = numbers(11, 13, dtype=dtype), numbers(13, 7, dtype=dtype, seed=1)
    z = multiply(da.from_array(a, chunks=(4, inner)), da.from_array(b, chunks=(inner, 3)))
    value = z.compute(scheduler="sync")
    expected = np.matmul(a.astype(z.dtype), b.astype(z.dtype))
    assert value.dtype == z.dtype
    if z.dtype.kind in "biu":
        np.testing.assert_array_equal(value, expected, strict=True)
    else:
        rtol = 20 * float(np.finfo(z.dtype).eps)
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=100 * rtol)


def test_small_integers_are_summed_in_the_wide_dtype() -> None:
    x = da.full((3, 200), 100, dtype="int8", chunks=(3, 100))
    z = x @ x.T
    assert z.dtype == "int64"
    assert (z.compute() == 200 * 100**2).all()
    narrow = x.rechunk(-1) @ x.rechunk(-1).T
    assert narrow.dtype == "int8"
    assert (narrow.compute() == np.array(200 * 100**2).astype("int8")).all()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("int8", "float32"),
        ("bool", "complex64"),
        ("uint64", "int64"),
        ("int16", "float16"),
        ("float16", "float64"),
        ("bool", "uint8"),
    ],
)
def test_mixed_dtypes(left: str, right: str) -> None:
    a, b = numbers(5, 13, dtype=left), numbers(13, 3, dtype=right, seed=1)
    z = da.from_array(a, chunks=(2, 5)) @ da.from_array(b, chunks=(5, 2))
    value = z.compute()
    assert value.dtype == z.dtype
    np.testing.assert_allclose(value, a.astype(z.dtype) @ b.astype(z.dtype), rtol=1e-2)


@examples(25)
@given(st.data())
def test_any_chunks(data: st.DataObject) -> None:
    def chunks(length: int) -> tuple[int, ...]:
        if length == 1:
            return (1,)  # cut in two, Dask takes it for an axis to broadcast
        edges = sorted(data.draw(st.lists(st.integers(0, length), max_size=3)))
        return tuple(hi - lo for lo, hi in pairwise([0, *edges, length]))

    m, k, n = (data.draw(st.sampled_from([1, 2, 5, 13])) for _ in range(3))
    a, b = numbers(m, k, dtype="int64"), numbers(k, n, dtype="int64", seed=1)
    x = da.from_array(a, chunks=(chunks(m), chunks(k)))
    y = da.from_array(b, chunks=(chunks(k), chunks(n)))
    np.testing.assert_array_equal((x @ y).compute(scheduler="sync"), a @ b, strict=True)


@pytest.mark.parametrize(
    "shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0), (0, 5, 0), (1, 1, 1)]
)
@pytest.mark.parametrize("chunk", [2, -1])
def test_empty_operands_as_dask(shape: tuple[int, int, int], chunk: int) -> None:
    m, k, n = shape
    z = da.ones((m, k), chunks=chunk) @ da.ones((k, n), chunks=chunk)
    value = z.compute()
    with dask.config.set(array_optimize=da.optimize):
        expected = z.compute()
    np.testing.assert_array_equal(value, expected, strict=True)


@pytest.mark.parametrize("operands", [(X, X), (X, U[:5]), (U[:5], X), (X, da.ones(()))])
@pytest.mark.parametrize("multiply", [da.matmul, da.dot])
def test_what_does_not_conform_raises_dasks_own_error(multiply: Any, operands: Any) -> None:
    def error() -> tuple[type[Exception], str]:
        with pytest.raises((ValueError, IndexError, AssertionError)) as raised:
            multiply(*operands)
        return raised.type, str(raised.value)

    first = error()
    dgpu.disable()
    assert first == error()


@pytest.mark.usefixtures("scheduler")
def test_store_and_zarr(tmp_path: Path, gangs: list[str]) -> None:
    z = X @ Y
    target, double = np.zeros((11, 7)), np.zeros((11, 7))
    da.store([z, z * 2], [target, double])
    close(target, A @ B)
    close(double, 2 * (A @ B))
    rechunked = z.rechunk((4, 3))
    rechunked.to_zarr(str(tmp_path / "z.zarr"))
    close(np.asarray(zarr.open(str(tmp_path / "z.zarr"))[...]), A @ B)  # type: ignore[index]
    close(da.from_zarr(str(tmp_path / "z.zarr")).compute(), A @ B)
    assert set(gangs) == {dgpu.explain(z).rewritten[0][0].label}
    assert len(gangs) == 2


def test_persist(gangs: list[str]) -> None:
    z = (X @ Y).persist()
    assert len(gangs) == 1
    close(z.compute(), A @ B)
    close((z @ z.T).compute(), A @ B @ (A @ B).T)
    assert len(gangs) == 2


def test_persisted_operands(gangs: list[str]) -> None:
    x, y = dask.persist(X, Y)
    close((x @ y).compute(), A @ B)
    assert len(gangs) == 1


def test_several_results_share_their_product(gangs: list[str]) -> None:
    z = X @ Y
    whole, total, corner, gram = dask.compute(z, z.sum(), z[:2, :2], Y.T @ Y)
    close(whole, A @ B)
    close(total, (A @ B).sum())
    close(corner, (A @ B)[:2, :2])
    close(gram, B.T @ B)
    labels = [dgpu.explain(product).rewritten[0][0].label for product in (z, Y.T @ Y)]
    (joined,) = gangs  # both read y
    assert sorted(joined.split(", ")) == sorted(labels)


def test_to_delayed_runs_single_blocks_as_plain_dask(gangs: list[str]) -> None:
    blocks = (X @ Y).to_delayed()
    close(blocks[1, 2].compute(), (A @ B)[4:8, 6:])
    assert gangs == []


def test_delayed_of_an_array(gangs: list[str]) -> None:
    total = dask.delayed(np.sum)(X @ Y).compute()
    close(total, (A @ B).sum())
    assert len(gangs) == 1


def test_optimize(gangs: list[str]) -> None:
    (z,) = dask.optimize(X @ Y)
    close(z.compute(), A @ B)
    close((z + 1).compute(), A @ B + 1)
    assert len(gangs) == 2


def test_optimized_before(gangs: list[str]) -> None:
    (z,) = dask.optimize(X @ Y)
    close((z @ z.T).compute(), A @ B @ (A @ B).T)
    assert len(gangs) == 2


def test_an_array_of_a_delayed_of_an_array(gangs: list[str]) -> None:
    z = X @ Y
    total = da.from_delayed(dask.delayed(np.sum)(z), (), dtype=float)
    close((total + 1).compute(), (A @ B).sum() + 1)
    close((z @ Y.T + total).compute(), A @ B @ B.T + (A @ B).sum())
    assert len(gangs) == 3


def test_without_optimization(gangs: list[str]) -> None:
    close((X @ Y).compute(optimize_graph=False), A @ B)
    assert gangs == []
    with dask.config.set({"optimization.fuse.active": False}):
        close((X @ Y + 1).compute(), A @ B + 1)
    assert len(gangs) == 1


def test_annotations_do_not_get_in_the_way(gangs: list[str]) -> None:
    with dask.annotate(priority=2, retries=3):
        z = X @ Y
    close((z + 1).compute(), A @ B + 1)
    assert len(gangs) == 1


def test_a_block_function_that_multiplies_with_dask(gangs: list[str]) -> None:
    """A gang within a task of another computation."""

    def multiply(block: Any) -> Any:
        inner = da.from_array(block, chunks=2)
        return (inner @ inner.T).compute(scheduler="sync")

    x = da.from_array(A[:, :11], chunks=(11, 11)).map_blocks(multiply, meta=np.empty((0, 0)))
    close((x @ x).compute(scheduler="threads"), np.linalg.matrix_power(A[:, :11] @ A[:, :11].T, 2))
    assert len(gangs) == 2


@pytest.mark.slow
def test_processes() -> None:
    close((X @ Y).sum().compute(scheduler="processes", num_workers=1), (A @ B).sum())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: da.dot(masked(X), masked(Y)), "MaskedArray"),
        (lambda: X.astype(object) @ Y.astype(object), "dtype object has no kernel"),
        (lambda: X[X[:, 0] > 0] @ Y, "chunk sizes are unknown"),
        (lambda: X[:, U > 0] @ Y[U > 0], "chunk sizes are unknown"),
        (lambda: da.diagonal(SQUARE @ SQUARE), "not wanted"),
    ],
    ids=["masked", "object", "unknown", "masked contraction", "diagonal"],
)
def test_what_is_declined_is_left_to_dask(
    make: Callable[[], Any], reason: str, gangs: list[str]
) -> None:
    z = make()
    explanation = dgpu.explain(z)
    assert explanation.rewritten == ()
    assert reason in explanation.declined[0].reason
    assert f": Dask: {explanation.declined[0].reason}" in said(explanation)
    value = z.compute()
    assert gangs == []
    with dask.config.set(array_optimize=da.optimize):
        expected = z.compute()
    assert type(value) is type(expected)
    np.testing.assert_array_equal(value, expected)
    keys = z.__dask_keys__()
    mine = dask.config.get("array_optimize")(z.dask, keys)
    assert list(mine) == list(da.optimize(z.dask, keys))


def test_a_part_and_then_the_whole(gangs: list[str]) -> None:
    z = X @ Y
    part = z[:4].persist()
    whole, corner = dask.compute(z, part[:, :3])
    close(whole, A @ B)
    close(corner, (A @ B)[:4, :3])
    assert len(gangs) == 2


def test_chunk_sizes_that_dask_learns_late(gangs: list[str]) -> None:
    rows = A[:, 0] > 0
    x = X[X[:, 0] > 0].compute_chunk_sizes()
    close((x @ Y).compute(), A[rows] @ B)
    assert len(gangs) == 1
    close(
        (X[:, U > 0].compute_chunk_sizes() @ Y[U > 0].compute_chunk_sizes()).compute(),
        A[:, V > 0] @ B[V > 0],
    )


def test_a_diagonal_of_a_product_of_products(gangs: list[str]) -> None:
    z = da.diagonal((X @ Y) @ (Y.T @ X.T))
    explanation = dgpu.explain(z)
    assert (len(explanation.rewritten), len(explanation.declined)) == (2, 1)
    close(z.compute(), np.diagonal(A @ B @ B.T @ A.T))
    assert len(gangs) == 1  # both inner products read the same arrays


def test_explain_a_product() -> None:
    z = X @ Y
    explanation = dgpu.explain(z.sum())
    (piece,) = explanation.to_dict()["rewritten"]
    label = explanation.rewritten[0][0].label
    assert label.startswith("matmul-")
    assert (piece["name"], piece["shape"], piece["inner"]) == (z.name, (11, 7), 13)
    assert (piece["tasks"], piece["dask_tasks"]) == (9 + 9 + 9 + 1, 54)
    assert piece["dtype"] == "float64"
    assert piece["peak_bytes"] >= (A.nbytes + B.nbytes) // 3
    (product, total) = explanation.operations
    assert (product.operation, product.by, product.summary) == (
        "matmul",
        "gang",
        "(11, 13) @ (13, 7) float64",
    )
    assert "panel" in product.why
    assert (total.operation, total.by) == ("sum", "gang")
    assert repr(explanation) == str(explanation)
    assert "(11, 13) @ (13, 7) float64" in explanation._repr_html_()
    assert json.loads(explanation.to_json())["operations"][0]["operation"] == "matmul"
    pickle.loads(pickle.dumps(explanation))


def test_explain_says_what_is_computed_of_a_product() -> None:
    z = X @ Y
    (piece,) = dgpu.explain(z[:4, :3]).to_dict()["rewritten"]
    assert (piece["shape"], piece["inner"], piece["tasks"]) == ((4, 3), 13, 3 + 3 + 1 + 1)
    assert "(4, 13) @ (13, 3)" in said(dgpu.explain(z[:4, :3]))


NOTHING: dict[str, Any] = {
    "operations": [],
    "total": None,
    "room": None,
    "rewritten": [],
    "regions": [],
    "declined": [],
    "failures": [],
    "measured": [],
    "seconds": None,
    "dask_seconds": None,
}


def test_explain_nothing() -> None:
    explanation = dgpu.explain(X + 1)
    seconds = explanation.seconds
    assert seconds is not None
    assert seconds > 0
    totals = {"seconds": seconds, "dask_seconds": seconds}
    found = explanation.to_dict()
    (operation,), total = found.pop("operations"), found.pop("total")
    assert (operation["operation"], operation["by"], operation["why"]) == (
        "x + 1",
        "Dask",
        "no blocks meet",
    )
    assert total["tasks"] == total["dask_tasks"] == operation["tasks"] == 9
    assert {"operations": [], "total": None} | found == {"enabled": True} | NOTHING | totals
    assert "no operations of arrays to compute" in str(dgpu.explain(dask.delayed(1)))


def test_explain_when_it_is_off() -> None:
    dgpu.disable()
    explanation = dgpu.explain(X @ Y)
    assert explanation.to_dict() == {"enabled": False} | NOTHING
    assert str(explanation) == "dask_dgpu is not enabled: everything is left to Dask"
    assert "not enabled" in explanation._repr_html_()


def test_explain_wants_a_collection() -> None:
    with pytest.raises(TypeError, match="expected array to be a Dask collection, got ndarray of"):
        dgpu.explain(A)


def test_explain_several_pieces() -> None:
    z = (X @ Y).sum() + (masked(X) @ Y).sum()
    explanation = dgpu.explain(z)
    assert (len(explanation.rewritten), len(explanation.declined)) == (1, 1)
    verdicts = [(each.operation, each.by) for each in explanation.operations]
    assert {("matmul", "gang"), ("matmul", "Dask"), ("sum", "gang"), ("sum", "Dask")} <= {*verdicts}
    assert explanation._repr_html_().count("<tr><td") == len(verdicts) + 2  # the gang, the total


def test_the_cost_model_may_decline(gangs: list[str]) -> None:
    dgpu.enable(local_ranks=1, on_error="raise", when="cheaper")
    x = da.ones((2, 2), chunks=2)
    assert dgpu.explain(x @ x).declined[0].reason.startswith("plain Dask is predicted")
    assert ((x @ x).compute() == 2).all()
    assert gangs == []


def test_the_memory_limit_may_decline(gangs: list[str]) -> None:
    dgpu.enable(memory_limit=100, **ALWAYS)
    assert "may be used" in dgpu.explain(X @ Y).declined[0].reason
    close((X @ Y).compute(), A @ B)
    assert gangs == []


def test_enable_twice_and_disable() -> None:
    to_delayed = Array.to_delayed
    dgpu.enable(**ALWAYS)
    assert Array.to_delayed is to_delayed
    dgpu.disable()
    assert "array_optimize" not in dask.config.config
    assert not hasattr(Array.to_delayed, "__wrapped__")
    dgpu.disable()
    close((X @ Y).compute(), A @ B)


def test_contexts_restore_what_was_before(enabled: dgpu.Enabled) -> None:
    with dgpu.enable(local_ranks=2) as inner:
        assert dask.config.get("array_optimize") is inner.optimizer
    assert dask.config.get("array_optimize") == enabled.optimizer
    with pytest.raises(KeyError), dgpu.enable(local_ranks=2):
        raise KeyError
    assert dask.config.get("array_optimize") == enabled.optimizer
    dgpu.disable()
    with dask.config.set(array_optimize=da.optimize):
        with dgpu.enable():
            pass
        assert dask.config.get("array_optimize") is da.optimize


def test_the_optimizer_is_frozen_and_travels(enabled: dgpu.Enabled) -> None:
    again = pickle.loads(pickle.dumps(enabled.optimizer))
    assert again == enabled.optimizer
    assert hash(again) == hash(enabled.optimizer)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"local_rank": 2}, "unknown setting 'local_rank' .did you mean 'local_ranks'"),
        ({"local_ranks": 0}, "local-ranks"),
        ({"local_ranks": "two"}, "local-ranks"),
        ({"when": "never"}, "when"),
        ({"on_error": "ignore"}, "on-error"),
        ({"device": "tpu"}, "device"),
        ({"comm": "mpi"}, "comm"),
        ({"gang_restarts": -1}, "gang.restarts to be integer of at least 0, got -1"),
        ({"memory_safety_margin": 2}, "memory.safety-margin"),
        ({"gang_timeout": "soon"}, "gang.timeout"),
        ({"memory_limit": "much"}, "memory.limit"),
    ],
)
def test_settings_that_are_not_allowed(
    given: dict[str, Any], message: str, enabled: dgpu.Enabled
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        dgpu.enable(**given)
    assert "\n" not in str(raised.value)
    assert dask.config.get("array_optimize") == enabled.optimizer


def test_clients_that_are_not_allowed(enabled: dgpu.Enabled) -> None:
    address: Any = "tcp://127.0.0.1:8786"
    with pytest.raises(TypeError, match=r"expected client to be a distributed.Client, got 'tcp://"):
        dgpu.enable(address)

    async def connect() -> None:
        cluster = LocalCluster(
            n_workers=0, processes=False, asynchronous=True, dashboard_address=":0"
        )
        async with cluster, Client(cluster, asynchronous=True) as client:
            with pytest.raises(TypeError, match=r"expected client to be .* an asynchronous one"):
                dgpu.enable(client)

    asyncio.run(connect())
    assert dask.config.get("array_optimize") == enabled.optimizer


def test_settings_from_the_configuration() -> None:
    with (
        dask.config.set({"dgpu.local_ranks": 2, "dgpu.gang.timeout": "3s", "dgpu.when": "always"}),
        dgpu.enable(gang_grace=1) as state,
    ):
        found = state.optimizer.settings
        assert (found.local_ranks, found.when) == (2, "always")
        assert (found.limits.timeout, found.limits.grace) == (3, 1)
    with dask.config.set({"dgpu.ranks": 2}), pytest.raises(ValueError, match="ranks"):
        dgpu.enable()


def test_graphs_without_layers(enabled: dgpu.Enabled) -> None:
    z = X @ Y
    tasks = dict(z.dask)
    assert set(enabled.optimizer(tasks, z.__dask_keys__())) >= set(flatten(z.__dask_keys__()))


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (lambda block: block[:, :-1], "declared with shape"),
        (lambda block: block + 1j, "declared as float64 but is complex128"),
        (np.ma.array, "declared as numpy.ndarray but is a masked array"),
    ],
)
def test_blocks_that_are_not_what_dask_was_told(meta: Any, message: str) -> None:
    x = X.map_blocks(meta, meta=np.empty((0, 0)), dtype=float)
    with pytest.raises((TypeError, ValueError), match=message):
        (x @ Y).compute()


def test_blocks_that_only_need_converting() -> None:
    lists = da.from_delayed(dask.delayed(lambda: [[1, 2], [3, 4]])(), (2, 2), dtype="float64")
    np.testing.assert_array_equal((lists @ lists).compute(), [[7.0, 10.0], [15.0, 22.0]])
    narrow = X.map_blocks(
        lambda block: block.astype("float32"), dtype="float64", meta=np.empty((0, 0))
    )
    close((narrow @ Y).compute(), A @ B)


def test_what_numpy_does_on_overflow_is_the_callers_choice() -> None:
    x = da.full((4, 100), 60_000, dtype="float16", chunks=(2, 50))
    with np.errstate(over="ignore"):
        assert np.isinf((x @ x.T).compute(scheduler="sync")).all()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        (x @ x.T).compute(scheduler="sync")


def test_operands_stay_as_they_are() -> None:
    a, b = A.copy(), B.copy()
    x, y = da.from_array(a, chunks=(11, 13)), da.from_array(b, chunks=(13, 7))
    (x @ y).compute()
    np.testing.assert_array_equal(a, A)
    np.testing.assert_array_equal(b, B)


def test_results_may_be_written_to() -> None:
    z = X @ Y
    z[:3] = 0
    expected = A @ B
    expected[:3] = 0
    close(z.compute(), expected)
    value = (X @ Y).compute()
    value += 1
    close(value, A @ B + 1)


def test_disabled_graphs_are_those_of_dask(gangs: list[str]) -> None:
    assert dask.config.get("array_optimize") is not None
    dgpu.disable()
    assert dask.config.get("array_optimize", None) is None
    close((X @ Y).compute(), A @ B)
    assert gangs == []
