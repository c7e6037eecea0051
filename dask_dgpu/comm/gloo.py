"""Ranks as processes with NumPy arrays, over gloo's TCP transport.

torch's gloo group is made directly, beside the default group of
``torch.distributed`` and invisible to it, and used for its messages alone; see
:mod:`dask_dgpu.comm.point_to_point` for why.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed

from dask_dgpu.comm.point_to_point import Message, PointToPointComm
from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.comm.rendezvous import KeyValueStore, meet_to_split
from dask_dgpu.errors import CommError

# Much of what is used here has no stubs, or other stubs from version to version.
dist: Any = torch.distributed

# The tag of messages that are never sent.
_NO_TAG = 2**31 - 1


class _Writable:
    """Show read-only memory as writable: torch warns of an array that is not."""

    def __init__(self, array: Buffer) -> None:
        address = (array.ctypes.data, False)
        self.__array_interface__ = {**array.__array_interface__, "data": address}
        self._owner = array


class _GlooMessage:
    def __init__(self, work: Any, what: str) -> None:
        self._work = work
        self._what = what

    def wait(self, seconds: float) -> None:
        late = time.monotonic() + seconds
        try:
            self._work.wait(timedelta(seconds=seconds))
        except RuntimeError as error:
            if time.monotonic() >= late:
                text = f"{self._what} did not finish within the time limit"
            else:
                text = f"{self._what} failed: the peer is lost"
            raise CommError(text) from error


class GlooComm(PointToPointComm):
    """One rank over gloo; see :class:`~dask_dgpu.comm.protocol.Comm`.

    Parameters
    ----------
    store : torch.distributed.Store
        The store of these ranks alone: a prefix used once.
    rank, size : int
        Which rank of how many this is. All of them make theirs at the same time.
    host : str
        Address or name of this rank's host, to listen on.
    timeout : float
        Seconds after which a wait raises.
    """

    def __init__(
        self, store: KeyValueStore, *, rank: int, size: int, host: str, timeout: float
    ) -> None:
        super().__init__(rank, size, timeout, self._start_to_disconnect)
        self._store = store
        self._host = host
        self._splits = 0
        self._children: list[GlooComm] = []
        self._group: Any = _make_group(store, rank, size, host, timeout)

    def split(self, color: int | None, key: int) -> GlooComm | None:
        """Make one communicator of all ranks that pass the same ``color``."""
        self._lifetime.check()
        self._splits += 1
        name = f"split-{self._splits}"
        members = meet_to_split(
            self._store,
            name,
            color,
            key,
            rank=self.rank,
            size=self.size,
            timeout=self.timeout,
            lifetime=self._lifetime,
        )
        if not members:
            return None
        child = GlooComm(
            dist.PrefixStore(f"{name}-{color}", self._store),
            rank=members.index(self.rank),
            size=len(members),
            host=self._host,
            timeout=self.timeout,
        )
        self._lifetime.adopt(child._lifetime)
        # Held until closed, for a group must not be freed by the garbage collector.
        self._children = [c for c in self._children if c._group is not None] + [child]
        return child

    def close(self) -> None:
        """Release the transport, children too; never blocks, even if peers are gone."""
        for child in self._children:
            child.close()
        self._children.clear()
        self._lifetime.abort("it was closed")
        group, self._group = [self._group], None
        # Freeing a group joins its threads; 13 s were seen after a peer's death. No
        # daemon, for one that an exiting interpreter stops in C++ ends the process.
        threading.Thread(target=self._free, args=(group,), name="gloo-close").start()

    def _free(self, group: list[Any]) -> None:
        for thread in list(self._threads):
            thread.join(self.timeout)
        group.clear()

    def _start_to_disconnect(self) -> None:
        if self._group is not None and self.size > 1:
            args = (self._group, (self.rank + 1) % self.size)
            threading.Thread(target=_disconnect, args=args, name="gloo-abort").start()

    def _post_send(self, peer: int, data: Buffer, tag: int) -> Message:
        if not data.flags.writeable:
            data = np.asarray(_Writable(data))
        return self._post_with(self._group.send, data, peer, tag, "send to")

    def _post_recv(self, peer: int, data: Buffer, tag: int) -> Message:
        return self._post_with(self._group.recv, data, peer, tag, "receive from")

    def _post_with(self, post: Any, data: Buffer, peer: int, tag: int, verb: str) -> Message:
        what = f"Rank {self.rank}'s {verb} rank {peer}"
        try:
            return _GlooMessage(post([torch.from_numpy(data)], peer, tag), what)
        except RuntimeError as error:
            raise CommError(f"{what} failed: the peer is lost") from error


def _disconnect(group: Any, peer: int) -> None:
    """End all waits of a group.

    gloo's own ``abort`` leaves them waiting. A receive that runs out of time
    closes every connection of its group, so this receives what nobody sends.
    """
    try:
        nothing = group.recv([torch.empty(1)], peer, _NO_TAG)
        nothing.wait(timedelta(milliseconds=1))
    except RuntimeError:
        pass


def _make_group(store: KeyValueStore, rank: int, size: int, host: str, timeout: float) -> Any:
    gloo = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._threads = 1  # they serve gloo's own collectives, which we do not call
    options._timeout = timedelta(seconds=timeout)
    try:
        return gloo(store, rank, size, options)
    except RuntimeError as error:
        raise CommError(f"Rank {rank} of {size} could not join: {error}") from error
