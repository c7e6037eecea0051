"""A store as torch's groups expect it, for NCCL."""

# torch documents the methods of its stores.
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.store import Store
from dask_dgpu.errors import CommError

# torch has no stubs for much of this, or stubs that vary from version to version.
dist: Any = torch.distributed


class TorchStore(dist.Store):
    """A view of a :class:`~dask_dgpu.comm.store.Store` whose waits end with ``lifetime``.

    torch's own stores are servers with a port, and their waits only have a time limit. Each wait
    raises after ``limit`` seconds. The caller keeps a reference: torch calls the methods of this
    object, but does not keep it.
    """

    def __init__(self, store: Store, limit: float, lifetime: Lifetime) -> None:
        super().__init__()
        self._store = store
        self._limit = limit
        self.lifetime = lifetime

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._store.set(_own(key), data)

    def check(self, keys: Sequence[str]) -> bool:
        return not self._store.missing([_own(key) for key in keys])

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._store.get(_own(key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self.wait(keys)
        return [self._store.get(_own(key)) for key in keys]

    def delete_key(self, key: str) -> bool:
        there = self.check([key])
        self._store.discard([_own(key)])
        return there

    def wait(self, keys: Sequence[str], timeout: object = None) -> None:
        if self._store.wait([_own(key) for key in keys], self._limit, self.lifetime):
            raise CommError("not all ranks connected within the time limit")


def _own(key: str) -> str:
    """Return the key of torch's among those of others."""
    return f"torch/{key}"
