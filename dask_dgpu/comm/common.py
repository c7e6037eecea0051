"""The common parts of all transports: the end of a communicator, and checks of buffers.

Every transport has one :class:`Lifetime` per communicator and waits on it alone, so that an
abort from any thread wakes all waiting threads at once.

The functions on buffers use only NumPy's ufuncs and the array's own methods. CuPy arrays support
both, so only :func:`settle` imports CuPy.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np

from dask_dgpu.comm.protocol import Buffer, Comm, Counts, Messages, Reduction, Work
from dask_dgpu.errors import CommAbortedError

K = TypeVar("K")
V = TypeVar("V")

_CLOSED = "it was closed"

_UFUNCS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class Lifetime:
    """Whether a communicator may still be used, and waiting for its transfers.

    The aborting thread calls ``on_abort`` once, with no lock held; it must not block. ``threads``
    is a set for threads that end soon after the communicator.
    """

    def __init__(
        self,
        on_abort: Callable[[], None] | None = None,
        threads: weakref.WeakSet[threading.Thread] | None = None,
    ) -> None:
        self.changed = threading.Condition()
        self.threads: weakref.WeakSet[threading.Thread] = (
            weakref.WeakSet() if threads is None else threads
        )
        self.reason: str | None = None
        self._on_abort = on_abort
        self._children: weakref.WeakSet[Lifetime] = weakref.WeakSet()

    def adopt(self, child: Lifetime) -> None:
        """Abort ``child`` together with this one."""
        with self.changed:
            self._children.add(child)
            reason = self.reason
        if reason is not None:
            child.abort(reason)

    @property
    def closed(self) -> bool:
        """Whether it was closed before any abort, so its transfers may still arrive."""
        return self.reason is _CLOSED

    def close(self) -> None:
        """End it, unless it has ended, because nobody needs it any more."""
        self.abort(_CLOSED)

    def abort(self, reason: str) -> None:
        """End it, children too; only the first reason is kept."""
        with self.changed:
            children = list(self._children)
            first = self.reason is None
            if first:
                self.reason = reason
                self.changed.notify_all()
        if first and self._on_abort is not None:
            self._on_abort()
        for child in children:
            child.abort(reason)

    def check(self) -> None:
        """Raise if it has ended."""
        if self.reason is not None:
            raise CommAbortedError(f"the communicator was aborted: {self.reason}")

    def wake(self) -> None:
        """Make all waiting threads test their condition again."""
        with self.changed:
            self.changed.notify_all()

    def wait_for(self, ready: Callable[[], bool], limit: float | None = None) -> bool:
        """Wait until ``ready()``; the thread that makes it true notifies ``changed``.

        Returns ``False`` after ``limit`` seconds. Raises if it ends first.
        """
        with self.changed:
            self.changed.wait_for(lambda: ready() or self.reason is not None, limit)
            if not ready():
                self.check()
                return False
        return True


def take_first(waiting: dict[K, deque[V]], key: K) -> V | None:
    """Remove and return the first entry of a key, ``None`` without one."""
    entries = waiting.get(key)
    if not entries:
        return None
    first = entries.popleft()
    if not entries:
        del waiting[key]
    return first


def flat(buffer: Buffer) -> Buffer:
    """View a C-contiguous array as one-dimensional."""
    if not buffer.flags.c_contiguous:
        raise ValueError(f"expected a C-contiguous buffer, got strides {buffer.strides}")
    return buffer.reshape(-1)


def contiguous(buffer: Buffer) -> Buffer:
    """Return a buffer in C order without gaps: a copy if it is not."""
    return buffer if buffer.flags.c_contiguous else buffer.copy(order="C")


def as_bytes(buffer: Buffer) -> Buffer:
    """View a C-contiguous array of any dtype as its bytes."""
    return flat(buffer).view(np.uint8)


def settle(*buffers: Buffer) -> None:
    """Wait until the caller's stream has finished with the buffers."""
    if any(hasattr(buffer, "__cuda_array_interface__") for buffer in buffers):
        import cupy

        cupy.cuda.get_current_stream().synchronize()


def pieces(buffer: Buffer, counts: Counts) -> list[Buffer]:
    """Cut a one-dimensional array into views of ``counts`` elements."""
    stops = list(accumulate(counts))
    return [buffer[stop - n : stop] for n, stop in zip(counts, stops, strict=True)]


def even_counts(total: int, parts: int) -> list[int]:
    """Divide ``total`` elements as evenly as integers allow, larger parts first."""
    each, rest = divmod(total, parts)
    return [each + (part < rest) for part in range(parts)]


def exchange(
    comm: Comm, out: Buffer, out_counts: Counts, inbox: Buffer, in_counts: Counts
) -> Work | None:
    """Exchange parts of flat buffers, in the order of ranks; ``None`` if this rank has none.

    Counts are elements. Ranks without messages for each other do not wait for each other. Each
    sends to the next rank first and receives from the previous one first, so that they do not all
    send to rank 0. A rank may send to itself.
    """

    def messages(buffer: Buffer, counts: Counts, way: int) -> list[tuple[int, Buffer]]:
        stops = list(accumulate(counts))
        peers = [(comm.rank + way * step) % comm.size for step in range(comm.size)]
        return [(p, buffer[stops[p] - counts[p] : stops[p]]) for p in peers if counts[p]]

    sends, receives = messages(out, out_counts, 1), messages(inbox, in_counts, -1)
    return comm.exchange(sends, receives) if sends or receives else None


def exchange_now(
    comm: Comm, out: Buffer, out_counts: Counts, inbox: Buffer, in_counts: Counts
) -> None:
    """Exchange as :func:`exchange`, and wait."""
    work = exchange(comm, out, out_counts, inbox, in_counts)
    if work is not None:
        work.wait()


def own_messages(rank: int, sends: Messages, recvs: Messages) -> list[tuple[Buffer, Buffer]]:
    """Return source and target of the messages of a batch from a rank to itself."""
    sources = [flat(buffer) for peer, buffer in sends if peer == rank]
    targets = [flat(buffer) for peer, buffer in recvs if peer == rank]
    sizes = [source.size for source in sources]
    if sizes != [target.size for target in targets]:
        raise ValueError(f"rank {rank} does not receive its own messages of {sizes} elements")
    return list(zip(sources, targets, strict=True))


def check_peers(peers: Sequence[int], size: int) -> None:
    """Refuse ranks that do not exist."""
    for peer in peers:
        if not 0 <= peer < size:
            raise ValueError(f"expected a rank from 0 to {size - 1}, got {peer}")


def check_reduction(buffer: Buffer, op: Reduction) -> None:
    """Refuse an unknown reduction, and the minimum or maximum of complex numbers."""
    if op not in _UFUNCS:
        raise ValueError(f"expected a reduction of {sorted(_UFUNCS)}, got {op!r}")
    if op != "sum" and buffer.dtype.kind == "c":
        raise ValueError(f"complex numbers have no {op}")


def reduce_parts(out: Buffer, parts: Sequence[Buffer], op: Reduction) -> None:
    """Reduce ``parts`` into ``out``, from the first to the last.

    The order is fixed, so the bits of the result depend only on the parts. ``out`` may be the
    first part, but no other. For bool, the sum and the maximum are "or", the minimum is "and".
    """
    if out is not parts[0]:
        out[...] = parts[0]
    for part in parts[1:]:
        _UFUNCS[op](out, part, out=out)
