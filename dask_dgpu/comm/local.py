"""Ranks as threads of one process: for tests, and for gangs of one process.

All ranks of a :class:`LocalHub` see each other's buffers, so nothing is sent.
Each rank posts its arguments; whoever comes last does the copies for all.
That needs no thread of its own, and since the hub sees what every rank calls, a
rank program whose ranks disagree is told so instead of hanging.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
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
from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.comm.protocol import Buffer, Reduction, Window, Work
from dask_dgpu.errors import CommAbortedError, CommError

T = TypeVar("T")
Finish = Callable[[list[Any]], None]


class _Call:
    """One collective call: the arguments of the ranks that have come."""

    def __init__(self, what: tuple[object, ...], size: int) -> None:
        self.what = what
        self.given: list[Any] = [None] * size
        self.awaited = set(range(size))
        self.over = False


class _Message:
    """One side of a message: its buffer, and whether it went over."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = flat(buffer)
        self.over = False


class _LocalWork:
    def __init__(self, comm: LocalComm, name: str, ready: Callable[[], bool]) -> None:
        self._comm = comm
        self._name = name
        self._ready = ready

    def wait(self) -> None:
        hub = self._comm.hub
        phase = f"{self._name} on rank {self._comm.rank}"
        hub.lifetime.wait_for(self._ready, hub.timeout, phase)

    def done(self) -> bool:
        return self._comm.hub.lifetime.reason is not None or self._ready()


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


class LocalHub:
    """What the ranks of one process share.

    Parameters
    ----------
    size : int
        Number of ranks.
    timeout : float, optional
        Seconds after which a wait raises.
    """

    def __init__(self, size: int, timeout: float = 60.0) -> None:
        self.size = size
        self.timeout = timeout
        self.lifetime = Lifetime()
        self.calls: dict[int, _Call] = {}
        self.sent: defaultdict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self.asked: defaultdict[tuple[int, int], deque[_Message]] = defaultdict(deque)

    def comms(self) -> list[LocalComm]:
        """Return the communicators, one a rank."""
        return [LocalComm(self, rank) for rank in range(self.size)]


