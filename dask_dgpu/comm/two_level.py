r"""Collectives in two levels, for hosts whose links are slower than those within: [1]_.

Each rank has a *relay* on every host, which in an all-to-all joins what the host has for it::

    host 0    0   1   2
               \  |  /   within a host
    relay        1
                 |      between hosts
    host 1       4

Between two hosts, a rank gets one message instead of one from each rank of the other host, and a
host sends and gets each byte once: no algorithm sends fewer bytes between hosts. Within a host
every byte travels once more. An all-reduce, which is small in programs, goes by the first rank of
each host.

References
----------
.. [1] J. L. Traff and A. Rougier, "MPI collectives and datatypes for hierarchical all-to-all
   communication", EuroMPI/ASIA (2014).
"""

# The protocol documents the methods.
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import numpy as np

from dask_dgpu.comm.common import (
    check_all_to_all,
    check_reduction,
    flat,
    pieces,
    reduce_parts,
)
from dask_dgpu.comm.point_to_point import PointToPointComm, Steps
from dask_dgpu.comm.protocol import Buffer, Comm, Counts, Messages, Reduction, Window, Work

Post = Callable[[Messages, Messages], Steps]


def two_level(comm: Comm, hosts: Sequence[int]) -> Comm:
    """Return a communicator whose collectives run in two levels, if that is of use.

    ``hosts`` has the number of ranks on each host; ranks are numbered host by host. Transports
    with collectives of their own, such as NCCL, know their topology and stay as they are.

    Raises
    ------
    ValueError
        If the hosts have another number of ranks than the communicator, or one has none.
    """
    if min(hosts, default=1) < 1 or (hosts and sum(hosts) != comm.size):
        raise ValueError(f"expected hosts of {comm.size} ranks, each of one or more, got {hosts}")
    if len(hosts) < 2 or max(hosts) < 2 or not isinstance(comm, PointToPointComm):
        return comm
    return TwoLevelComm(comm, hosts)


class Relays:
    """The hosts of the ranks, and the relay of each rank on every host, seen by one rank.

    On its own host a rank is its own relay. ``members`` are the ranks of each host, ``mine`` those
    of this rank's ``host``, and ``targets`` the ranks of other hosts whose relay each of these is.
    """

    def __init__(self, hosts: Sequence[int], rank: int) -> None:
        stops = list(accumulate(hosts))
        self.rank = rank
        self.members = [range(stop - n, stop) for n, stop in zip(hosts, stops, strict=True)]
        self.host = next(at for at, ranks in enumerate(self.members) if rank in ranks)
        self.mine = self.members[self.host]
        self.targets: dict[int, list[int]] = {rank: [] for rank in self.mine}
        for target in range(stops[-1]):
            if target not in self.mine:
                self.targets[self.of(self.host, target)].append(target)

    def of(self, host: int, target: int) -> int:
        """Return the relay of a rank on a host."""
        members = self.members[host]
        return target if target in members else members[target % len(members)]

    @property
    def far(self) -> list[tuple[int, range]]:
        """The relay of this rank on each other host, and the ranks of that host."""
        hosts = enumerate(self.members)
        return [(self.of(at, self.rank), ranks) for at, ranks in hosts if at != self.host]


class TwoLevelComm:
    """One rank whose collectives run in two levels over another communicator; see :class:`Comm`.

    A reduction adds the ranks of a host in their order, then the hosts in theirs. So its bits
    depend on the hosts, and are the same on every rank. Point-to-point messages and windows are
    those of the other communicator.
    """

    def __init__(self, inner: PointToPointComm, hosts: Sequence[int]) -> None:
        self.rank, self.size = inner.rank, inner.size
        self.hosts = tuple(hosts)
        self._inner = inner
        self._relays = Relays(hosts, inner.rank)

    def exchange(self, sends: Messages, recvs: Messages) -> Work:
        return self._inner.exchange(sends, recvs)

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        check_reduction(buffer, op)
        return self._start("all_reduce", self._all_reduce(flat(buffer), op))

    def all_to_all(self, out: Buffer, out_counts: Counts, whole: Buffer, in_counts: Counts) -> Work:
        check_all_to_all(out, out_counts, whole, in_counts, self.rank, self.size)
        steps = self._all_to_all(flat(out), out_counts, flat(whole), in_counts)
        return self._start("all_to_all", steps)

    def barrier(self) -> None:
        self.all_reduce(np.zeros(1, np.uint8)).wait()

    def window(self, buffers: Sequence[Buffer]) -> Window | None:
        return self._inner.window(buffers)

    def check(self) -> None:
        self._inner.check()

    def abort(self, reason: str) -> None:
        self._inner.abort(reason)

    def close(self) -> None:
        self._inner.close()

    def _start(self, name: str, steps: Steps) -> Work:
        # of several rounds: a relay must go on while its caller does something else
        return self._inner._start(name, steps)

    def _post(self) -> Post:
        """Return what posts the messages of one collective."""
        return partial(self._inner._post, tag=self._inner._next_tag())

    def _all_reduce(self, buffer: Buffer, op: Reduction) -> Steps:
        """Reduce to the first rank of each host, then to the first of all, and send it back."""
        post, leaders = self._post(), [ranks[0] for ranks in self._relays.members]
        groups = [list(self._relays.mine), *([leaders] if self.rank in leaders else ())]
        for head, *others in groups:
            if self.rank == head:
                boxes = _boxes(buffer, dict.fromkeys(others, buffer.size))
                yield from post([], list(boxes.items()))
                reduce_parts(buffer, [buffer, *boxes.values()], op)
            else:
                yield from post([(head, buffer)], [])
        for head, *others in reversed(groups):
            if self.rank == head:
                yield from post([(rank, buffer) for rank in others], [])
            else:
                yield from post([], [(head, buffer)])

    def _all_to_all(
        self, out: Buffer, out_counts: Counts, whole: Buffer, in_counts: Counts
    ) -> Steps:
        """Send all that is for other hosts to relays on this host, which join it by target."""
        relays, targets, post = self._relays, self._relays.targets, self._post()
        parts, found = pieces(whole, in_counts), pieces(out, out_counts)
        counts = {q: np.empty(len(targets[self.rank]), np.int64) for q in relays.mine}
        told = {
            relay: np.array([in_counts[q] for q in each], np.int64)
            for relay, each in targets.items()
        }
        yield from post(list(told.items()), list(counts.items()))
        lengths = {rank: each.tolist() for rank, each in counts.items()}
        boxes = _boxes(whole, {rank: sum(each) for rank, each in lengths.items()})
        joined = {
            relay: _joined([parts[q] for q in each]) if each else whole[:0]
            for relay, each in targets.items()
        }
        yield from post(
            [(rank, each) for rank in relays.mine for each in (parts[rank], joined[rank])],
            [(rank, each) for rank in relays.mine for each in (found[rank], boxes[rank])],
        )
        del joined
        cut = [pieces(boxes[rank], lengths[rank]) for rank in relays.mine]
        sends = [
            (target, _joined([each[at] for each in cut]))
            for at, target in enumerate(targets[self.rank])
        ]
        stops = [0, *accumulate(out_counts)]
        receives = [(relay, out[stops[far[0]] : stops[far[-1] + 1]]) for relay, far in relays.far]
        yield from post(sends, receives)


def _boxes(like: Buffer, sizes: dict[int, int]) -> dict[int, Buffer]:
    """Allocate a flat array of a dtype for each rank."""
    return {rank: np.empty_like(like, shape=size) for rank, size in sizes.items()}


def _joined(parts: Sequence[Buffer]) -> Buffer:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
