"""What ranks tell each other before they can send messages: addresses, and whether they are there.

Every rank has a :class:`Store`. How values travel between the stores is their creator's matter;
the ranks of gangs use Dask's own connections, so this module opens none.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.errors import CommError


class Store:
    """One rank's copy of the values that all ranks of a communicator have set.

    ``publish`` passes a key and its value to the other ranks, whose :meth:`receive` gets them. It
    must not block, and keeps the order of one rank's values. No two ranks set the same key.
    """

    def __init__(self, publish: Callable[[str, bytes], None]) -> None:
        self._publish = publish
        self._values: dict[str, bytes] = {}
        self._waiting: weakref.WeakSet[Lifetime] = weakref.WeakSet()
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        """Set a value on all ranks; does not wait for the others."""
        self.receive(key, value)
        self._publish(key, value)

    def receive(self, key: str, value: bytes) -> None:
        """Note a value that a rank has set; from any thread, does not block."""
        with self._lock:
            self._values[key] = value
            waiting = list(self._waiting)
        for lifetime in waiting:
            lifetime.wake()

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys without a value."""
        return [key for key in keys if key not in self._values]

    def get(self, key: str) -> bytes:
        """Return the value of a key that has one."""
        return self._values[key]

    def discard(self, keys: Sequence[str]) -> None:
        """Forget values on this rank."""
        with self._lock:
            for key in keys:
                self._values.pop(key, None)

    def wait(self, keys: Sequence[str], limit: float | None, lifetime: Lifetime) -> list[str]:
        """Wait until all keys have values; return those without one after ``limit`` seconds.

        Raises
        ------
        CommAbortedError
            If ``lifetime`` ends first.
        """
        with self._lock:
            self._waiting.add(lifetime)
        lifetime.wait_for(lambda: not self.missing(keys), limit)
        return self.missing(keys)


def meet(
    store: Store,
    name: str,
    text: str,
    *,
    rank: int,
    size: int,
    limit: float | None,
    lifetime: Lifetime,
) -> list[str]:
    """Publish a text under a name that is used once, and return the texts of all ranks.

    After ``limit`` seconds it raises :class:`~dask_dgpu.errors.CommError` with the missing ranks;
    without one it waits until aborted.
    """
    keys = [f"{name}/{peer}" for peer in range(size)]
    store.set(keys[rank], text.encode())
    missing = store.wait(keys, limit, lifetime)
    if missing:
        ranks = [peer for peer, key in enumerate(keys) if key in missing]
        raise CommError(f"ranks {ranks} of {size} did not come to {name!r} within {limit:g} s")
    texts = [store.get(key).decode() for key in keys]
    store.discard(keys)
    return texts
