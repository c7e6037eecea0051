"""The same programs with arrays of Dask and of dask_array: results, declarations, gangs."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import dask
import dask.array as da
import dask_array as xa
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.expressions.programs import PROGRAMS, cases

MATRIX = np.random.default_rng(7).random((24, 24))

pytestmark = pytest.mark.filterwarnings("ignore::dask.array.core.PerformanceWarning")


def array(package: Any) -> Any:
    return package.from_array(MATRIX, chunks=(7, 9))


def close(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", cases())
def test_results_are_those_of_dask_array(name: str) -> None:
    program = PROGRAMS[name]
    wanted = program(xa, array(xa))
    plain = wanted.compute(scheduler="sync")
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        y = program(xa, array(xa))
        assert isinstance(y, xa.Array)
        assert y.dtype == wanted.dtype
        np.testing.assert_array_equal(y.shape, wanted.shape)
        close(y.compute(scheduler="sync"), plain)
        kept = y.persist(scheduler="sync")
        assert (type(kept), kept.name) == (xa.Array, y.name)
        close(kept.compute(scheduler="sync"), plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "optimize"])
def test_gangs_are_those_of_dask(name: str) -> None:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        ours, dasks = (
            dgpu.explain(PROGRAMS[name](package, array(package))).rewritten for package in (xa, da)
        )
    assert bool(ours) == bool(dasks)  # chunks that are aligned otherwise are moved otherwise


@pytest.mark.parametrize("name", ["fft", "irfft2", "rfftn", "hfft"])
def test_transforms_of_axes_in_several_chunks(name: str) -> None:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        y = getattr(xa.fft, name)(array(xa))
        assert isinstance(y, xa.Array)
        assert dgpu.explain(y).rewritten
        close(y.compute(), getattr(np.fft, name)(MATRIX))
        close(np.fft.fft(array(xa), axis=0).compute(), np.fft.fft(MATRIX, axis=0))


def test_several_arrays_are_one_computation() -> None:
    x = array(xa)
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        y = x @ x.T
        found = dask.compute(y.sum(), {"mean": [y.mean(axis=0)]}, scheduler="sync")
        persisted = dask.persist(y, x + 1, scheduler="sync")
    product = MATRIX @ MATRIX.T
    close(found[0], product.sum())
    close(found[1]["mean"][0], product.mean(axis=0))
    assert all(isinstance(each, xa.Array) for each in persisted)
    close(persisted[0].compute(), product)


def test_functions_of_both_packages_are_computed_together() -> None:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        found = dask.compute(array(xa) @ MATRIX, array(da) @ MATRIX, scheduler="sync")
    close(found[0], MATRIX @ MATRIX)
    np.testing.assert_array_equal(*found)


def test_sums_by_the_setting() -> None:
    large = np.array([1e16, 1.0, -1e16, 1.0])
    x = xa.from_array(large, chunks=1)
    with dgpu.enable(sum_method="reproducible"):
        assert x.sum().compute() == 2
        assert x.mean().compute() == 0.5
    with dgpu.enable(sum_method="dask"):
        assert x.sum().compute() != 2


WITH_SETTING = {
    "matmul": lambda x, y: x @ y,
    "dot": xa.dot,
    "tensordot": lambda x, y: xa.tensordot(x, y, axes=1),
}


@pytest.mark.parametrize("inner", [7, 24])
@pytest.mark.parametrize("name", WITH_SETTING)
def test_products_by_the_setting(name: str, inner: int) -> None:
    x = xa.from_array(MATRIX, chunks=(7, inner))
    with dgpu.enable(local_ranks=2, when="always", matmul_wire_dtype="float16"):
        product = WITH_SETTING[name](x, x.rechunk((inner, 7)))
        assert "float16" in str(dgpu.explain(product))
        found = product.compute()
    np.testing.assert_allclose(found, MATRIX @ MATRIX, rtol=1e-2)


CUBE = MATRIX.reshape(2, 12, 24)
INTEGERS = np.arange(48).reshape(2, 24)
OPERANDS: dict[str, tuple[Any, Any, Any]] = {
    "vectors": (MATRIX[0], MATRIX[1], None),
    "row": (MATRIX[0], MATRIX, None),
    "column": (MATRIX, MATRIX[0], None),
    "row, stack": (MATRIX[0, :12], CUBE, None),
    "stacks": (CUBE, np.stack([MATRIX, MATRIX]), None),
    "stack, matrix": (CUBE, MATRIX, None),
    "one of a stack": (CUBE, MATRIX[None], None),
    "other chunks of stacks": (np.stack([MATRIX] * 5), np.stack([MATRIX] * 5)[:, :, :1], None),
    "integers": (INTEGERS, INTEGERS.T.astype("i4"), None),
    "few bits": (INTEGERS.astype("i2"), INTEGERS.T.astype("i1"), None),
    "precisions": (MATRIX.astype("f4"), MATRIX * 1j, None),
    "empty": (MATRIX[:, :0], MATRIX[:0], None),
    "no number": (MATRIX, np.float64(2), None),
    "other sizes": (MATRIX, MATRIX[:5], None),
    "tensordot": (CUBE, CUBE, ([1, -1], [1, 2])),
    "tensordot, axes": (CUBE, np.moveaxis(CUBE, 0, -1), 2),
    "tensordot, one axis": (CUBE, MATRIX, (np.int64(2), 0)),
    "tensordot, outer": (MATRIX[0], MATRIX[1], 0),
    "tensordot, no axis": (MATRIX, MATRIX, ([2], [0])),
    "tensordot, other sizes": (CUBE, MATRIX, ([0], [0])),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_products_are_declared_as_by_dask_array(name: str) -> None:
    left, right, axes = OPERANDS[name]

    def declared() -> Any:
        operands = [xa.from_array(each, chunks=chunks) for each, chunks in ((left, 7), (right, 5))]
        try:
            found = xa.matmul(*operands) if axes is None else xa.tensordot(*operands, axes)
            return found, (found.chunks, found.dtype, type(found._meta), found._meta.shape)
        except Exception as error:
            return None, (type(error), str(error))

    own, wanted = declared()
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        ours, found = declared()
        assert found == wanted
        if own is not None:
            close(ours.compute(scheduler="sync"), own.compute(scheduler="sync"))
    if own is not None:
        close(ours.compute(scheduler="sync"), own.compute(scheduler="sync"))
        close((ours + 1).sum().compute(scheduler="sync"), (own + 1).sum().compute())


def _matmul(left: Any, right: Any) -> Any:
    return left[:, :, None] + right[None]


@pytest.mark.parametrize("function", [_matmul, partial(_matmul)])
def test_only_dasks_own_function_is_a_product(function: Any) -> None:
    left, right = MATRIX[:, :1], MATRIX[:1]
    x, y = (xa.from_array(each, chunks=8) for each in (left, right))
    terms = xa.blockwise(function, (0, 1, 2), x, (0, 1), y, (1, 2), dtype=float)
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        found = xa.squeeze(terms, axis=1) + x @ y
        close(found.compute(scheduler="sync"), left + right + left @ right)
        assert dgpu.explain(found).rewritten


def test_creation_by_the_backend() -> None:
    """Without GPUs the backend creates NumPy's blocks, by Dask's functions."""
    wanted = {name: getattr(np, name) for name in ("ones", "zeros", "arange", "eye")}
    with dask.config.set({"array.backend": "dgpu"}), dgpu.enable(local_ranks=2):
        for name, function in wanted.items():
            y = getattr(xa, name)(6, chunks=4)
            assert isinstance(y, xa.Array)
            close((y + 0).compute(), function(6) + 0)
        close(xa.full((3, 4), 2.5, chunks=2).compute(), np.full((3, 4), 2.5))
        close(xa.linspace(0, 1, 7, chunks=3).compute(), np.linspace(0, 1, 7))
        assert xa.random.default_rng(1).random(9, chunks=4).compute().shape == (9,)


@pytest.mark.gpu
def test_blocks_are_created_on_the_device() -> None:
    import cupy

    with dask.config.set({"array.backend": "dgpu"}), dgpu.enable(local_ranks=2, when="always"):
        x = xa.random.default_rng(1).random((64, 48), chunks=16)
        for y in (xa.ones((48, 64), chunks=16), xa.eye(48, chunks=16), xa.full((48, 3), 2.0)):
            assert isinstance(y._meta, cupy.ndarray)
            found = (x @ y).compute()
            assert isinstance(found, cupy.ndarray)
            wanted = x.compute().get() @ y.compute().get()
            np.testing.assert_allclose(found.get(), wanted, rtol=1e-12)


def test_random_numbers_stay_the_same() -> None:
    x = xa.random.default_rng(3).random((20, 20), chunks=6)
    plain = x.compute()
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        np.testing.assert_array_equal(x.compute(), plain)
        close((x @ x).compute(), plain @ plain)


class Stored:
    """Counts what is read of it."""

    shape, dtype, ndim = MATRIX.shape, MATRIX.dtype, 2
    read: ClassVar[list[tuple[slice, slice]]] = []

    def __getitem__(self, index: tuple[slice, slice]) -> Any:
        self.read.append(index)
        return MATRIX[index]


def test_slices_are_read_where_they_are() -> None:
    """As dask_array has it."""
    Stored.read.clear()
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        x = xa.from_array(Stored(), chunks=8, asarray=True, meta=np.empty((0, 0)))
        close((x[:4] @ x[:, :5]).compute(scheduler="sync"), MATRIX[:4] @ MATRIX[:, :5])
    sizes = [
        (rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in Stored.read
    ]
    assert sum(sizes) == 4 * 24 + 24 * 5


def test_disabled_it_is_dask_arrays_own() -> None:
    x = array(xa)
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        y = dgpu.matmul(x, x)
        z = xa.fft.fft(x, axis=0)
    for lazy, wanted in ((y, MATRIX @ MATRIX), (z, np.fft.fft(MATRIX, axis=0))):
        close((lazy + 1).compute(), wanted + 1)
    with pytest.raises(ValueError, match="single chunk"):
        xa.fft.fft(x, axis=0)
    assert dask.base.collections_to_expr.__module__ == "dask.base"
