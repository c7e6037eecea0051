"""Programs that run out of memory: planned again with less, in one process, and their error."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.errors import DgpuError, OutOfMemoryError
from dask_dgpu.kernels import gemm
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.again import Tried, peak_bytes, with_less
from dask_dgpu.runtime.plans import costs_of, plans
from tests.operations.test_room import OPERATORS, RANKS, program_of, zeros
from tests.support.programs import even, scattered

MOST_ROUNDS = 200
LAPLACE = np.array([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])
A, B = np.random.default_rng(41).random((2, 24, 24))


LESS: dict[str, Callable[[], da.Array]] = OPERATORS | {
    "matmul": lambda: zeros((20000, 20000), 5000) @ zeros((20000, 20000), 5000),
    "matmul of an outer product": lambda: zeros((30000, 100), 7500) @ zeros((100, 30000), 7500),
    "einsum": lambda: da.einsum(
        "abc,acd->abd",
        zeros((6, 3000, 3000), (2, 1000, 1000)),
        zeros((6, 3000, 2000), (2, 1000, 1000)),
    ),
    "fft of blocks in memory": lambda: dgpu.fft.fft2(
        zeros((20000, 20000), (5000, 20000), "complex64")
    ),
    "stencil": lambda: dgpu.stencil(zeros((20000, 20000), 5000), LAPLACE, iterations=30),
}
SAME: dict[str, Callable[[], da.Array]] = {
    "fft of squares in memory": lambda: dgpu.fft.fft2(zeros((20000, 20000), 5000, "complex64")),
    "matmul in place": lambda: zeros((200000, 20), 50000).T @ zeros((200000, 20), 50000),
    "rechunk of little": lambda: zeros((200, 200), (200, 10)).rechunk((10, 200)),
    "overlap": lambda: zeros((2000, 2000), 500).map_overlap(abs, depth=3, boundary="none"),
    "sum": lambda: dgpu.sum(zeros((2000, 2000), 500), axis=0, method="compensated"),
}


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=RANKS, when="always", on_error="raise"):
        yield


@pytest.mark.parametrize("name", [*LESS, *SAME])
def test_the_second_plan_needs_less_if_it_can(name: str) -> None:
    program = program_of((LESS | SAME)[name]())
    owners = even(program, RANKS)
    first = plans(program, owners, RANKS)
    second, tried = with_less(program, "matmul", owners, RANKS)
    peaks = (peak_bytes(program, each, RANKS) for each in (first, second))
    assert tried == ("matmul", *peaks)
    assert 0 < tried.second_bytes <= tried.first_bytes
    assert (tried.second_bytes < tried.first_bytes) == (name in LESS)
    assert (second != first) == (name in LESS)
    assert plans(program, owners, RANKS) is first  # later calls are planned as before


@pytest.mark.parametrize("name", [*LESS, *SAME])
@pytest.mark.parametrize("size", [1, 3, RANKS])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_it_never_needs_more(name: str, size: int, seed: int) -> None:
    program = program_of((LESS | SAME)[name]())
    _, tried = with_less(program, "matmul", scattered(program, size, seed), size)
    assert tried.second_bytes <= tried.first_bytes


@pytest.mark.parametrize("name", [*LESS, *SAME])
@pytest.mark.parametrize("room", [0.0, 1.0, 1e9])
def test_any_room_has_a_plan_of_few_steps(name: str, room: float) -> None:
    program = program_of((LESS | SAME)[name]())
    fixed = plans(replace(program, room=room), even(program, RANKS), RANKS)
    for cost in costs_of(program, fixed).values():
        details = dict(cost.details)
        assert max(details.get(key, 0) for key in ("steps", "rounds")) <= MOST_ROUNDS
        assert cost.peak_bytes > 0


def test_programs_of_several_collectives() -> None:
    """The largest collective needs less; others, which fit beside it, are planned as before."""
    x, y = zeros((20000, 20000), 5000), zeros((2000, 2000), 500)
    program = program_of((x @ x).sum(axis=0)[:2000] + y @ y)
    owners = even(program, RANKS)
    (second, _), first = with_less(program, "a", owners, RANKS), plans(program, owners, RANKS)
    peaks = [
        [each.peak_bytes for each in costs_of(program, fixed).values() if each.moved_bytes]
        for fixed in (first, second)
    ]
    products = [(a, b) for a, b in zip(*peaks, strict=True) if a > 1 << 20]
    assert len(products) == 2
    assert max(products)[0] > 20 * min(products)[0]
    assert max(products)[1] < max(products)[0]
    assert min(products)[1] == min(products)[0]


def test_its_error_is_one_sentence_and_survives_pickling() -> None:
    try:
        raise MemoryError("no\n  room")
    except MemoryError as error:
        error.add_note("a note")
        found = pickle.loads(pickle.dumps(Tried("matmul", 3 << 30, 1 << 30).error(error)))
    assert str(found) == (
        "matmul ran out of memory twice: with 3.00 GiB planned on a rank, and with 1.00 GiB; "
        "MemoryError: no room; set dgpu.memory.cap to less than 1.00 GiB"
    )
    assert (found.first_bytes, found.second_bytes) == (3 << 30, 1 << 30)
    same = Tried("sum", 3 << 30, 3 << 30).error(MemoryError("no room"))
    assert str(same) == (
        "sum ran out of memory twice: with 3.00 GiB planned on a rank, and with the same, as no "
        "plan needs less; MemoryError: no room; set dgpu.memory.cap to less than 3.00 GiB"
    )
    assert isinstance(found, MemoryError)
    assert isinstance(found, DgpuError)
    assert found.__notes__ == ["a note"]


class CUBLASError(RuntimeError):
    """As CuPy's."""


