"""Count what a program sends, to hold it against what its plan says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np

from dask_dgpu.comm.buffers import even_counts
from dask_dgpu.comm.protocol import Buffer, Comm, Reduction, Window, Work


@dataclass
class Ledger:
    """The calls of one rank, and the bytes that any algorithm must move for them.

    What counts is the data that leaves or enters the rank by the definition of
    the call, not what a transport makes of it: in a broadcast the root sends
    the buffer to every other rank; a reduction is an all-to-all of pieces, and
    an all-reduce an all-gather of the reduced pieces after it. Peers are
    numbered as in the outermost communicator; a message to oneself is no traffic.

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
    """A :class:`~dask_dgpu.comm.protocol.Comm` that writes into a ledger.

    Parameters
    ----------
    inner : Comm
        The communicator that does the work.
    xp : module, optional
        NumPy, or CuPy if ``inner`` takes CuPy arrays.

    Attributes
    ----------
    ledger : Ledger
        What was called; the communicators that ``split`` makes share it.
    """

    def __init__(
        self,
        inner: Comm,
        xp: ModuleType = np,
        *,
        _ledger: Ledger | None = None,
        _names: Sequence[int] | None = None,
    ) -> None:
        self.inner = inner
        self._xp = xp
        self.rank = inner.rank
        self.size = inner.size
        self.ledger = Ledger() if _ledger is None else _ledger
        self._names = list(range(inner.size)) if _names is None else list(_names)

    def exchange(
        self,
        sends: Sequence[tuple[int, Buffer]],
        recvs: Sequence[tuple[int, Buffer]],
    ) -> Work:
        """Send and receive a batch of messages, point to point."""
        work = self.inner.exchange(sends, recvs)
        self._record(
            "exchange",
            [(peer, buffer.nbytes) for peer, buffer in sends],
            [(peer, buffer.nbytes) for peer, buffer in recvs],
        )
        return work

    def broadcast(self, buffer: Buffer, root: int) -> Work:
        """Fill ``buffer`` on every rank with that of ``root``."""
        work = self.inner.broadcast(buffer, root)
        if self.rank == root:
            self._record("broadcast", self._to_all(buffer.nbytes), [])
        else:
            self._record("broadcast", [], [(root, buffer.nbytes)])
        return work

    def all_gather(self, out: Buffer, part: Buffer) -> Work:
        """Concatenate the ranks' equal-sized ``part`` into ``out`` (flat)."""
        work = self.inner.all_gather(out, part)
        each = self._to_all(part.nbytes)
        self._record("all_gather", each, each)
        return work

    def reduce_scatter(self, part: Buffer, whole: Buffer, op: Reduction = "sum") -> Work:
        """Reduce the ranks' ``whole`` and keep slice ``rank`` of it (flat, equal)."""
        work = self.inner.reduce_scatter(part, whole, op)
        each = self._to_all(part.nbytes)
        self._record("reduce_scatter", each, each)
        return work

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        """Reduce ``buffer`` over the ranks in place, the same bits on every rank."""
        work = self.inner.all_reduce(buffer, op)
        counts = even_counts(buffer.size, self.size)
        mine = self._to_all(counts[self.rank] * buffer.itemsize)
        theirs = [(peer, n * buffer.itemsize) for peer, n in enumerate(counts)]
        self._record("all_reduce", mine + theirs, mine + theirs)
        return work

    def all_to_all(
        self,
        out: Buffer,
        out_counts: Sequence[int],
        whole: Buffer,
        in_counts: Sequence[int],
    ) -> Work:
        """Send ``in_counts[q]`` elements of flat ``whole`` to each rank q."""
        work = self.inner.all_to_all(out, out_counts, whole, in_counts)
        self._record(
            "all_to_all",
            [(peer, n * whole.itemsize) for peer, n in enumerate(in_counts)],
            [(peer, n * out.itemsize) for peer, n in enumerate(out_counts)],
        )
        return work

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self.inner.barrier()
        self._record("barrier", [], [])

    def window(self, buffers: Sequence[Buffer]) -> Window | None:
        """Let all ranks read these buffers of each."""
        window = self.inner.window(buffers)
        self._record("window", [], [])
        return None if window is None else RecordingWindow(self, window)

    def split(self, color: int | None, key: int) -> RecordingComm | None:
        """Make one communicator of all ranks that pass the same ``color``."""
        child = self.inner.split(color, key)
        self._record("split", [], [])
        if child is None:
            return None
        names = self._ask_names(child)
        return RecordingComm(child, self._xp, _ledger=self.ledger, _names=names)

    def check(self) -> None:
        """Raise if the communicator was aborted."""
        self.inner.check()

    def abort(self, reason: str) -> None:
        """Make every pending and later call of this rank raise, children too."""
        self.inner.abort(reason)

    def close(self) -> None:
        """Release the transport, children too."""
        self.inner.close()

    def _ask_names(self, child: Comm) -> list[int]:
        """Ask who is who in ``child``, to book its peers under their first numbers."""
        names = self._xp.empty(child.size, np.int64)
        mine = self._xp.full(1, self._names[self.rank], np.int64)
        child.all_gather(names, mine).wait()
        return [int(name) for name in names]

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
        for booked, messages, pairs in (
            (ledger.sent, ledger.messages_sent, sends),
            (ledger.received, ledger.messages_received, recvs),
        ):
            for peer, nbytes in pairs:
                if peer != self.rank and nbytes:
                    booked[self._names[peer]] += nbytes
                    messages[self._names[peer]] += 1


class RecordingWindow:
    """A window whose reads are booked by the rank that reads; its owner has no part in them."""

    def __init__(self, comm: RecordingComm, inner: Window) -> None:
        self.comm = comm
        self.inner = inner

    def get(self, peer: int, which: int, part: tuple[slice, ...], target: Buffer) -> None:
        """Copy a part of a rank's buffer."""
        self.inner.get(peer, which, part, target)
        self.comm._record("get", [], [(peer, target.nbytes)])

    def close(self) -> Work:
        """Say that this rank has read all it needs."""
        self.comm._record("close", [], [])
        return self.inner.close()
