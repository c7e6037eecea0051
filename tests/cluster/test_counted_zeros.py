"""Zeros of blocks are counted once, whatever reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.cluster.observe import host
from tests.cluster.test_transfers import A

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def test_zeros_of_blocks_in_memory_are_counted_once(client: Any, in_memory: Any) -> None:
    def count_passes(dask_worker: Any) -> None:
        from dask_dgpu.kernels import zeros

        count = zeros.count

        def counting(values: Any) -> Any:
            counting.passes += 1
            return count(values)

        counting.passes, counting.count = 0, count
        zeros.count = counting

    def passes(dask_worker: Any) -> int:
        from dask_dgpu.kernels import zeros

        return int(zeros.count.passes)

    def count_no_more(dask_worker: Any) -> None:
        from dask_dgpu.kernels import zeros

        zeros.count = zeros.count.count

    sparse = np.where(np.arange(48)[:, None] // 12 == np.arange(48) // 12, A, 0)
    x = in_memory(sparse, (12, 12))
    client.run(count_passes)
    found = []
    for _ in range(3):
        y = dgpu.matmul(x, x, strategy="row", sparse_threshold=0.5)
        np.testing.assert_allclose(host(y.compute()), sparse @ sparse, rtol=1e-12)
        found.append(sum(client.run(passes).values()))
    client.run(count_no_more)
    assert 0 < found[0] == found[1] == found[2]
