"""What the ranks of one process share: the calls they have come to, and who has ended."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dask_dgpu.comm.buffers import flat
from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.errors import CommError


class Call:
    """One collective call: the arguments of the ranks that have come.

    Attributes
    ----------
    awaited : set of int
        The ranks that have not come; none once the call is over.
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
    """What the ranks of one process share.

    A wait lasts until it is over, the hub is aborted, or a rank that it needs has ended:
    then the ranks' programs disagree.

    Parameters
    ----------
    size : int
        Number of ranks.
    limit : float, optional
        Seconds after which a wait raises; without it none does for the time it takes.
    origins : sequence of int, optional
        The rank of each in the hub that this one was split from in the end.
    ended : set of int, optional
        Those of that hub that have ended; shared by all that were split from it.
    """

    def __init__(
        self,
        size: int,
        limit: float | None = None,
        origins: Sequence[int] | None = None,
        ended: set[int] | None = None,
    ) -> None:
        self.size = size
        self.limit = limit
        self.lifetime = Lifetime()
        self.calls: dict[int, Call] = {}
        self.sent: defaultdict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self.asked: defaultdict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self.origins = range(size) if origins is None else origins
        self.ended: set[int] = set() if ended is None else ended

    def split(self, members: Sequence[int]) -> LocalHub:
        """Make a hub of some of the ranks, which ends with this one."""
        origins = [self.origins[rank] for rank in members]
        hub = LocalHub(len(members), self.limit, origins, self.ended)
        self.lifetime.adopt(hub.lifetime)
        return hub

    def end(self, rank: int) -> None:
        """Note that a rank makes no more calls; of a hub that was not split from another."""
        self.ended.add(rank)
        self.lifetime.wake()

    def wait(self, awaited: Callable[[], Collection[int]], phase: str) -> None:
        """Wait until no ranks are awaited."""
        gone: list[int] = []

        def over() -> bool:
            gone[:] = [rank for rank in awaited() if self.origins[rank] in self.ended]
            return bool(gone) or not awaited()

        self.lifetime.wait_for(over, self.limit, phase)
        if gone:
            self.lifetime.check()
            raise CommError(f"{phase} waits for rank {gone[0]}, whose program has ended")
