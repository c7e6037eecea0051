"""Blocks that are not what Dask declares them to be: what plain Dask computes, a gang returns."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.errors import UndeclaredError, UndeclaredShapeError, UndeclaredTypeError
from dask_dgpu.operations.operation import conforming

A = np.random.default_rng(9).random((12, 12))
LEFT = "dask_dgpu left a gang to Dask: a block of .* is declared with shape"
BOUNDARIES = ["none", "reflect", "periodic", "nearest"]


def doubled(block: Any) -> Any:
    return block * 2


def keeps_ghosts(x: da.Array, boundary: Any, times: int = 2) -> da.Array:
    """Return what Dask declares as large as ``x``, for a function is to trim by itself."""
    for _ in range(times):
        x = x.map_overlap(doubled, depth=1, boundary=boundary, trim=False)
    return x


def cropped(x: da.Array) -> da.Array:
    return x.map_blocks(lambda block: block[::2])


CASES: dict[str, Callable[[da.Array], da.Array]] = {
    **{name: lambda x, name=name: keeps_ghosts(x, name) for name in BOUNDARIES},
    "thrice": lambda x: keeps_ghosts(x, "reflect", 3) + 1,
    "trimmed": lambda x: keeps_ghosts(x, "none", 1).map_overlap(doubled, depth=1, boundary="none"),
    "product": lambda x: cropped(x) @ x,
    "products": lambda x: (cropped(x) @ x) @ x,
    "sum": lambda x: dgpu.sum(cropped(x) @ x, axis=1),
}


@pytest.fixture(params=[1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[None]:
    with dgpu.enable(local_ranks=request.param, when="always"):
        yield


def plain(z: da.Array) -> Any:
    with dask.config.set(array_optimize=da.optimize):
        return z.compute(scheduler="sync")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("enabled")
def test_as_in_plain_dask(name: str) -> None:
    z = CASES[name](da.from_array(A, chunks=4))
    wanted = plain(z)
    assert wanted.shape != z.shape
    with pytest.warns(UserWarning, match=LEFT):
        found = z.compute(scheduler="sync")
    np.testing.assert_allclose(found, wanted, rtol=1e-13)


@pytest.mark.usefixtures("enabled")
def test_inputs_that_are_there_already() -> None:
    y = keeps_ghosts(da.from_array(A, chunks=4), "reflect", 1).persist(scheduler="sync")
    z = keeps_ghosts(y, "reflect", 1)
    with pytest.warns(UserWarning, match=LEFT):
        found = z.compute(scheduler="sync")
    np.testing.assert_array_equal(found, plain(z))


@pytest.mark.usefixtures("enabled")
def test_what_dask_cannot_compute_either() -> None:
    z = keeps_ghosts(da.from_array(A, chunks=4), 0)
    with pytest.raises(ValueError, match="could not broadcast"):
        plain(z)
    with (
        pytest.warns(UserWarning, match=LEFT),
        pytest.raises(ValueError, match="could not broadcast"),
    ):
        z.compute(scheduler="sync")


def test_an_error_on_request() -> None:
    z = keeps_ghosts(da.from_array(A, chunks=4), "none")
    with (
        dgpu.enable(local_ranks=2, when="always", on_error="raise"),
        pytest.raises(UndeclaredShapeError, match=r"is declared with shape \(4, 4\) but has"),
    ):
        z.compute(scheduler="sync")


def test_errors_are_those_of_values_and_types() -> None:
    error = pickle.loads(pickle.dumps(UndeclaredShapeError("a block")))
    assert isinstance(error, UndeclaredError)
    assert isinstance(error, ValueError)


@pytest.mark.slow
@pytest.mark.parametrize("optimized", [False, True])
def test_another_process(optimized: bool) -> None:
    z = keeps_ghosts(da.from_array(A, chunks=4), "reflect")
    wanted = plain(z)
    with dgpu.enable(local_ranks=2, when="always"):
        z = dask.optimize(z)[0] if optimized else z
        np.testing.assert_array_equal(z.compute(scheduler="processes"), wanted)


class OnItsDevice:
    """An array that NumPy may not copy unasked, as CuPy's."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Refuse."""
        raise TypeError("implicit conversion")


def test_a_block_on_a_device_that_is_declared_as_numpys() -> None:
    with pytest.raises(UndeclaredTypeError, match=r"declared as numpy.ndarray but is tests.OnIts"):
        conforming(OnItsDevice(), "x", "float64", (3,), "numpy.ndarray")
