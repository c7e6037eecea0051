"""Ranks as threads of one process: for tests, and for gangs of one process.

All ranks of a :class:`LocalHub` see each other's buffers. Each rank posts its arguments; the
last rank copies for all, without an extra thread. The hub sees the calls of all ranks, so a
program whose ranks disagree raises instead of hanging.
"""

# The protocol documents the methods.
# ruff: noqa: D102

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from dask_dgpu.comm.common import (
    Lifetime,
    check_peers,
    check_reduction,
    flat,
    reduce_parts,
    settle,
)
from dask_dgpu.comm.protocol import Buffer, Messages, Reduction, Window, Work
from dask_dgpu.errors import CommAbortedError, CommError

T = TypeVar("T")
Finish = Callable[[list[Any]], None]


class _Call:
    """A collective call: the arguments of the ranks, and the ranks that have not called it."""

    def __init__(self, what: tuple[object, ...], size: int) -> None:
        self.what = what
        self.given: list[Any] = [None] * size
        self.awaited = set(range(size))


@dataclass(eq=False)
class _Message:
    """One side of a message: its buffer, the other rank, and whether it was delivered."""

    buffer: Buffer
    peer: int
    over: bool = False


class LocalHub:
    """The shared state of the ranks of one process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lifetime = Lifetime()
        self.calls: dict[int, _Call] = {}
        self.sent: defaultdict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self.expected: defaultdict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self.ended: set[int] = set()


class _LocalWork:
    """A transfer that is done when no ranks are awaited.

    If an awaited rank has ended, the ranks' programs disagree.
    """

    ended: float | None = None  # the calls copy: nothing happens between them

    def __init__(self, comm: LocalComm, name: str, awaited: Callable[[], Collection[int]]) -> None:
        self._hub = comm.hub
        self._name = f"{name} on rank {comm.rank}"
        self._awaited = awaited

    def wait(self) -> None:
        missing: set[int] = set()

        def over() -> bool:
            missing.update(self._hub.ended.intersection(self._awaited()))
            return bool(missing) or not self._awaited()

        self._hub.lifetime.wait_for(over)
        if missing:
            self._hub.lifetime.check()
            raise CommError(f"{self._name} waits for rank {min(missing)}, whose program has ended")


class _LocalWindow:
    def __init__(self, comm: LocalComm, buffers: list[Sequence[Buffer]]) -> None:
        self._comm = comm
        self._buffers = buffers

    def get(self, peer: int, which: int, part: tuple[slice, ...], target: Buffer) -> None:
        check_peers([peer], self._comm.size)
        self._comm.check()
        target[...] = self._buffers[peer][which][part]

    def close(self) -> Work:
        settle(*_leaves(self._buffers))
        return self._comm._collect(("close",), None, lambda given: None)


class LocalComm:
    """One rank of a :class:`LocalHub`; see :class:`~dask_dgpu.comm.protocol.Comm`.

    An abort of one rank aborts all ranks of the hub.
    """

    def __init__(self, hub: LocalHub, rank: int) -> None:
        self.hub = hub
        self.rank = rank
        self.size = hub.size
        self._calls = 0

    def exchange(self, sends: Messages, recvs: Messages) -> Work:
        check_peers([peer for peer, _ in (*sends, *recvs)], self.size)
        settle(*(buffer for _, buffer in (*sends, *recvs)))
        hub, rank = self.hub, self.rank
        sent = [_Message(flat(buffer), peer) for peer, buffer in sends]
        expected = [_Message(flat(buffer), peer) for peer, buffer in recvs]
        with hub.lifetime.changed:
            hub.lifetime.check()
            for message in sent:
                hub.sent[rank, message.peer].append(message)
            for message in expected:
                hub.expected[message.peer, rank].append(message)
            pairs = {(rank, peer) for peer, _ in sends} | {(peer, rank) for peer, _ in recvs}
            for pair in pairs:
                _deliver(hub.sent[pair], hub.expected[pair])
            hub.lifetime.changed.notify_all()
        mine = [*sent, *expected]
        return _LocalWork(self, "exchange", lambda: {m.peer for m in mine if not m.over})

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        check_reduction(buffer, op)

        def finish(buffers: list[Buffer]) -> None:
            reduce_parts(buffers[0], buffers, op)
            for target in buffers[1:]:
                target[...] = buffers[0]

        what = ("all_reduce", op, buffer.size)
        return self._collect(what, flat(buffer), finish)

    def barrier(self) -> None:
        self._collect(("barrier",), None, lambda given: None).wait()

    def window(self, buffers: Sequence[Buffer]) -> Window:
        everyone: list[Sequence[Buffer]] = []

        def finish(given: list[tuple[Sequence[Buffer], list[Sequence[Buffer]]]]) -> None:
            for _, collected in given:
                collected.extend(buffers for buffers, _ in given)

        self._collect(("window",), (buffers, everyone), finish).wait()
        return _LocalWindow(self, everyone)

    def check(self) -> None:
        self.hub.lifetime.check()

    def abort(self, reason: str) -> None:
        self.hub.lifetime.abort(reason)

    def close(self) -> None:
        """Do nothing: the hub is freed with the last of its communicators."""

    def _collect(self, what: tuple[object, ...], given: Any, finish: Finish) -> Work:
        """Post this rank's arguments; the last rank finishes the call for all."""
        hub = self.hub
        number, self._calls = self._calls, self._calls + 1
        settle(*_leaves(given))
        with hub.lifetime.changed:
            hub.lifetime.check()
            call = hub.calls.setdefault(number, _Call(what, self.size))
            if call.what != what:
                reason = f"rank {self.rank} called {what}, another rank {call.what}"
                hub.lifetime.abort(reason)
                raise CommError(f"the ranks disagree: {reason}")
            call.given[self.rank] = given
            if call.awaited == {self.rank}:
                del hub.calls[number]
                finish(call.given)
                settle(*_leaves(given))
                hub.lifetime.changed.notify_all()
            call.awaited.discard(self.rank)
        return _LocalWork(self, str(what[0]), lambda: call.awaited)


def _deliver(sent: deque[_Message], expected: deque[_Message]) -> None:
    while sent and expected:
        source, target = sent.popleft(), expected.popleft()
        target.buffer[...] = source.buffer
        settle(target.buffer)
        source.over = target.over = True


def _leaves(given: Any) -> list[Any]:
    if isinstance(given, tuple | list):
        return [leaf for item in given for leaf in _leaves(item)]
    return [given]


def run_local(size: int, fn: Callable[..., T], *args: object) -> list[T]:
    """Call ``fn(comm, *args)`` on ``size`` threads, one per rank.

    If a rank raises, the others are aborted and its error is raised here. A rank waits until
    the others have called or ended. Returns the results of the ranks, in rank order.
    """
    hub = LocalHub(size)
    results: list[T | None] = [None] * size
    errors: list[BaseException] = []

    def rank_main(comm: LocalComm) -> None:
        try:
            results[comm.rank] = fn(comm, *args)
        except BaseException as error:
            errors.append(error)
            comm.abort(f"rank {comm.rank} raised {error!r}")
        finally:
            hub.ended.add(comm.rank)
            hub.lifetime.wake()

    threads = [
        threading.Thread(target=rank_main, args=(LocalComm(hub, rank),), name=f"rank-{rank}")
        for rank in range(size)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # an interrupt, above all
        hub.lifetime.abort(f"its caller raised {error!r}")
        raise
    if errors:
        real = (e for e in errors if not isinstance(e, CommAbortedError))
        raise next(real, errors[0])
    return cast("list[T]", results)