ERRORS = [MemoryError("no room"), CUBLASError("CUBLAS_STATUS_ALLOC_FAILED")]


@pytest.fixture(params=[ERRORS[0], pytest.param(ERRORS[1], marks=pytest.mark.slow)], ids=repr)
def failing(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], None]:
    """Return a function that lets this many runs on local ranks run out of memory."""
    runs: list[int] = []
    run_local = tasks.run_local

    def counted(*args: Any, **more: Any) -> Any:
        runs.append(0)
        return run_local(*args, **more)

    def fail(count: int) -> None:
        multiply = gemm.accumulate

        def accumulate(out: Any, a: Any, b: Any) -> None:
            if len(runs) <= count:
                raise type(request.param)(*request.param.args)
            multiply(out, a, b)

        monkeypatch.setattr(tasks, "run_local", counted)
        monkeypatch.setattr(gemm, "accumulate", accumulate)

    return fail


def product() -> da.Array:
    return da.from_array(A, 6) @ da.from_array(B, 6) + 1


def test_local_ranks_try_again(failing: Callable[[int], None]) -> None:
    failing(1)
    np.testing.assert_allclose(product().compute(scheduler="sync"), A @ B + 1)


def test_local_ranks_try_no_more_than_twice(failing: Callable[[int], None]) -> None:
    failing(2)
    twice = r"ran out of memory twice: with .*: (no room|CUBLAS_STATUS_ALLOC_FAILED); set"
    with pytest.raises(OutOfMemoryError, match=twice) as got:
        product().compute(scheduler="sync")
    assert 0 < got.value.second_bytes <= got.value.first_bytes
    assert any("on rank" in note for note in got.value.__notes__)
    np.testing.assert_allclose(product().compute(scheduler="sync"), A @ B + 1)


@pytest.mark.parametrize("count", [1, 2])
def test_a_profiler_of_local_ranks_sees_the_last_run(
    failing: Callable[[int], None], count: int
) -> None:
    failing(count)
    with dgpu.Profiler() as prof:
        if count == 1:
            product().compute(scheduler="sync")
        else:
            with pytest.raises(OutOfMemoryError):
                product().compute(scheduler="sync")
    assert prof.to_dict()["gangs"] == 2 - count


def test_a_transform_of_kept_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs most of a share less in the second run."""
    rank = import_module("dask_dgpu.algorithms.pencil_fft.rank")
    monkeypatch.setattr(import_module("dask_dgpu.algorithms.redistribute.plan"), "LEAST", 1 << 13)
    monkeypatch.setattr(rank, "LEAST", 1 << 13)
    slices = import_module("dask_dgpu.algorithms.pencil_fft.rank")
    monkeypatch.setattr(slices, "SLICE", 1 << 12)
    values = np.random.default_rng(42).random((192, 192)).astype("complex64")
    transform, ran = rank.transform, tasks.run_local
    runs: list[int] = []

    def counted(*args: Any, **more: Any) -> Any:
        runs.append(0)
        return ran(*args, **more)

    def failing(*args: Any, **more: Any) -> Any:
        if len(runs) <= most:
            raise MemoryError("no room for lines")
        return transform(*args, **more)

    monkeypatch.setattr(tasks, "run_local", counted)
    monkeypatch.setattr(rank, "transform", failing)
    most = 1
    found = da.fft.fft2(da.from_array(values, (48, 192))).compute(scheduler="sync")
    np.testing.assert_allclose(found, np.fft.fft2(values), rtol=1e-4, atol=1e-3)
    most = len(runs) + 2
    with pytest.raises(OutOfMemoryError, match="MemoryError: no room for lines") as got:
        da.fft.fft2(da.from_array(values, (48, 192))).compute(scheduler="sync")
    share = values.nbytes // RANKS
    assert got.value.first_bytes >= 3 * share
    assert got.value.second_bytes < 2.5 * share
