"""The clusters of tests/cluster."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from tests.cluster.conftest import client, cluster, device, patience

__all__ = ["client", "cluster", "device", "patience"]


@pytest.fixture
def placed(client: Client, device: str) -> da.Array:
    """A matrix in the memory of the workers."""
    x = da.from_array(np.random.default_rng(0).random((37, 37)), chunks=10)
    if device == "cuda":
        import cupy

        x = x.map_blocks(cupy.asarray)
    return x.persist()
