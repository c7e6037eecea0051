"""Functions of dask_dgpu take arrays of dask_array, and return such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import dask_array as xa
import numpy as np
import pytest

import dask_dgpu as dgpu

MATRIX = np.random.default_rng(8).random((12, 12))
IMAGES = np.random.default_rng(9).random((2, 3, 8, 8))

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "matmul": lambda x: dgpu.matmul(x, x, strategy="summa"),
    "einsum": lambda x: dgpu.einsum("ij,jk,kl->il", x, x, x),
    "fft": lambda x: dgpu.fft.fft2(x),
    "dct": lambda x: dgpu.fft.dctn(x),
    **{
        kind: lambda x, kind=kind: getattr(dgpu, kind)(x, axis=0)
        for kind in ("sum", "mean", "max", "min", "var", "std", "norm")
    },
    "dot": lambda x: dgpu.dot(x[0], x[1]),
    "stencil": lambda x: dgpu.stencil(x, iterations=2),
    "jacobi": lambda x: dgpu.jacobi(x, x, max_iterations=5)[0],
    "poisson": lambda x: dgpu.poisson(x - x.mean(), 1.0, "periodic"),
    "gelu": dgpu.gelu,
    "softmax": dgpu.softmax,
    "layer_norm": dgpu.layer_norm,
    "weighted_sum": lambda x: dgpu.weighted_sum(x, x[0]),
    "weighted_sum_grad": lambda x: dgpu.weighted_sum_grad(x[0], x, x[1])[1],
    "shard_map": lambda x: dgpu.shard_map(doubled, out=x)(x),
    "fori_loop": lambda x: dgpu.fori_loop(3, lambda i, y: y * 0.5 + i, x),
    "while_loop": lambda x: dgpu.while_loop(
        lambda state: state[1] < 3,
        lambda state: (state[0] + 1, state[1] + 1),
        (x, 0),
        max_iterations=9,
    )[0],
    "jit": lambda x: dgpu.jit(lambda y, rate: y - rate * y.sum(axis=0))(x, 0.5),
    "cg": lambda x: dgpu.cg(x @ x.T + 12 * eye(x), x[0])[0],
    "cg, function": lambda x: dgpu.cg(lambda v: 4 * v, x)[0],
}


def doubled(comm: dgpu.ShardComm, x: Any) -> Any:
    return 2 * x


def eye(x: Any) -> Any:
    return (xa if isinstance(x, xa.Array) else da).eye(12, chunks=5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_dasks_arrays(name: str) -> None:
    function = FUNCTIONS[name]
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        wanted = function(da.from_array(MATRIX, chunks=5))
        y = function(xa.from_array(MATRIX, chunks=5))
        assert isinstance(y, xa.Array)
        assert (y.chunks, y.dtype) == (wanted.chunks, wanted.dtype)
        np.testing.assert_allclose((y + 0).compute(), wanted.compute(), rtol=1e-12, atol=1e-13)


def test_convolutions() -> None:
    wanted = dgpu.conv2d(da.from_array(IMAGES, chunks=4), IMAGES[:, :, :3, :3], padding=1)
    y = dgpu.conv2d(xa.from_array(IMAGES, chunks=4), IMAGES[:, :, :3, :3], padding=1)
    assert isinstance(y, xa.Array)
    np.testing.assert_allclose(y.compute(), wanted.compute(), rtol=1e-12)


def test_host_arrays() -> None:
    x = xa.from_array(MATRIX, chunks=5)
    np.testing.assert_allclose(dgpu.run("matmul", x, MATRIX), MATRIX @ MATRIX)
    (found,) = dgpu.run_many("exp", [(x,)])
    np.testing.assert_allclose(found, np.exp(MATRIX))
    assert dgpu.plan("matmul", x, x).feasible


def test_a_step_of_either_kind() -> None:
    """One function, two kinds of arguments: each gets what it gave."""
    step = dgpu.jit(lambda x, y: x @ y)
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        for package in (da, xa, da):
            x = package.from_array(MATRIX, chunks=5)
            found = step(x, x)
            assert isinstance(found, package.Array)
            np.testing.assert_allclose(found.compute(), MATRIX @ MATRIX)
        assert dgpu.explain(step(x, x)) is not None


def test_operations_are_explained() -> None:
    x = xa.from_array(MATRIX, chunks=5)
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        text = str(dgpu.explain((x @ x.T).sum(), x.mean()))
    assert "matmul" in text
    assert "gang" in text
