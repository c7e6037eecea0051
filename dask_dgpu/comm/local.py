"""Ranks as threads of one process: for tests, and for gangs of one process.

All ranks of a :class:`LocalHub` see each other's buffers. Each rank posts its arguments; the
last rank copies for all. That needs no extra thread. The hub sees the calls of all ranks, so a
program whose ranks disagree raises instead of hanging.
"""

# The protocol documents the methods.
# ruff: noqa: D102

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, cast

from dask_dgpu.comm.buffers import (
    check_all_to_all,
    check_gather,
    check_peers,
    check_reduction,
    flat,
    pieces,
    reduce_parts,
    settle,
)
from dask_dgpu.comm.local_hub import Call, LocalHub, Message
from dask_dgpu.comm.protocol import Buffer, Reduction, Window, Work
from dask_dgpu.errors import CommAbortedError, CommError

T = TypeVar("T")
Finish = Callable[[list[Any]], None]


class _LocalWork:
    def __init__(self, comm: LocalComm, name: str, awaited: Callable[[], Collection[int]]) -> None:
        self._comm = comm
        self._name = name
        self._awaited = awaited

    def wait(self) -> None:
        self._comm.hub.wait(self._awaited, f"{self._name} on rank {self._comm.rank}")

    def done(self) -> bool:
        return self._comm.hub.lifetime.reason is not None or not self._awaited()


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

    def exchange(
        self,
        sends: Sequence[tuple[int, Buffer]],
        recvs: Sequence[tuple[int, Buffer]],
    ) -> Work:
        check_peers([peer for peer, _ in (*sends, *recvs)], self.size)
        settle(*(buffer for _, buffer in (*sends, *recvs)))
        hub, rank = self.hub, self.rank
        mine = []
        with hub.lifetime.changed:
            hub.lifetime.check()
            for peer, buffer in sends:
                mine.append(Message(buffer, peer))
                hub.sent[rank, peer].append(mine[-1])
            for peer, buffer in recvs:
                mine.append(Message(buffer, peer))
                hub.expected[peer, rank].append(mine[-1])
            pairs = {(rank, peer) for peer, _ in sends}
            for pair in pairs | {(peer, rank) for peer, _ in recvs}:
                self._deliver(hub.sent[pair], hub.expected[pair])
            hub.lifetime.changed.notify_all()
        return _LocalWork(self, "exchange", lambda: {m.peer for m in mine if not m.over})

    def _deliver(self, sent: deque[Message], expected: deque[Message]) -> None:
        while sent and expected:
            source, target = sent.popleft(), expected.popleft()
            target.buffer[...] = source.buffer
            settle(target.buffer)
            source.over = target.over = True

    def broadcast(self, buffer: Buffer, root: int) -> Work:
        check_peers([root], self.size)

        def finish(buffers: list[Buffer]) -> None:
            for rank, target in enumerate(buffers):
                if rank != root:
                    target[...] = buffers[root]

        return self._collect(("broadcast", root), flat(buffer), finish)

    def all_gather(self, out: Buffer, part: Buffer) -> Work:
        check_gather(out, part, self.size)

        def finish(given: list[tuple[Buffer, Buffer]]) -> None:
            for whole, _ in given:
                counts = [part.size for _, part in given]
                for target, (_, source) in zip(pieces(whole, counts), given, strict=True):
                    target[...] = source

        what = ("all_gather", part.size)
        return self._collect(what, (flat(out), flat(part)), finish)

    def reduce_scatter(self, part: Buffer, whole: Buffer, op: Reduction = "sum") -> Work:
        check_gather(whole, part, self.size)
        check_reduction(whole, op)

        def finish(given: list[tuple[Buffer, Buffer]]) -> None:
            cut = [pieces(whole, [part.size] * self.size) for part, whole in given]
            for rank, (target, _) in enumerate(given):
                reduce_parts(target, [parts[rank] for parts in cut], op)

        what = ("reduce_scatter", op, part.size)
        return self._collect(what, (flat(part), flat(whole)), finish)

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        check_reduction(buffer, op)

        def finish(buffers: list[Buffer]) -> None:
            reduce_parts(buffers[0], buffers, op)
            for target in buffers[1:]:
                target[...] = buffers[0]

        what = ("all_reduce", op, buffer.size)
        return self._collect(what, flat(buffer), finish)

    def all_to_all(
        self,
        out: Buffer,
        out_counts: Sequence[int],
        whole: Buffer,
        in_counts: Sequence[int],
    ) -> Work:
        check_all_to_all(out, out_counts, whole, in_counts, self.rank, self.size)

        def finish(given: list[tuple[list[Buffer], list[Buffer]]]) -> None:
            for rank, (targets, _) in enumerate(given):
                for target, (_, parts) in zip(targets, given, strict=True):
                    target[...] = parts[rank]

        given = pieces(flat(out), out_counts), pieces(flat(whole), in_counts)
        return self._collect(("all_to_all",), given, finish)

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
            call = hub.calls.setdefault(number, Call(what, self.size))
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


def _leaves(given: Any) -> list[Any]:
    if isinstance(given, tuple | list):
        return [leaf for item in given for leaf in _leaves(item)]
    return [given]


def run_local(
    size: int, fn: Callable[..., T], *args: object, limit: float | None = None
) -> list[T]:
    """Call ``fn(comm, *args)`` on ``size`` threads, one per rank.

    If a rank raises, the others are aborted and its error is raised here. A rank waits until
    the others have called or ended, at most ``limit`` seconds if that is given.

    Returns
    -------
    list
        The results of the ranks, in rank order.
    """
    hub = LocalHub(size, limit)
    results: list[T | None] = [None] * size
    errors: list[BaseException] = []

    def rank_main(comm: LocalComm) -> None:
        try:
            results[comm.rank] = fn(comm, *args)
        except BaseException as error:
            errors.append(error)
            comm.abort(f"rank {comm.rank} raised {error!r}")
        finally:
            hub.end(comm.rank)

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
