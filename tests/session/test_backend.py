"""The backend ``dgpu`` creates blocks of CuPy on GPUs, else of NumPy; equal calls, equal graphs."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import dask.array as da
import dask_array
import numpy as np
import pytest

import dask_dgpu as dgpu

CALLS = {
    "zeros": lambda: da.zeros((6, 4), chunks=2, dtype="float32"),
    "ones": lambda: da.ones(5, chunks=3),
    "full": lambda: da.full((2, 3), 7, chunks=2, dtype="int32"),
    "arange": lambda: da.arange(3, 11, chunks=4),
    "eye": lambda: da.eye(7, chunks=3, M=9, k=2, dtype="float32"),
    "eye, lower": lambda: da.eye(9, chunks=4, M=5, k=-6, dtype=bool),
    "linspace": lambda: da.linspace(-1, 2, 11, chunks=4),
    "linspace, open": lambda: da.linspace(0, 5, 7, endpoint=False, chunks=3, retstep=True)[0],
}

COMPOSED = {
    "tri": lambda: da.tri(7, 9, k=1, chunks=3),
    "indices": lambda: da.indices((5, 4), chunks=2),
    "meshgrid": lambda: da.meshgrid(da.arange(5, chunks=2), da.linspace(0, 1, 4, chunks=3))[1],
    "fromfunction": lambda: da.fromfunction(lambda i, j: i * 2 + j, chunks=2, shape=(5, 4)),
    "fftfreq": lambda: da.fft.fftfreq(9, chunks=4),
    "diag": lambda: da.diag(da.arange(6, chunks=4)),
}


@pytest.mark.parametrize("package", [da, dask_array])
def test_without_gpus_blocks_are_numpys(package: Any) -> None:
    with dask.config.set({"array.backend": "dgpu"}):
        for enabled in (False, True):
            if enabled:
                dgpu.enable()
            for name in ("ones", "zeros", "arange", "eye"):
                x = getattr(package, name)(6, chunks=4)
                assert isinstance(x._meta, np.ndarray)
                np.testing.assert_array_equal(x.compute(), getattr(np, name)(6))
            found = package.random.default_rng(1).random(9, chunks=4).compute()
            assert type(found) is np.ndarray
    dgpu.disable()


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_equal_calls_have_equal_graphs_and_cupy_blocks(name: str) -> None:
    import cupy

    create: Any = CALLS[name]
    with dgpu.enable(), dask.config.set({"array.backend": "dgpu"}):
        texts = set()
        for number in (1.5, 2.5, 3.5):
            cupy.full(64, number)  # what memory that is not initialized may hold
            x = create()
            texts.add(pickle.dumps(x.__dask_graph__()))
        value = x.compute()
    assert len(texts) == 1
    assert isinstance(value, cupy.ndarray)
    np.testing.assert_allclose(value.get(), create().compute(), rtol=1e-14, atol=1e-15)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*CALLS, *COMPOSED])
def test_each_block_is_of_cupy_and_has_dasks_values(name: str) -> None:
    import cupy

    create: Any = (CALLS | COMPOSED)[name]
    with dgpu.enable(), dask.config.set({"array.backend": "dgpu"}):
        x = create()
        blocks = dask.compute(*x.to_delayed().ravel())
    assert isinstance(x._meta, cupy.ndarray)
    assert {type(block) for block in blocks} == {cupy.ndarray}
    assert {block.dtype for block in blocks} == {x.dtype}
    plain = create()
    assert (x.chunks, x.dtype) == (plain.chunks, plain.dtype)
    values = [block.get() for block in blocks]
    wanted = dask.compute(*plain.to_delayed().ravel())
    for value, block in zip(values, wanted, strict=True):
        np.testing.assert_allclose(value, block, rtol=1e-14, atol=1e-15)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_blocks_of_hosts_and_devices_have_other_keys(name: str) -> None:
    """A cluster may hold both."""
    create: Any = CALLS[name]
    with dgpu.enable(), dask.config.set({"array.backend": "dgpu"}):
        x = create()
    assert not {*x.__dask_graph__()} & {*create().__dask_graph__()}


@pytest.mark.gpu
def test_a_reduced_end_of_linspace() -> None:
    with dgpu.enable(), dask.config.set({"array.backend": "dgpu"}):
        x = da.linspace(0, da.arange(6, chunks=3).max(), 11, chunks=4)
        value = x.compute()
    np.testing.assert_allclose(value.get(), np.linspace(0, 5, 11), rtol=1e-14)


@pytest.mark.gpu
@pytest.mark.parametrize("lower", [False, True])
def test_a_product_and_a_diagonal_have_a_cholesky_factor(lower: bool) -> None:
    import cupy

    n, chunk = 48, 16
    values = np.random.default_rng(3).normal(size=(n, n))
    with dgpu.enable(), dask.config.set({"array.backend": "dgpu"}):
        x = da.from_array(values, chunks=chunk).map_blocks(cupy.asarray)
        found = da.linalg.cholesky(x @ x.T + n * da.eye(n, chunks=chunk), lower=lower)
        factor = found.compute()
    assert isinstance(factor, cupy.ndarray)
    wanted = np.linalg.cholesky(values @ values.T + n * np.eye(n))
    np.testing.assert_allclose(factor.get(), wanted if lower else wanted.T, rtol=1e-9, atol=1e-9)
