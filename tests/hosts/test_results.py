"""Right results on three hosts of two workers."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from tests.cluster.observe import check

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(100)]


def test_matmul(client) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random((97, 211)), rng.random((211, 53))
    x, y = da.from_array(a, chunks=31), da.from_array(b, chunks=31)
    assert check(client, x @ y, a @ b) == 1
