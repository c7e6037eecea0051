"""Convolutions on a cluster: values, tasks, and with a worker lost."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu
from tests.cluster.losses import Losses
from tests.cluster.observe import (
    check,
    counted,
    host,
)
from tests.support.reference.conv2d import conv2d_reference

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(4)
A, W, B = (RNG.standard_normal(shape) for shape in [(5, 4, 33, 20), (6, 2, 3, 4), (6,)])
OPTIONS: dict[str, Any] = {"padding": (1, 2), "dilation": 2, "groups": 2}
WANTED = conv2d_reference(A, W, B, **OPTIONS)


@pytest.fixture
def x(on_device: Any) -> da.Array:
    return on_device(A, (2, 3, 11, 20))


def convolved(x: da.Array) -> da.Array:
    return dgpu.conv2d(x, da.from_array(W, chunks=2), B, **OPTIONS)


def test_conv2d(client: Client, x: da.Array) -> None:
    assert check(client, convolved(x), WANTED) == 1


def test_within_a_region(client: Client, x: da.Array) -> None:
    y = da.maximum(convolved(x * 2 - x), 0).sum(axis=(2, 3))
    assert check(client, y, np.maximum(WANTED, 0).sum(axis=(2, 3))) == 1


def test_tasks_submitted(client: Client, on_device: Any, x: da.Array) -> None:
    weight = on_device(W, -1)
    y, tasks, blocks, _ = counted(client, lambda x, w: dgpu.conv2d(x, w, groups=2), x, weight)
    assert tasks <= blocks + 1
    np.testing.assert_allclose(
        host(y.compute()), conv2d_reference(A, W, None, groups=2), rtol=0, atol=1e-10
    )


class TestLosses(Losses):
    """A worker is lost."""

    @pytest.mark.slow
    def test_killed_in_the_collective(self, client: Client, cluster: Any, x: da.Array) -> None:
        check(client, convolved(x), WANTED)
        self.slow(client, 1.0)
        future = client.compute(convolved(x) * 1)
        result = self.result_after_loss(client, future)
        np.testing.assert_allclose(result, WANTED, rtol=0, atol=1e-10)
