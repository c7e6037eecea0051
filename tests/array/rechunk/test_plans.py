"""Rechunks on clusters that are not there: when they pay, and their memory."""

from __future__ import annotations

from typing import Any

import dask.array as da

from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.optimizer import GraphOptimizer
from tests.array.rechunk.test_local import X


def optimizer(workers: int, device: Any, **changes: Any) -> GraphOptimizer:
    memory = 80 << 30 if device == "cuda" else None
    return GraphOptimizer(
        read({"on_error": "raise", **changes}), ClusterFacts(workers, device, memory)
    )


def reasons(optimizer: GraphOptimizer, z: da.Array) -> list[str]:
    rewriting = optimizer.rewrite(z.dask, z.__dask_keys__())
    assert len(rewriting.pieces) + len(rewriting.declined) == 1
    return [declined.reason for declined in rewriting.declined]


def on_gpus(x: da.Array) -> da.Array:
    """Pretend that the blocks are on GPUs."""
    for layer in x.dask.layers.values():
        layer.collection_annotations["chunk_type"] = "cupy.ndarray"
    return x


def test_rows_to_columns_of_a_large_array_pay() -> None:
    x = da.ones((4096, 4096), chunks=(512, 4096))
    assert reasons(optimizer(4, "cpu"), x.rechunk((4096, 512))) == []
    assert reasons(optimizer(4, "cpu"), x.rechunk((4096, 64))) == []
    (reason,) = reasons(optimizer(4, "cpu"), x.rechunk((256, 4096)))  # nothing would move
    assert "plain Dask is predicted to be quicker" in reason
    large = da.ones((65536, 65536), chunks=(8192, 65536))
    assert reasons(optimizer(8, "cuda"), on_gpus(large.rechunk((65536, 8192)))) == []


def test_blocks_of_the_other_kind() -> None:
    z = X.rechunk((5, 31))
    (reason,) = reasons(optimizer(2, "cuda", when="always"), z)
    assert reason == "blocks are on the host and no computation follows"
    (reason,) = reasons(
        optimizer(2, "cpu", when="always"),
        on_gpus((da.ones((12, 31), chunks=(12, 5))).rechunk((6, 31))),
    )
    assert reason == "blocks are CuPy arrays and the workers compute on the CPU"


def test_memory_is_counted() -> None:
    x = da.ones((512, 512), chunks=(512, 64))
    z = x.rechunk((64, 512))
    assert reasons(optimizer(2, "cpu", when="always", memory_limit="2 MiB"), z) == []
    (reason,) = reasons(optimizer(2, "cpu", when="always", memory_limit="1 MiB"), z)
    assert reason == "its smallest part needs 1.38 MiB on a rank and 819.20 kiB may be used"
