"""Operands that stay on the devices for several calls."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

Place = tuple[Any, ...]
"""Identity, spans and chunks of an operand."""


class Shared:
    """Keeps whole operands that several calls read, within a limit, the last used ones.

    ``identities`` are those of the operands of all calls.
    """

    def __init__(self, identities: Iterable[int] = (), limit: float = 0) -> None:
        counted = Counter(identities)
        self.identities = {identity for identity, calls in counted.items() if calls > 1}
        self.limit = limit
        self.nbytes = 0
        self._kept: OrderedDict[Place, tuple[int, Any]] = OrderedDict()
        self._lock = Lock()

    def get(self, place: Place, nbytes: int, load: Callable[[], Any]) -> Any:
        """Return an operand, loaded at its first use; others wait meanwhile."""
        if place[0] not in self.identities or nbytes > self.limit:
            return load()
        with self._lock:
            if place in self._kept:
                self._kept.move_to_end(place)
                return self._kept[place][1]
            while self._kept and self.nbytes + nbytes > self.limit:
                _, (freed, _) = self._kept.popitem(last=False)
                self.nbytes -= freed
            array = load()
            self._kept[place] = nbytes, array
            self.nbytes += nbytes
            return array

    def clear(self) -> None:
        """Drop all operands: they need memory, or were on a worker that was lost."""
        with self._lock:
            self._kept.clear()
            self.nbytes = 0
