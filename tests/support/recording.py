"""Counts of the messages and bytes of a program, to compare with its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dask_dgpu.comm.common import even_counts
from dask_dgpu.comm.protocol import Buffer, Comm, Reduction, Window, Work


@dataclass
class Ledger:
    """The calls of one rank, and the bytes that any algorithm must move for them.

    It counts the data that enters or leaves the rank by the definition of the call, whatever the
    transport does. An all-reduce is an all-to-all of pieces, and each rank sends its reduced piece
    to all. Messages of a rank to itself do not count.

    Attributes
    ----------
    calls : Counter of str
        Calls of each method.
    sent, received : Counter of int
        Bytes to and from each peer.
    messages_sent, messages_received : Counter of int
        Pieces that are not empty, to and from each peer.
    """

    calls: Counter[str] = field(default_factory=Counter)
    sent: Counter[int] = field(default_factory=Counter)
    received: Counter[int] = field(default_factory=Counter)
    messages_sent: Counter[int] = field(default_factory=Counter)
    messages_received: Counter[int] = field(default_factory=Counter)

    @property
    def bytes_sent(self) -> int:
        """Bytes sent to all peers."""
        return self.sent.total()

    @property
    def bytes_received(self) -> int:
        """Bytes received from all peers."""
        return self.received.total()


class RecordingComm:
    """A :class:`~dask_dgpu.comm.protocol.Comm` that counts in a :class:`Ledger`."""

    def __init__(self, inner: Comm) -> None:
        self.inner = inner
        self.rank = inner.rank
        self.size = inner.size
        self.ledger = Ledger()

    def exchange(
        self,
        sends: Sequence[tuple[int, Buffer]],
        recvs: Sequence[tuple[int, Buffer]],
    ) -> Work:
        work = self.inner.exchange(sends, recvs)
        self._record(
            "exchange",
            [(peer, buffer.nbytes) for peer, buffer in sends],
            [(peer, buffer.nbytes) for peer, buffer in recvs],
        )
        return work

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        work = self.inner.all_reduce(buffer, op)
        counts = even_counts(buffer.size, self.size)
        mine = self._to_all(counts[self.rank] * buffer.itemsize)
        theirs = [(peer, n * buffer.itemsize) for peer, n in enumerate(counts)]
        self._record("all_reduce", mine + theirs, mine + theirs)
        return work

    def barrier(self) -> None:
        self.inner.barrier()
        self._record("barrier", [], [])

    def window(self, buffers: Sequence[Buffer]) -> Window | None:
        window = self.inner.window(buffers)
        self._record("window", [], [])
        return None if window is None else RecordingWindow(self, window)

    def check(self) -> None:
        self.inner.check()

    def abort(self, reason: str) -> None:
        self.inner.abort(reason)

    def close(self) -> None:
        self.inner.close()

    def _to_all(self, nbytes: int) -> list[tuple[int, int]]:
        return [(peer, nbytes) for peer in range(self.size)]

    def _record(
        self,
        name: str,
        sends: Sequence[tuple[int, int]],
        recvs: Sequence[tuple[int, int]],
    ) -> None:
        ledger = self.ledger
        ledger.calls[name] += 1
        for nbytes_by_peer, messages, pairs in (
            (ledger.sent, ledger.messages_sent, sends),
            (ledger.received, ledger.messages_received, recvs),
        ):
            for peer, nbytes in pairs:
                if peer != self.rank and nbytes:
                    nbytes_by_peer[peer] += nbytes
                    messages[peer] += 1


class RecordingWindow:
    """A window that counts its reads for the reading rank."""

    def __init__(self, comm: RecordingComm, inner: Window) -> None:
        self.comm = comm
        self.inner = inner

    def get(self, peer: int, which: int, part: tuple[slice, ...], target: Buffer) -> None:
        self.inner.get(peer, which, part, target)
        self.comm._record("get", [], [(peer, target.nbytes)])

    def close(self) -> Work:
        self.comm._record("close", [], [])
        return self.inner.close()
