"""Whole graphs as one program: random expressions equal NumPy's, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.profiles import examples

ALWAYS = {"on_error": "raise", "when": "always"}
RNG = np.random.default_rng(8)
N = 12
A = RNG.random((N, N))
A2, A3, A4 = A @ A, A @ A @ A, A @ A @ A @ A

Expression = tuple[Any, Any]
"""A Dask array, and the NumPy array that it stands for."""


@pytest.fixture(autouse=True, params=[1, 3], ids="ranks={}".format)
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    with dgpu.enable(local_ranks=request.param, **ALWAYS):
        yield request.param


def optimized(z: da.Array) -> Any:
    """Return the graph that Dask computes."""
    return dask.config.get("array_optimize")(z.dask, z.__dask_keys__())


chunks = st.lists(st.integers(1, N - 1), unique=True, max_size=3).map(
    lambda cuts: tuple(np.diff([0, *sorted(cuts), N]).tolist())
)
grids = st.tuples(chunks, chunks)


def given_array(grid: Any) -> Expression:
    return da.from_array(A, chunks=grid), A


def random_array(grid: Any) -> Expression:
    x = da.random.default_rng(5).random((N, N), chunks=grid)
    return x, x.compute(scheduler="sync", optimize_graph=False)


def waves(grid: Any) -> Expression:
    k = da.arange(N, chunks=(grid[0],), dtype=float)
    wanted = np.arange(float(N))
    return k[:, None] + da.ones((N, N), chunks=grid), wanted[:, None] + np.ones((N, N))


SOURCES: list[Callable[[Any], Expression]] = [given_array, random_array, waves]


def both(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(grid: Any, *expressions: Expression) -> Expression:
        arrays, wanted = zip(*expressions, strict=True)
        return function(*arrays), function(*wanted)

    return apply


def real_of_fft(x: Any) -> Any:
    return np.fft.fft2(x).real / N


def there_and_back(x: Any) -> Any:
    return np.fft.ifft2(np.fft.fft2(x) * 0.5).real


def joined(x: Any, y: Any) -> Any:
    return np.concatenate([x[: N // 2], y[N // 2 :]])


def stacked(x: Any, y: Any) -> Any:
    return np.stack([x, y]).mean(axis=0)


UNARY = [
    both(lambda x: np.sin(x) + 1),
    both(lambda x: x.T),
    both(lambda x: x - x.mean(axis=0)),
    both(lambda x: x / (1 + abs(x).max())),
    both(lambda x: x[::-1, ::2].repeat(2, axis=1)),
    both(real_of_fft),
    both(there_and_back),
    lambda grid, one: (one[0].rechunk(grid), one[1]),
    lambda grid, one: (one[0].map_blocks(np.cos), np.cos(one[1])),
    both(lambda x: x + x.sum(axis=1)),
    lambda grid, one: (da.topk(one[0], N, axis=0), np.sort(one[1], axis=0)[::-1]),
]
BINARY = [
    both(lambda x, y: x + y),
    both(lambda x, y: x * y - 1),
    both(lambda x, y: x @ y / N),
    both(joined),
    both(stacked),
    both(lambda x, y: np.where(x > y, x, y)),
]


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    """Grow a graph whose arrays are all used at the end."""
    pool = [draw(st.sampled_from(SOURCES))(draw(grids)) for _ in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(1, 5))):
        one = draw(st.sampled_from(pool))
        if draw(st.booleans()):
            pool.append(draw(st.sampled_from(UNARY))(draw(grids), one))
        else:
            other = draw(st.sampled_from(pool))
            pool.append(draw(st.sampled_from(BINARY))(draw(grids), one, other))
    x, wanted = pool[-1]
    return x + sum(each[0].sum() for each in pool), wanted + sum(each[1].sum() for each in pool)


@pytest.mark.filterwarnings("ignore::dask.array.core.PerformanceWarning")
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_graphs(ranks: int, data: st.DataObject) -> None:
    x, wanted = data.draw(expressions())
    tolerance = {"rtol": 1e-9, "atol": 1e-9 * max(1.0, float(abs(wanted).max()))}
    np.testing.assert_allclose(x.compute(scheduler="sync"), wanted, **tolerance)
    with dgpu.enable(local_ranks=ranks, regions=False, **ALWAYS):
        np.testing.assert_allclose(x.compute(scheduler="sync"), wanted, **tolerance)
    with dask.config.set(array_optimize=None):
        np.testing.assert_allclose(x.compute(scheduler="sync"), wanted, **tolerance)


def filtered(x: Any, k: Any) -> Any:
    return np.fft.ifft2(np.fft.fft2(x) * k).real


def test_from_random_numbers_to_a_scalar_is_one_task_and_the_gang(programs: list[Any]) -> None:
    x, wanted = random_array(((4, 4, 4), (N,)))
    k = da.exp(-(da.arange(N, chunks=4)[:, None] ** 2) - da.arange(N, chunks=N)[None] ** 2)
    numbers = np.arange(N)
    error = abs(filtered(x, k) - x).max()
    assert len(optimized(error)) == 2
    expected = np.exp(-(numbers[:, None] ** 2.0) - numbers[None] ** 2.0)
    close = abs(filtered(wanted, expected) - wanted).max()
    np.testing.assert_allclose(error.compute(scheduler="sync"), close, rtol=1e-12)
    assert len(programs) == 1


def test_ten_collectives_are_one_gang(programs: list[Any]) -> None:
    x = da.from_array(A, chunks=(3, 4))
    y, wanted = x, A
    for _ in range(10):
        y = (y @ x) / 2 + 1
        wanted = wanted @ A / 2 + 1
    tasks = optimized(y)
    blocks = x.npartitions + y.npartitions
    assert len(tasks) <= x.npartitions + blocks + 2 * 3 + 2  # x's own tasks are in it too
    np.testing.assert_allclose(y.compute(scheduler="sync"), wanted, rtol=1e-12)
    assert len(programs) == 1


def test_several_results_share_a_region(programs: list[Any]) -> None:
    x = da.from_array(A, chunks=(3, N))
    y = np.fft.fft2(x)
    results = dask.compute(y, abs(y).sum(), y[:3, :3] * 2, (y.T @ y)[0], scheduler="sync")
    wanted = np.fft.fft2(A)
    expected = wanted, abs(wanted).sum(), wanted[:3, :3] * 2, (wanted.T @ wanted)[0]
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
    assert len(programs) == 1


def test_a_product_that_reads_one_result_twice(programs: list[Any]) -> None:
    x = da.from_array(A, chunks=(3, N))
    f = da.fft.fft2(x)
    np.testing.assert_allclose((f @ f).compute(scheduler="sync"), np.fft.fft2(A) @ np.fft.fft2(A))
    assert len(programs) == 1


def test_several_values_of_a_reduction(programs: list[Any]) -> None:
    """Dask notes one."""
    largest = da.topk(da.from_array(A, chunks=(3, 4)), 5, axis=0)
    wanted = np.sort(A, axis=0)[:-6:-1]
    for z, value in (
        (largest @ largest.T, wanted @ wanted.T),
        (da.fft.fft(largest + 0, axis=1), np.fft.fft(wanted)),
        (dgpu.stencil(largest, [[1.0, 0, 0]], boundary="periodic"), np.roll(wanted, 1, axis=1)),
    ):
        np.testing.assert_allclose(z.compute(scheduler="sync"), value, rtol=1e-10, atol=1e-12)
    assert len(programs) == 3


def test_functions_of_users_are_called_once_for_each_block(programs: list[Any]) -> None:
    """They may give something else at each call."""
    calls: list[Any] = []

    def drawn(block: Any) -> Any:
        if block.size:  # Dask itself tries it on an empty one
            calls.append(len(calls))
        return block + len(calls)

    x = da.from_array(A, chunks=(4, 4))
    line = da.zeros(N, chunks=4).map_blocks(drawn, dtype=float)
    rows, wanted = dask.compute((x @ x) * 0 + line, line, scheduler="sync")
    np.testing.assert_array_equal(rows, np.broadcast_to(wanted, rows.shape))
    assert len(calls) == 3
    assert len(programs) == 1


def test_a_running_sum_joins_a_region(programs: list[Any]) -> None:
    x = da.from_array(A, chunks=(3, N))
    z = (np.fft.fft2(x).real.cumsum(axis=0) @ x).sum()
    np.testing.assert_allclose(
        z.compute(scheduler="sync"), (np.fft.fft2(A).real.cumsum(axis=0) @ A).sum(), rtol=1e-10
    )
    assert len(programs) == 1


def test_two_layers_with_the_same_tasks_end_a_region(programs: list[Any]) -> None:
    """The factors that ``solve`` reads are in two layers, each of which has both."""
    x = da.from_array(A @ A.T + N * np.eye(N), chunks=3)
    y = x @ x.T
    z = da.linalg.solve(y, x, assume_a="pos") @ x
    wanted = np.linalg.solve(y.compute(scheduler="sync"), x.compute(scheduler="sync"))
    programs.clear()
    found = z.compute(scheduler="sync")
    np.testing.assert_allclose(found, wanted @ x.compute(scheduler="sync"), atol=1e-9)
    assert len(programs) == 2


def test_a_plain_elementwise_graph_is_left_alone() -> None:
    x = da.from_array(A, chunks=3) * 2 + 1
    assert dgpu.explain(x).regions == ()
    assert not any("dgpu" in str(key) for key in dict(optimized(x)))


def test_annotations_keep_members_apart(programs: list[Any]) -> None:
    x = da.from_array(A, chunks=(3, N))
    with dask.annotate(priority=3):
        y = np.fft.fft2(x)
    z = y @ y
    annotations = [layer.annotations for layer in optimized(z).layers.values()]
    assert [each for each in annotations if each] == [{"priority": 3}]
    np.testing.assert_allclose(z.compute(scheduler="sync"), np.fft.fft2(A) @ np.fft.fft2(A))
    assert len(programs) == 2


def test_a_region_that_does_not_fit_is_split(ranks: int) -> None:
    x = da.from_array(A, chunks=(3, N))
    a = x @ x
    b = a @ x
    c = b @ x
    z = (a + b) @ (b + c) + c @ a
    whole = dgpu.explain(z)
    ((region, prediction),) = whole.regions
    limit = int(prediction.peak_bytes / 0.8) - 8
    with dgpu.enable(local_ranks=ranks, memory_limit=limit, **ALWAYS):
        parts = dgpu.explain(z)
        assert len(parts.regions) > 1
        assert all(each.peak_bytes <= 0.8 * limit for _, each in parts.regions)
        assert len(parts.rewritten) == len(region.pieces)
        np.testing.assert_allclose(
            z.compute(scheduler="sync"), (A2 + A3) @ (A3 + A4) + A4 @ A2, rtol=1e-12
        )


def test_plain_names_are_those_of_dask() -> None:
    """Requested blocks have Dask's keys."""
    x = da.from_array(A, chunks=(3, N))
    y = np.fft.fft2(x)
    z = abs(y)
    ((region, _),) = dgpu.explain(z, y).regions
    assert {name for name, _ in region.wanted} == {y.name, z.name}
    (_, found) = dask.optimize(z, y)
    assert set(dask.core.flatten(y.__dask_keys__())) <= set(found.dask.to_dict())


