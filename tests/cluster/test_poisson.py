"""Poisson's equation and cosine and sine transforms on a cluster: values, tasks, a worker lost."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.fft

import dask_dgpu as dgpu
from tests.array.poisson.test_poisson import BOUNDARIES, laplacian
from tests.cluster.losses import Losses
from tests.cluster.observe import (
    computed,
    counted,
    host,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(3)
F = RNG.random((60, 44)) - 0.3
CUBE = RNG.random((12, 10, 14))


def check(u: Any, f: Any, boundaries: tuple[str, ...]) -> None:
    wanted = f - f.mean() if "zero" not in boundaries else f
    bound = 64 * np.finfo(u.dtype).eps * (4 * u.ndim * np.linalg.norm(u) + np.linalg.norm(f))
    assert np.linalg.norm(laplacian(u, (1.0,) * u.ndim, boundaries) - wanted) <= bound


@pytest.mark.slow
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_slabs_are_one_gang(client, on_device, boundary):
    for chunks in [(7, 44), (60, 9)]:
        u = dgpu.poisson(on_device(F, chunks), boundary=boundary)
        value, gangs = computed(client, u)
        check(value, F, (boundary,) * 2)
        assert gangs == 1


@pytest.mark.slow
@pytest.mark.parametrize("boundary", [*BOUNDARIES, ("periodic", "reflect", "zero")])
def test_cubes(client, on_device, boundary):
    for dtype in ("float32", "complex128"):
        f = CUBE.astype(dtype)
        u = dgpu.poisson(on_device(f, (4, 5, 14)), boundary=boundary)
        value, gangs = computed(client, u)
        assert value.dtype == dtype
        check(value, f, (boundary,) * 3 if isinstance(boundary, str) else boundary)
        assert gangs == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dctn", "idctn", "dstn", "idstn"])
def test_transforms(client, on_device, name):
    for kind in (1, 2, 3, 4):
        y = getattr(dgpu.fft, name)(on_device(CUBE, (4, 5, 14)), kind)
        value, gangs = computed(client, y)
        wanted = getattr(scipy.fft, name)(CUBE, kind)
        np.testing.assert_allclose(value, wanted, rtol=1e-10, atol=1e-10 * abs(wanted).max())
        assert gangs == 1


def test_tasks_submitted(client, on_device):
    solve = partial(dgpu.poisson, boundary="zero")
    u, tasks, blocks, ranks = counted(client, solve, on_device(F, (7, 44)))
    assert blocks < tasks <= blocks + 2 * ranks + 2
    check(host(u.compute()), F, ("zero", "zero"))


class TestLosses(Losses):
    """A worker is lost between the transforms."""

    @pytest.mark.slow
    def test_killed_in_the_program(self, client, cluster, on_device):
        x = on_device(F, (7, 44))
        value, _ = computed(client, dgpu.poisson(x, boundary="reflect"))
        check(value, F, ("reflect", "reflect"))

        self.slow(client, 1.0)
        future = client.compute(dgpu.poisson(x, boundary="zero"))
        check(self.result_after_loss(client, future), F, ("zero", "zero"))


@pytest.mark.slow
def test_an_axis_too_long_for_a_block(client, on_device):
    part = RNG.random(240_000) - 0.3
    f = np.concatenate([part * scale for scale in range(10)])
    x = da.concatenate([on_device(part, -1) * scale for scale in range(10)]).persist()
    u = dgpu.poisson(x, boundary="zero")
    assert u.numblocks[0] > 5
    value, gangs = computed(client, u)
    check(value, f, ("zero",))
    assert gangs == 1
