"""Meeting over a store: every rank says something, all hear what was said.

The store is a ``torch.distributed.Store``. Its own blocking calls know neither
our time limit nor our abort, and hold up other threads that use the same
connection; so this asks, and asks again.
"""

from __future__ import annotations

import time
from typing import Protocol

from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.errors import CommError

_PAUSE = 0.001
_LONGEST_PAUSE = 0.05


class KeyValueStore(Protocol):
    """The part of ``torch.distributed.Store`` that is used here."""

    def set(self, key: str, value: str) -> None:
        """Set a value."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of the keys are set."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Get the values."""

    def delete_key(self, key: str) -> bool:
        """Forget a value; whether there was one."""


def meet(
    store: KeyValueStore,
    name: str,
    said: str,
    *,
    rank: int,
    size: int,
    limit: float | None,
    lifetime: Lifetime,
) -> list[str]:
    """Say something under a name used once, and return what each rank said.

    Raises :class:`~dask_dgpu.errors.CommError` that lists the ranks which had
    not come when the time was over; without a limit, waits until aborted.
    """
    keys = [f"{name}/{peer}" for peer in range(size)]
    deadline = None if limit is None else time.monotonic() + limit
    pause = _PAUSE
    try:
        store.set(keys[rank], said)
        while not store.check(keys):
            lifetime.check()
            if deadline is not None and time.monotonic() > deadline:
                missing = [p for p in range(size) if not store.check([keys[p]])]
                if not missing:
                    break
                raise CommError(
                    f"Ranks {missing} of {size} did not come to {name!r} within {limit:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return [value.decode() for value in store.multi_get(keys)]
    except RuntimeError as error:
        raise CommError(f"The store was lost at {name!r}: {error}") from error


def meet_to_split(
    store: KeyValueStore,
    name: str,
    color: int | None,
    key: int,
    *,
    rank: int,
    size: int,
    limit: float | None,
    lifetime: Lifetime,
) -> list[int]:
    """Return the ranks of this rank's ``color`` in their new order, or none."""
    said = meet(
        store,
        name,
        "" if color is None else f"{color} {key}",
        rank=rank,
        size=size,
        limit=limit,
        lifetime=lifetime,
    )
    if color is None:
        return []
    pairs = [(peer, text.split()) for peer, text in enumerate(said) if text]
    keys = {peer: int(k) for peer, (c, k) in pairs if int(c) == color}
    return sorted(keys, key=lambda peer: (keys[peer], peer))