@pytest.mark.parametrize("fused", [False, True])
def test_errors_name_the_operation(fused: bool) -> None:
    def broken(block: Any) -> Any:
        raise ArithmeticError("no")

    x = da.from_array(A, chunks=(3, N))
    z = np.fft.fft2(x).map_blocks(broken, dtype=complex)
    with pytest.raises(ArithmeticError, match="no") as raised:
        (abs(z) + 1 if fused else z).compute(scheduler="sync")
    notes = " ".join(raised.value.__notes__)
    assert "in broken" in notes
    assert "on rank " in notes


def test_blocks_that_are_not_what_a_function_was_said_to_make() -> None:
    x = da.from_array(A, chunks=(3, N))
    cropped = np.fft.fft2(x).map_blocks(lambda block: block[1:], dtype=complex, name="cropped-01")
    with pytest.raises(ValueError, match="a block of cropped-01 is declared with shape"):
        np.fft.fft2(cropped).compute(scheduler="sync")
    persisted = cropped.persist(scheduler="sync")
    with pytest.raises(ValueError, match="a block of cropped-01 is declared with shape"):
        np.fft.fft2(persisted).compute(scheduler="sync")


def test_an_empty_chunk_that_dask_broadcasts() -> None:
    """Dask gives the block of chunks (1, 0) twice; results while enabled are NumPy's."""
    x = da.from_array(A[:, :1], chunks=(3, (1, 0)))
    y = x.rechunk((4, (1, 0))) + 1
    np.testing.assert_array_equal(y.compute(scheduler="sync"), A[:, :1] + 1)


def test_explained() -> None:
    x = da.from_array(A, chunks=(3, N))
    explanation = dgpu.explain(np.fft.ifft2(np.fft.fft2(x) * 2).real)
    (region,) = explanation.to_dict()["regions"]
    assert [name.partition("-")[0] for name in region["steps"]] == ["fft2", "mul", "ifft2", "real"]
    names = [each.operation for each in explanation.operations if each.by == "gang"]
    assert names == ["fft2", "x * 2", "ifft2", "real"]
    assert region["tasks"] == 4 + 4 + 1


def test_measured_needs_a_client() -> None:
    with pytest.raises(ValueError, match="expected measured to be False without a client"):
        dgpu.explain(da.ones((N, N), chunks=3) @ da.ones((N, N), chunks=3), measured=True)
