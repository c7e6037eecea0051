"""The shared state of the ranks of one process: their calls, and the ranks that have ended."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection
from typing import Any

from dask_dgpu.comm.buffers import flat
from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.errors import CommError


class Call:
    """One collective call and the arguments of the ranks that have called it.

    Attributes
    ----------
    awaited : set of int
        The ranks that have not called it; none once the call is over.
    """

    def __init__(self, what: tuple[object, ...], size: int) -> None:
        self.what = what
        self.given: list[Any] = [None] * size
        self.awaited = set(range(size))


class Message:
    """One side of a message: its buffer, the other rank, and whether it was delivered."""

    def __init__(self, buffer: Buffer, peer: int) -> None:
        self.buffer = flat(buffer)
        self.peer = peer
        self.over = False


class LocalHub:
    """The shared state of the ranks of one process.

    A wait ends when its call is over, the hub is aborted, or an awaited rank has ended: then
    the ranks' programs disagree.

    Parameters
    ----------
    size : int
        Number of ranks.
    limit : float, optional
        Seconds after which a wait raises; by default there is no limit.
    """

    def __init__(self, size: int, limit: float | None = None) -> None:
        self.size = size
        self.limit = limit
        self.lifetime = Lifetime()
        self.calls: dict[int, Call] = {}
        self.sent: defaultdict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self.expected: defaultdict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self._ended: set[int] = set()

    def end(self, rank: int) -> None:
        """Note that a rank makes no more calls."""
        self._ended.add(rank)
        self.lifetime.wake()

    def wait(self, awaited: Callable[[], Collection[int]], phase: str) -> None:
        """Wait until no ranks are awaited."""
        missing: set[int] = set()

        def over() -> bool:
            missing.update(self._ended.intersection(awaited()))
            return bool(missing) or not awaited()

        self.lifetime.wait_for(over, self.limit, phase)
        if missing:
            self.lifetime.check()
            raise CommError(f"{phase} waits for rank {min(missing)}, whose program has ended")
