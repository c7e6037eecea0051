"""Rechunks on clusters that are not there: when they pay, and their memory."""

from __future__ import annotations

from typing import Any

import dask.array as da

from tests.array.rechunk.test_local import X
from tests.support.clusters import explained, on_gpus


def reasons(z: da.Array, workers: int, device: str, **settings: Any) -> list[str]:
    memory = 80 << 30 if device == "cuda" else None
    found = explained(z, workers=workers, device=device, device_memory=memory, **settings)
    assert len(found.rewritten) + len(found.declined) == 1
    return [declined.reason for declined in found.declined]


def test_rows_to_columns_of_a_large_array_pay() -> None:
    x = da.ones((4096, 4096), chunks=(512, 4096))
    assert reasons(x.rechunk((4096, 512)), 4, "cpu") == []
    assert reasons(x.rechunk((4096, 64)), 4, "cpu") == []
    (reason,) = reasons(x.rechunk((256, 4096)), 4, "cpu")  # nothing would move
    assert "plain Dask is predicted to be quicker" in reason
    large = da.ones((65536, 65536), chunks=(8192, 65536))
    assert reasons(on_gpus(large.rechunk((65536, 8192))), 8, "cuda") == []


def test_blocks_of_the_other_kind() -> None:
    z = X.rechunk((5, 31))
    (reason,) = reasons(z, 2, "cuda", when="always")
    assert reason == "blocks are on the host and no computation follows"
    other = on_gpus(da.ones((12, 31), chunks=(12, 5)).rechunk((6, 31)))
    (reason,) = reasons(other, 2, "cpu", when="always")
    assert reason == "blocks are CuPy arrays and the workers compute on the CPU"


def test_memory_is_counted() -> None:
    x = da.ones((512, 512), chunks=(512, 64))
    z = x.rechunk((64, 512))
    assert reasons(z, 2, "cpu", when="always", memory_limit="2 MiB") == []
    (reason,) = reasons(z, 2, "cpu", when="always", memory_limit="1 MiB")
    assert reason == "its smallest part needs 1.38 MiB on a rank and 819.20 kiB may be used"