class LocalComm:
    """One rank of a :class:`LocalHub`; see :class:`~dask_dgpu.comm.protocol.Comm`.

    The ranks share their fate: a rank that aborts, aborts all of its hub.
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
        """Send and receive a batch of messages, point to point."""
        check_peers([peer for peer, _ in (*sends, *recvs)], self.size)
        settle(*(buffer for _, buffer in (*sends, *recvs)))
        hub, rank = self.hub, self.rank
        mine = []
        with hub.lifetime.changed:
            hub.lifetime.check()
            for peer, buffer in sends:
                mine.append(_Message(buffer))
                hub.sent[rank, peer].append(mine[-1])
            for peer, buffer in recvs:
                mine.append(_Message(buffer))
                hub.asked[peer, rank].append(mine[-1])
            pairs = {(rank, peer) for peer, _ in sends}
            for pair in pairs | {(peer, rank) for peer, _ in recvs}:
                self._deliver(hub.sent[pair], hub.asked[pair])
            hub.lifetime.changed.notify_all()
        return _LocalWork(self, "exchange", lambda: all(m.over for m in mine))

    def _deliver(self, sent: deque[_Message], asked: deque[_Message]) -> None:
        while sent and asked:
            source, target = sent.popleft(), asked.popleft()
            target.buffer[...] = source.buffer
            settle(target.buffer)
            source.over = target.over = True

    def broadcast(self, buffer: Buffer, root: int) -> Work:
        """Fill ``buffer`` on every rank with that of ``root``."""
        check_peers([root], self.size)

        def finish(buffers: list[Buffer]) -> None:
            for rank, target in enumerate(buffers):
                if rank != root:
                    target[...] = buffers[root]

        return self._collect(("broadcast", root), flat(buffer), finish)

    def all_gather(self, out: Buffer, part: Buffer) -> Work:
        """Concatenate the ranks' equal-sized ``part`` into ``out`` (flat)."""
        check_gather(out, part, self.size)

        def finish(given: list[tuple[Buffer, Buffer]]) -> None:
            for whole, _ in given:
                counts = [part.size for _, part in given]
                for target, (_, source) in zip(pieces(whole, counts), given, strict=True):
                    target[...] = source

        what = ("all_gather", part.size)
        return self._collect(what, (flat(out), flat(part)), finish)

    def reduce_scatter(self, part: Buffer, whole: Buffer, op: Reduction = "sum") -> Work:
        """Reduce the ranks' ``whole`` and keep slice ``rank`` of it (flat, equal)."""
        check_gather(whole, part, self.size)
        check_reduction(whole, op)

        def finish(given: list[tuple[Buffer, Buffer]]) -> None:
            cut = [pieces(whole, [part.size] * self.size) for part, whole in given]
            for rank, (target, _) in enumerate(given):
                reduce_parts(target, [parts[rank] for parts in cut], op)

        what = ("reduce_scatter", op, part.size)
        return self._collect(what, (flat(part), flat(whole)), finish)

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        """Reduce ``buffer`` over the ranks in place, the same bits on every rank."""
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
        """Send ``in_counts[q]`` elements of flat ``whole`` to each rank q."""
        check_all_to_all(out, out_counts, whole, in_counts, self.rank, self.size)

        def finish(given: list[tuple[list[Buffer], list[Buffer]]]) -> None:
            for rank, (targets, _) in enumerate(given):
                for target, (_, parts) in zip(targets, given, strict=True):
                    target[...] = parts[rank]

        given = pieces(flat(out), out_counts), pieces(flat(whole), in_counts)
        return self._collect(("all_to_all",), given, finish)

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._collect(("barrier",), None, lambda given: None).wait()

    def window(self, buffers: Sequence[Buffer]) -> Window:
        """Let all ranks read these buffers of each."""
        everyone: list[Sequence[Buffer]] = []

        def finish(given: list[tuple[Sequence[Buffer], list[Sequence[Buffer]]]]) -> None:
            for _, heard in given:
                heard.extend(buffers for buffers, _ in given)

        self._collect(("window",), (buffers, everyone), finish).wait()
        return _LocalWindow(self, everyone)

    def split(self, color: int | None, key: int) -> LocalComm | None:
        """Make one communicator of all ranks that pass the same ``color``."""
        new: list[LocalComm | None] = [None]

        def finish(given: list[tuple[int | None, int, list[LocalComm | None]]]) -> None:
            for shared in {color for color, *_ in given if color is not None}:
                members = [r for r, (color, *_) in enumerate(given) if color == shared]
                members.sort(key=lambda rank: (given[rank][1], rank))
                hub = LocalHub(len(members), self.hub.timeout)
                self.hub.lifetime.adopt(hub.lifetime)
                for rank, comm in zip(members, hub.comms(), strict=True):
                    given[rank][2][0] = comm

        self._collect(("split",), (color, key, new), finish).wait()
        return new[0]

    def check(self) -> None:
        """Raise if the communicator was aborted."""
        self.hub.lifetime.check()

    def abort(self, reason: str) -> None:
        """Make every pending and later call of the hub's ranks raise."""
        self.hub.lifetime.abort(reason)

    def close(self) -> None:
        """Do nothing: the hub is freed with the last of its communicators."""

    def _collect(self, what: tuple[object, ...], given: Any, finish: Finish) -> Work:
        """Post this rank's arguments; the last rank to come finishes for all."""
        hub = self.hub
        number, self._calls = self._calls, self._calls + 1
        settle(*_leaves(given))
        with hub.lifetime.changed:
            hub.lifetime.check()
            call = hub.calls.setdefault(number, _Call(what, self.size))
            if call.what != what:
                reason = f"rank {self.rank} called {what} where another {call.what}"
                hub.lifetime.abort(reason)
                raise CommError(f"The ranks disagree: {reason}")
            call.given[self.rank] = given
            call.awaited.discard(self.rank)
            if not call.awaited:
                del hub.calls[number]
                finish(call.given)
                settle(*_leaves(given))
                call.over = True
                hub.lifetime.changed.notify_all()
        return _LocalWork(self, str(what[0]), lambda: call.over)


def _leaves(given: Any) -> list[Any]:
    if isinstance(given, tuple | list):
        return [leaf for item in given for leaf in _leaves(item)]
    return [given]


def run_local(size: int, fn: Callable[..., T], *args: object, timeout: float = 60.0) -> list[T]:
    """Call ``fn(comm, *args)`` on ``size`` threads, one a rank.

    When a rank raises, the others are aborted and its error is raised here.

    Returns
    -------
    list
        What each rank returned, in rank order.
    """
    comms = LocalHub(size, timeout).comms()
    results: list[T | None] = [None] * size
    errors: list[BaseException] = []

    def rank_main(comm: LocalComm) -> None:
        try:
            results[comm.rank] = fn(comm, *args)
        except BaseException as error:
            errors.append(error)
            comm.abort(f"rank {comm.rank} raised {error!r}")

    threads = [
        threading.Thread(target=rank_main, args=(comm,), name=f"rank-{comm.rank}") for comm in comms
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        real = (e for e in errors if not isinstance(e, CommAbortedError))
        raise next(real, errors[0])
    return cast("list[T]", results)
