"""What a program does on a lane comes after what it reads, on whichever lane that was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.support.lanes import LaneDevice, UnorderedError, checking, lend

Array = Any


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LaneDevice]]:
    """The devices of the programs that are run; at the end nothing was freed too early."""
    with checking(monkeypatch) as devices:
        yield devices


A = np.random.default_rng(7).random((24, 20))


def test_what_is_not_ordered_is_found() -> None:
    device = LaneDevice()
    with pytest.raises(UnorderedError, match="no lane"):
        device.to_device(A)
    with device.computing():
        array = device.to_device(A)
        device.reads(array)
        ready = device.mark()
    with device.transferring():
        with pytest.raises(UnorderedError, match="of the compute lane"):
            device.reads(array[1:])
        device.after(ready)
        device.reads(array[1:])


def test_what_is_let_go_of_too_early_is_found() -> None:
    device = LaneDevice()
    with device.transferring():
        first, second = device.empty(3, "float64"), device.empty(3, "float64")
    with device.computing():
        third = device.empty(3, "float64")
    del first
    device.join()
    del second
    assert device.early == ["memory of the transfer lane is freed ahead of the compute lane"]
    with device.transferring():
        device.reads(third)
    del third
    assert device.early[1:] == ["memory of the compute lane is freed ahead of the transfer lane"]


def test_blocks_of_others_are_borrowed_and_results_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lend(monkeypatch)
    x = da.from_array(A.copy(), chunks=(7, 6))
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        value = (x[::2] @ x.T + 1).compute(scheduler="threads")
    np.testing.assert_allclose(value, A[::2] @ A.T + 1)


def neighbours(block: Array) -> Array:
    return np.roll(block, 1, 0) + np.roll(block, -1, 1)


Z = np.empty((0, 0), complex)
CASES: dict[str, Callable[[da.Array], da.Array]] = {
    "product": lambda x: (x + 1) @ x.T + x.sum(),
    "product of what is read again": lambda x: (x + 1) @ x.T @ (x + 1) - x,
    "product in layers": lambda x: x.rechunk((20, 2)) @ x.T.rechunk((2, 20)),
    "spectrum": lambda x: da.fft.ifft2(da.fft.fft2(x) * 2).real,
    "spectrum and reductions": lambda x: abs(da.fft.fft2(x)).var() + x,
    "real spectrum": lambda x: da.fft.irfft2(da.fft.rfft2(x), s=x.shape),
    "rechunk": lambda x: x.rechunk((5, 20)) + x.rechunk((24, 3)),
    "transpose": lambda x: (x.T.rechunk((20, 3)) + 1).T.rechunk((2, 20)),
    "broadcasts": lambda x: (x - x.mean(0)) / x.std() @ x.T,
    "overlap": lambda x: x.map_overlap(neighbours, depth=1, boundary="reflect", dtype=float) @ x.T,
    "stencil": lambda x: dgpu.stencil(x, boundary="periodic", iterations=5) @ x.T,
    "constant rims": lambda x: dgpu.stencil(x, boundary=1.0, iterations=5) + x.sum(0),
    "another dtype than declared": lambda x: (
        x.rechunk((24, 3)).map_blocks(lambda block: block[:], dtype=complex, meta=Z) @ x.T
    ),
    "sums": lambda x: dgpu.sum(x @ x.T, 0) + dgpu.sum(x @ x.T, 1, method="reproducible") + x[0, 0],
    "poisson": lambda x: dgpu.poisson(x, boundary="zero") @ x.T,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "ranks",
    [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)],
)
def test_what_is_read_is_waited_for(case: str, ranks: int, checked: list[LaneDevice]) -> None:
    wanted = CASES[case](da.from_array(A, chunks=A.shape)).compute(scheduler="sync")
    with dgpu.enable(local_ranks=ranks, when="always", on_error="raise"):
        value = CASES[case](da.from_array(A, chunks=(7, 6))).compute(scheduler="threads")
    np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-9)
    assert len(checked) >= ranks
    assert all(device.clocks["transfer"] == device.clocks["compute"] for device in checked)


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_wide_sums(method: Any, checked: list[LaneDevice]) -> None:
    wide = np.random.default_rng(3).random((12, 70_000))
    x = da.from_array(wide, chunks=(3, 70_000))
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        value = dgpu.sum(x, 0, method=method).compute(scheduler="threads")
    np.testing.assert_allclose(value, wide.sum(0), rtol=1e-12)
    assert len(checked) == 3


def test_jacobi(checked: list[LaneDevice]) -> None:
    rhs = da.from_array(A - A.mean(), chunks=(7, 20))
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        u, info = dgpu.jacobi(da.zeros_like(rhs), rhs, max_iterations=50, tol=1e-12)
        assert info.iterations == 50
        assert np.isfinite(u.compute(scheduler="threads")).all()
    assert checked
