"""Ranks over ordered streams: sockets of our own, or Dask's connections between workers.

A stream carries packets in order, and keeps no copy of what it sends. Messages are matched by
sender and tag, in order::

    up to 256 KiB    DATA ---------------------------->   the receiver may be late
    more             <---- READY, DATA --->, <---- DONE   sent when the receiver expects it

So a receiver that is late never has more than small messages in memory, and a sender's buffer is
free once the receiver has the data, whatever the stream's own writes mean.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from dask_dgpu.comm.common import Lifetime, take_first
from dask_dgpu.comm.point_to_point import (
    WITHOUT_THREAD,
    PointToPointComm,
    Posted,
    Verb,
)
from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.comm.store import Store, meet
from dask_dgpu.errors import CommError

# Up to so many bytes a message is copied and sent at once. Collectives with larger messages have
# threads, which wait for READY and DONE.
_AT_ONCE = WITHOUT_THREAD

# Seconds in which sent messages reach their receivers after the end of a rank.
_CLOSING = 10.0
_ABORTING = 0.2

Place = tuple[int, int]
"""A peer and a tag."""


class Kind(IntEnum):
    """The kinds of packets; only DATA has data."""

    DATA = 0
    READY = 1
    DONE = 2


class Streams(Protocol):
    """One rank's streams to all others."""

    address: str
    """The address at which other ranks reach this one."""

    def open(self, rank: int, addresses: Sequence[str], comm: StreamComm) -> None:
        """Open a stream to each other rank, which does the same.

        Packets go to ``comm.receive``. The end of a stream, and the later failure to open one, go
        to ``comm.lose``.
        """

    def send(self, peer: int, kind: Kind, tag: int, data: Any) -> None:
        """Send a packet, in order; from any thread, does not block.

        ``data`` is ``None``, bytes, or a flat view of memory that does not change before DONE.
        """

    def wait(self, message: Posted) -> None:
        """Block until a message is over; it may receive packets meanwhile."""

    def close(self, seconds: float) -> None:
        """Close all streams; from any thread, does not block.

        What was sent is delivered first, within ``seconds`` if other ranks stay.
        """


class Packet(Posted):
    """A message that is sent or received; a receive has a ``target``.

    The waiting thread copies the frames to the target, unless they came there.
    """

    def __init__(self, what: str, comm: StreamComm, target: Buffer | None) -> None:
        super().__init__(what, comm._lifetime.changed)
        self._streams = comm._streams
        self.target = target

    def wait(self) -> None:
        """Block until it is done; raise ``CommError`` if it failed."""
        self._streams.wait(self)
        self.check()
        target = self.target
        if target is None or self.result[0] is target:
            return
        nbytes = sum(map(len, self.result))
        if nbytes != target.size:
            text = f"expected {target.size} bytes, got {nbytes}"
            raise CommError(f"{self.what} failed: {text}")
        start = 0
        for frame in self.result:
            stop = start + len(frame)
            target[start:stop] = np.frombuffer(frame, np.uint8)
            start = stop


