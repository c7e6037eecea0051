"""Blocks that are not what Dask declares them to be, on a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import wait

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.observe import eventually, host, left_over
from tests.planner.test_undeclared import CASES, A, keeps_ghosts

LEFT = "dask_dgpu left a gang to Dask: "

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def plain(z: da.Array) -> Any:
    with dask.config.set(array_optimize=da.optimize):
        return host(z.compute())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reflect", "products"])
def test_as_in_plain_dask(client: Any, on_device: Any, name: str) -> None:
    with (
        dgpu.enable(client, **(SETTINGS | {"on_error": "fallback"})),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        z = CASES[name](on_device(A, 4))
        found = host(z.compute())
        wanted = plain(z + 0)
        eventually(lambda: [each for each in caught if LEFT in str(each.message)])
        assert any("is declared with shape" in reason for reason in dgpu.explain(z).failures)
    assert found.shape == wanted.shape != z.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-13)
    eventually(lambda: left_over(client) == 0)


def test_inputs_that_are_there_already(client: Any, on_device: Any) -> None:
    with dgpu.enable(client, **(SETTINGS | {"on_error": "fallback"})):
        y = keeps_ghosts(on_device(A, 4), "none", 1).persist()
        z = keeps_ghosts(y, "none", 1).persist()
        wait(z)
        np.testing.assert_array_equal(host(z.compute()), plain(keeps_ghosts(y + 0, "none", 1)))
        del y, z
    # neither tasks of the gang's nor Dask's own are left
    eventually(lambda: not client.run_on_scheduler(_tasks))


OPTIMIZED_HERE: dict[str, Callable[[da.Array], Any]] = {
    "delayed": lambda z: dask.delayed(host)(z).compute(),
    "delayed, persisted": lambda z: dask.delayed(host)(z).persist().compute(),
    "optimized": lambda z: host(dask.optimize(z)[0].compute()),
    "optimized, persisted": lambda z: host(dask.optimize(z)[0].persist().compute()),
    "optimized, delayed": lambda z: dask.delayed(host)(dask.optimize(z)[0]).compute(),
    "array of a delayed": lambda z: da.from_delayed(
        dask.delayed(host)(z), (18, 18), "f8"
    ).compute(),
}


@pytest.mark.slow
@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("name", OPTIMIZED_HERE)
def test_graphs_that_the_client_optimizes(
    client: Any, on_device: Any, name: str, persisted: bool
) -> None:
    x = keeps_ghosts(on_device(A, 4), "reflect", 1)
    wanted = plain(keeps_ghosts(x, "reflect", 1))
    with dgpu.enable(client, **(SETTINGS | {"on_error": "fallback"})):
        z = keeps_ghosts(x.persist() if persisted else x, "reflect", 1)
        assert dgpu.explain(z).rewritten
        found = OPTIMIZED_HERE[name](z)
        eventually(lambda: left_over(client) == 0)
    np.testing.assert_array_equal(found, wanted)


def test_an_array_in_a_delayed(client: Any, on_device: Any) -> None:
    z = keeps_ghosts(on_device(A, 4), "none")
    wanted = plain(z)
    with dgpu.enable(client, **(SETTINGS | {"on_error": "fallback"})):
        np.testing.assert_array_equal(dask.delayed(host)(z).compute(), wanted)


@pytest.mark.parametrize("order", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_a_p2p_rechunk(client: Any, device: str, order: str) -> None:
    x = da.from_array(A, (2, 12) if order == "before" else 4)
    with dask.config.set({"array.rechunk.method": "p2p"}):  # of host blocks, as Dask demands
        rows = x.rechunk((6, 6)) if order == "before" else x
        if device == "cuda":
            import cupy

            rows = rows.map_blocks(cupy.asarray)
        z = keeps_ghosts(rows, "reflect")
        if order == "after":
            z = z.map_blocks(host, dtype=z.dtype, meta=np.empty((0, 0))).rechunk((12, 4))
    with dgpu.enable(client, **(SETTINGS | {"on_error": "fallback"})):
        assert dgpu.explain(z).rewritten
        found = host(z.compute())
    wanted = plain(z + 0)
    assert found.shape == wanted.shape != z.shape
    np.testing.assert_array_equal(found, wanted)


def another_container(block: Any) -> Any:
    return block.get() if hasattr(block, "get") else np.ma.masked_array(block)


@pytest.mark.slow
def test_jacobi(client: Any, on_device: Any) -> None:
    x = on_device(A, 4)
    odd = x.map_blocks(another_container, dtype=x.dtype, meta=x._meta)
    with (
        dgpu.enable(client, **(SETTINGS | {"on_error": "fallback"})),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        u, info = dgpu.jacobi(odd, x, max_iterations=30, tol=1e-12)
        eventually(lambda: [each for each in caught if LEFT in str(each.message)])
        v, known = dgpu.jacobi(x, x, max_iterations=30, tol=1e-12)
        assert info.iterations == known.iterations == 30
        np.testing.assert_allclose(host(u.compute()), host(v.compute()), atol=1e-12)


def _tasks(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks if "plain-" in str(key) or "dgpu" in str(key)]


def test_what_dask_cannot_compute_either(client: Any, on_device: Any) -> None:
    with (
        dgpu.enable(client, **(SETTINGS | {"on_error": "fallback"})),
        pytest.raises(ValueError, match=r"broadcast|must have same shape"),  # NumPy, CuPy
    ):
        keeps_ghosts(on_device(A, 4), 0).compute()
