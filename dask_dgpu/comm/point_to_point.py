"""All collectives, composed of ordered messages between two ranks.

A transport only posts sends and receives; this module adds the collectives, for every dtype.
Reductions run in rank order, so their bits equal those of ``local``.

A collective is a generator that posts messages, yields them, resumes once they are done, and may
post more::

    all_reduce:  all-to-all of pieces | reduce my piece | send it to all
                 ........ yield ..... | ............... | .... yield ...

The caller's thread runs it up to the first ``yield``, so messages are posted in the order of
the calls. A separate thread runs the rest, in whatever order the caller waits. A small collective
of one round has none: its rest runs in the wait, and starting a thread takes longer than the
messages.
"""

# The protocol documents the methods.
# ruff: noqa: D102

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np

from dask_dgpu.comm.common import (
    Lifetime,
    as_bytes,
    check_peers,
    check_reduction,
    even_counts,
    flat,
    own_messages,
    pieces,
    reduce_parts,
)
from dask_dgpu.comm.protocol import Buffer, Messages, Reduction, Window, Work
from dask_dgpu.errors import CommError

# Up to this many bytes one round of whole buffers is faster than two rounds of pieces.
_ONE_ROUND = 16 * 1024
# Up to this many bytes of one round, a thread costs more than it can hide.
WITHOUT_THREAD = 256 * 1024

Verb = Literal["send", "recv"]


class Posted:
    """A posted send or receive, which another thread ends: the first to do so.

    Errors call it ``what``. ``changed`` is notified of its end. An abort of the communicator must
    end it.
    """

    def __init__(self, what: str, changed: threading.Condition) -> None:
        self.what = what
        self.over = False
        self.result: Any = None
        self.fault: str | None = None
        self._changed = changed

    def wait(self) -> None:
        """Block until it is done; raise ``CommError`` if it failed."""
        self.sleep()
        self.check()

    def sleep(self) -> None:
        """Block until it is done."""
        with self._changed:
            self._changed.wait_for(lambda: self.over)

    def check(self) -> None:
        """Raise ``CommError`` if it failed."""
        if self.fault is not None:
            raise CommError(f"{self.what} failed: {self.fault}")

    def end(self, result: Any = None, fault: str | None = None) -> None:
        """Complete it, by a fault if there is one."""
        with self._changed:
            if not self.over:
                self.result, self.fault, self.over = result, fault, True
                self._changed.notify_all()

    def fail(self, reason: str) -> None:
        """Make ``wait`` raise."""
        self.end(fault=reason)


Steps = Iterator[list[Posted]]


class StepsWork:
    """A collective in progress, among the running ones of its communicator until it is over."""

    def __init__(self, comm: PointToPointComm, name: str) -> None:
        self._name = f"{name} on rank {comm.rank} of {comm.size}"
        self._lifetime = comm._lifetime
        self._running = comm._running
        self._error: CommError | None = None
        self._rest: Steps | None = None
        self._over = False
        self.ended: float | None = None

    def start(self, steps: Steps, by_thread: bool) -> None:
        """Post the first messages; a thread runs the rest, or the wait."""
        first = next(steps, [])
        rest = chain([first], steps)
        self._running.add(self)  # memory of messages must outlast them
        if not first:
            self._finish(rest, aside=True)
        elif not by_thread:
            self._rest = rest
        else:
            # A daemon: a wait inside a transport must not delay the interpreter's exit.
            run = partial(self._finish, rest, aside=True)
            thread = threading.Thread(target=run, name=self._name, daemon=True)
            thread.start()
            with self._lifetime.changed:
                self._lifetime.threads.add(thread)

    def _finish(self, steps: Steps, *, aside: bool) -> None:
        """Run the rest; only ``aside`` of its caller is its end known apart from the wait's."""
        error: CommError | None = None
        try:
            for messages in steps:
                for message in messages:
                    message.wait()
                    self._lifetime.check()
        except CommError as raised:
            error = raised
        except Exception as raised:
            error = CommError(f"{self._name} failed: {raised}")
            error.__cause__ = raised
        with self._lifetime.changed:
            self.ended = time.perf_counter() if aside else None
            self._error, self._over = error, True
            self._running.discard(self)
            self._lifetime.changed.notify_all()

    def wait(self) -> None:
        """Return when the collective is over; raise if it failed."""
        with self._lifetime.changed:
            rest, self._rest = self._rest, None
        if rest is not None:
            self._finish(rest, aside=False)
        self._lifetime.wait_for(lambda: self._over)
        if self._error is not None:
            # Our own abort explains more than the effect of a peer's end on a message.
            self._lifetime.check()
            raise self._error