class StreamComm(PointToPointComm):
    """One rank over streams; see :class:`~dask_dgpu.comm.protocol.Comm`."""

    def __init__(self, rank: int, size: int, streams: Streams) -> None:
        super().__init__(rank, size, self._end)
        self._streams = streams
        self._lock = threading.Lock()
        self._lost: dict[int, str] = {}
        self._expected: dict[Place, deque[Packet]] = defaultdict(deque)
        self._arrived: dict[Place, deque[Any]] = defaultdict(deque)
        self._unsent: dict[Place, deque[tuple[Buffer, Posted]]] = defaultdict(deque)
        self._sent: dict[Place, deque[Posted]] = defaultdict(deque)
        self._ready: Counter[Place] = Counter()

    def receive(self, peer: int, kind: Kind, tag: int, frames: Sequence[Any]) -> None:
        """Take a packet of a peer, whose data is in ``frames``; never blocks."""
        place = peer, tag
        with self._lock:
            if kind == Kind.READY:
                self._ready[place] += 1
                self._send(place)
            elif kind == Kind.DONE:
                message = take_first(self._sent, place)
                if message is not None:
                    message.end()
            else:
                if sum(map(len, frames)) > _AT_ONCE:
                    self._streams.send(peer, Kind.DONE, tag, None)
                message = take_first(self._expected, place)
                if message is None:
                    self._arrived[place].append(frames)
                else:
                    message.end(frames)

    def target(self, peer: int, tag: int, nbytes: int) -> Buffer | None:
        """Return the target of the next receive from a peer, if it expects so many bytes.

        Streams may write to it before :meth:`receive` gets it as the only frame.
        """
        with self._lock:
            expected = self._expected.get((peer, tag))
            target = expected[0].target if expected else None
        return target if target is not None and target.size == nbytes else None

    def lose(self, peer: int, reason: str) -> None:
        """Fail all messages of a peer that can be reached no more; never blocks.

        What has arrived can still be received.
        """
        with self._lock:
            self._lost.setdefault(peer, reason)
            self._fail(reason, peer)

    def _end(self) -> None:
        with self._lock:
            # after an abort the memory of a message in transfer is the caller's again
            in_transfer = bool(self._sent)
            self._fail("the communicator has ended")
        self._streams.close(
            0.0 if in_transfer else _CLOSING if self._lifetime.closed else _ABORTING
        )

    def _fail(self, reason: str, peer: int | None = None) -> None:
        """Fail the messages of a peer, or of all; the caller has the lock."""
        for pending in (self._expected, self._sent, self._unsent):
            for place in [place for place in pending if peer in (None, place[0])]:
                for entry in pending.pop(place):
                    message = entry[1] if isinstance(entry, tuple) else entry
                    message.fail(reason)

    def _post_message(self, verb: Verb, peer: int, data: Buffer, tag: int, what: str) -> Posted:
        if not isinstance(data, np.ndarray):
            raise ValueError("expected a buffer on the host, got one on a GPU")
        place = peer, tag
        message = Packet(what, self, data if verb == "recv" else None)
        with self._lock:
            self._lifetime.check()
            arrived = take_first(self._arrived, place) if verb == "recv" else None
            if arrived is not None:
                message.end(arrived)
            elif peer in self._lost:
                message.fail(self._lost[peer])
            elif verb == "send":
                self._unsent[place].append((data, message))
                self._send(place)
            else:
                self._expected[place].append(message)
                if data.size > _AT_ONCE:
                    self._streams.send(peer, Kind.READY, tag, None)
        return message

    def _send(self, place: Place) -> None:
        """Send messages in order, as far as the peer is ready; the caller has the lock."""
        peer, tag = place
        unsent = self._unsent.get(place)
        while unsent:
            data, message = unsent[0]
            if data.size <= _AT_ONCE:
                self._streams.send(peer, Kind.DATA, tag, data.tobytes())
                message.end()
            elif self._ready[place]:
                self._ready[place] -= 1
                self._sent[place].append(message)
                self._streams.send(peer, Kind.DATA, tag, memoryview(data))
            else:
                return
            unsent.popleft()
        self._unsent.pop(place, None)
        if not self._ready[place]:
            del self._ready[place]


def join(
    store: Store,
    *,
    rank: int,
    size: int,
    timeout: float,
    streams: Streams,
    lifetime: Lifetime,
) -> StreamComm:
    """Connect as one of ``size`` ranks, all of which call this at the same time.

    ``store`` is for these ranks only. Other ranks are awaited for ``timeout`` seconds. Connecting
    ends if ``lifetime`` is aborted.
    """
    comm = StreamComm(rank, size, streams)
    try:
        lifetime.adopt(comm._lifetime)
        ranks: dict[str, Any] = {"rank": rank, "size": size, "lifetime": lifetime}
        streams.open(rank, meet(store, "streams", streams.address, **ranks, limit=timeout), comm)
        comm.barrier()
    except BaseException:
        comm.abort("it did not connect")
        streams.close(0.0)  # an abort before may have missed streams that opened meanwhile
        raise
    return comm
