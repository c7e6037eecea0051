"""An all-gather of texts over a ``torch.distributed.Store``.

The store's blocking calls support neither our time limit nor our abort, and block other threads
that use the same connection. So this polls.
"""

from __future__ import annotations

import time
from typing import Protocol

from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.errors import CommError

_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.05


class KeyValueStore(Protocol):
    """The methods of ``torch.distributed.Store`` that communicators call."""

    def set(self, key: str, value: str) -> None:
        """Set a value."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values."""

    def delete_key(self, key: str) -> bool:
        """Delete a value; return whether there was one."""


def meet(
    store: KeyValueStore,
    name: str,
    text: str,
    *,
    rank: int,
    size: int,
    limit: float | None,
    lifetime: Lifetime,
) -> list[str]:
    """Publish a text under a name that is used once, and return the texts of all ranks.

    After the limit it raises :class:`~dask_dgpu.errors.CommError` with the missing ranks; without
    one it waits until aborted.
    """
    keys = [f"{name}/{peer}" for peer in range(size)]
    deadline = None if limit is None else time.monotonic() + limit
    pause = _FIRST_PAUSE
    try:
        store.set(keys[rank], text)
        while not store.check(keys):
            lifetime.check()
            if deadline is not None and time.monotonic() > deadline:
                missing = [p for p in range(size) if not store.check([keys[p]])]
                if not missing:
                    break
                raise CommError(
                    f"ranks {missing} of {size} did not come to {name!r} within {limit:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return [value.decode() for value in store.multi_get(keys)]
    except RuntimeError as error:
        raise CommError(f"the store was lost at {name!r}: {error}") from error