class PointToPointComm(ABC):
    """A :class:`~dask_dgpu.comm.protocol.Comm` over a transport for messages.

    ``on_abort`` ends all waits of the transport, and must not block.
    """

    def __init__(self, rank: int, size: int, on_abort: Callable[[], None]) -> None:
        self.rank = rank
        self.size = size
        self._lifetime = Lifetime(on_abort)
        self._calls = 0
        self._running: set[StepsWork] = set()

    @abstractmethod
    def _post_message(self, verb: Verb, peer: int, data: Buffer, tag: int, what: str) -> Posted:
        """Post bytes, in order for one verb, peer and tag; errors call the message ``what``."""

    def exchange(self, sends: Messages, recvs: Messages) -> Work:
        check_peers([peer for peer, _ in (*sends, *recvs)], self.size)
        nbytes = sum(buffer.nbytes for _, buffer in (*sends, *recvs))
        return self._start("exchange", self._post(sends, recvs, tag=0), nbytes)

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        check_reduction(buffer, op)
        nbytes = self.size * buffer.nbytes if buffer.nbytes <= _ONE_ROUND else None
        return self._start("all_reduce", self._all_reduce(flat(buffer), op), nbytes)

    def barrier(self) -> None:
        one = np.zeros(1, np.uint8)
        received = _receive_buffers(one, self.size)
        self._start("barrier", self._swap(received, [one] * self.size), self.size).wait()

    def window(self, buffers: Sequence[Buffer]) -> Window | None:
        self._lifetime.check()
        return None

    def check(self) -> None:
        self._lifetime.check()

    def abort(self, reason: str) -> None:
        self._lifetime.abort(reason)

    def close(self) -> None:
        self._lifetime.close()

    def _describe(self, verb: Verb, peer: int) -> str:
        action = {"send": "send to", "recv": "receive from"}[verb]
        return f"rank {self.rank}'s {action} rank {peer}"

    def _start(self, name: str, steps: Steps, nbytes: int | None = None) -> Work:
        """Start a collective of one round of so many bytes, or of several rounds."""
        self._lifetime.check()
        work = StepsWork(self, name)
        work.start(steps, by_thread=nbytes is None or nbytes > WITHOUT_THREAD)
        return work

    def _next_tag(self) -> int:
        """Count the collectives, alike on all ranks; ``exchange`` uses 0."""
        self._calls = self._calls % (2**30) + 1
        return self._calls

    def _post(self, sends: Messages, recvs: Messages, tag: int) -> Steps:
        own = own_messages(self.rank, sends, recvs)
        # Receives first: an expected message needs no extra copy.
        batch: list[tuple[Verb, int, Buffer]] = [("recv", *each) for each in recvs]
        batch += [("send", *each) for each in sends]
        messages = [
            self._post_message(verb, peer, as_bytes(buffer), tag, self._describe(verb, peer))
            for verb, peer, buffer in batch
            if peer != self.rank and buffer.size
        ]
        for source, target in own:
            target[...] = source
        yield messages

    def _swap(
        self, out: Sequence[Buffer], parts: Sequence[Buffer], tag: int | None = None
    ) -> Steps:
        """Send ``parts[q]`` to each rank q and receive ``out[q]`` from it."""
        # Each rank begins with its right neighbour, so that not all send to rank 0 first.
        order = [(self.rank + step) % self.size for step in range(self.size)]
        return self._post(
            [(peer, parts[peer]) for peer in order],
            [(peer, out[peer]) for peer in reversed(order)],
            self._next_tag() if tag is None else tag,
        )

    def _all_reduce(self, buffer: Buffer, op: Reduction) -> Steps:
        tag = self._next_tag()
        if buffer.nbytes <= _ONE_ROUND:
            received = _receive_buffers(buffer, self.size)
            yield from self._swap(received, [buffer] * self.size, tag)
            reduce_parts(buffer, received, op)
        else:
            parts = pieces(buffer, even_counts(buffer.size, self.size))
            mine = parts[self.rank]
            received = _receive_buffers(mine, self.size)
            yield from self._swap(received, parts, tag)
            reduce_parts(mine, received, op)
            yield from self._swap(parts, [mine] * self.size, tag)


def _receive_buffers(piece: Buffer, size: int) -> list[Buffer]:
    """Allocate ``size`` arrays like ``piece``."""
    return list(np.empty_like(piece, shape=(size, piece.size)))
