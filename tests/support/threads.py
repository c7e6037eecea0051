"""Ranks as threads that exchange single messages, as processes do; all messages are counted."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any, TypeVar

from dask_dgpu.comm.point_to_point import PointToPointComm, Posted, Verb
from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.errors import CommError

T = TypeVar("T")


class Wire:
    """The messages between ranks; ``nbytes`` and ``messages`` count them by sender, receiver."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.posted: defaultdict[Any, deque[_Side]] = defaultdict(deque)
        self.nbytes: Counter[tuple[int, int]] = Counter()
        self.messages: Counter[tuple[int, int]] = Counter()
        self.reason: str | None = None

    def between(self, hosts: Any, counter: Counter[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """Return a counter by the hosts of the ranks, without what stays on a host."""
        of = [host for host, ranks in enumerate(hosts) for _ in range(ranks)]
        found: Counter[tuple[int, int]] = Counter()
        for (sender, receiver), count in counter.items():
            if of[sender] != of[receiver]:
                found[of[sender], of[receiver]] += count
        return found


class _Side(Posted):
    def __init__(self, wire: Wire, data: Buffer, what: str) -> None:
        super().__init__(what, wire.changed)
        self.wire, self.data = wire, data

    def wait(self) -> None:
        with self.wire.changed:
            self.wire.changed.wait_for(lambda: self.over or self.wire.reason)
            if not self.over:
                raise CommError(f"{self.what} failed: {self.wire.reason}")


class WireComm(PointToPointComm):
    """One rank; as in a transport, messages of a pair of ranks and a tag keep their order."""

    def __init__(self, wire: Wire, rank: int, size: int) -> None:
        super().__init__(rank, size, self._end)
        self.wire = wire

    def _end(self) -> None:
        with self.wire.changed:
            self.wire.reason = "aborted"
            self.wire.changed.notify_all()

    def _post_message(self, verb: Verb, peer: int, data: Buffer, tag: int, what: str) -> Posted:
        wire, mine = self.wire, _Side(self.wire, data, what)
        pair = (self.rank, peer) if verb == "send" else (peer, self.rank)
        with wire.changed:
            if verb == "send":
                wire.nbytes[pair] += data.nbytes
                wire.messages[pair] += 1
            waiting = wire.posted["recv" if verb == "send" else "send", pair, tag]
            if not waiting:
                wire.posted[verb, pair, tag].append(mine)
                return mine
            other = waiting.popleft()
            source, target = (mine, other) if verb == "send" else (other, mine)
            if source.data.size != target.data.size:
                raise ValueError(f"{what}: {source.data.size} bytes for {target.data.size}")
            target.data[...] = source.data
            mine.over = other.over = True
            wire.changed.notify_all()
        return mine


def run_wire(size: int, fn: Callable[..., T], *args: object) -> tuple[list[T], Wire]:
    """Call ``fn(comm, *args)`` on ``size`` threads; return the results, and what was sent."""
    wire = Wire()
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def rank_main(rank: int) -> None:
        comm = WireComm(wire, rank, size)
        try:
            results[rank] = fn(comm, *args)
        except BaseException as error:
            errors.append(error)
            comm.abort(f"rank {rank} raised {error!r}")

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert not any(wire.posted.values())
    return results, wire
