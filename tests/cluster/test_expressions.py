"""Arrays of dask_array on a cluster: known programs, keys, losses, clients."""

from __future__ import annotations

from typing import Any

import dask
import dask_array as xa
import numpy as np
import pytest
import xarray as xr
from distributed import Client, futures_of, wait

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.losses import Losses
from tests.cluster.observe import send_signal, structures
from tests.support.chunked import FLOX_ONLY, GROUPED, chunked_by, data

pytestmark = pytest.mark.cluster

MATRIX = np.random.default_rng(3).random((60, 60))


def step(x: Any) -> Any:
    return xa.exp(-x @ x.T / 60) / 3


def steps(x: Any, count: int) -> Any:
    for _ in range(count):
        x = np.exp(-x @ x.T / 60) / 3
    return x


def array() -> Any:
    return xa.from_array(MATRIX, chunks=17).persist()


def test_a_loop_is_known_after_its_first_steps(client: Client) -> None:
    with dgpu.enable(client, **SETTINGS):
        x = step(step(step(array()).persist()).persist()).persist()
        wait(x)
        known = structures(client)
        for _ in range(3):
            x = step(x).persist()
        np.testing.assert_allclose(x.compute(), steps(MATRIX, 6))
        assert structures(client) <= known + 2  # the read of the result, and other free memory
        assert isinstance(x, xa.Array)


def test_names_stay_and_futures_are_dasks(client: Client) -> None:
    with dgpu.enable(client, **SETTINGS):
        y = step(array())
        kept = y.persist()
        assert kept.name == y.name
        wait(kept)
        assert {future.status for future in futures_of(kept)} == {"finished"}
        assert len(futures_of(kept)) == kept.npartitions
        client.publish_dataset(expression=kept)
        with Client(client.scheduler.address, set_as_default=False) as other:
            read = other.get_dataset("expression")
            np.testing.assert_allclose(other.compute(read + 1, sync=True), steps(MATRIX, 1) + 1)
        client.unpublish_dataset("expression")


def test_every_way_to_compute(client: Client) -> None:
    wanted = steps(MATRIX, 1)
    with dgpu.enable(client, **SETTINGS):
        y = step(array())
        assert dgpu.explain(y).rewritten
        np.testing.assert_allclose(client.compute(y).result(), wanted)
        np.testing.assert_allclose(client.persist(y).compute(), wanted)
        first, second = dask.compute(y.sum(), y.max())
        np.testing.assert_allclose((first, second), (wanted.sum(), wanted.max()))
        np.testing.assert_allclose(np.asarray(y), wanted)
        (delayed, *_) = y.to_delayed().ravel()
        np.testing.assert_allclose(delayed.compute(), wanted[:17, :17])


def test_programs_that_stay_on_the_workers(client: Client) -> None:
    compiled = dgpu.jit(step)
    with dgpu.enable(client, **SETTINGS):
        x = array()
        for _ in range(4):
            x = compiled(x)
        assert isinstance(x, xa.Array)
        np.testing.assert_allclose((x + 0).compute(), steps(MATRIX, 4))


@pytest.mark.parametrize("package", ["dask.array", "dask_array"])
def test_groups_of_xarray(client: Client, package: str) -> None:
    """flox computes those of Dask's arrays."""
    with chunked_by(package), dgpu.enable(client, **SETTINGS):
        for name, operation in GROUPED.items():
            if package == "dask.array" or name not in FLOX_ONLY:
                wanted = operation(data())
                found = operation(data(t=5, x=6)).compute().transpose(*wanted.dims)
                xr.testing.assert_allclose(found, wanted)


class TestLosses(Losses):
    @pytest.mark.slow
    def test_a_lost_worker(self, client: Client) -> None:
        with dgpu.enable(client, **SETTINGS):
            x = xa.random.default_rng(1).random((60, 60), chunks=17).persist()
            before = x.compute()
            y = step(x).persist()
            wait(y)
            send_signal(client, sorted(client.scheduler_info(n_workers=-1)["workers"])[-1])
            np.testing.assert_allclose(y.sum().compute(), steps(before, 1).sum())
