"""Ranks as processes with NumPy arrays, over gloo's TCP transport.

torch's gloo group is made directly, beside the default group of
``torch.distributed`` and invisible to it, and used for its messages alone; see
:mod:`dask_dgpu.comm.point_to_point` for why.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed

from dask_dgpu.comm.lifetime import Lifetime
from dask_dgpu.comm.point_to_point import Message, PointToPointComm
from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.comm.rendezvous import KeyValueStore, meet_to_split
from dask_dgpu.errors import CommError

# Much of what is used here has no stubs, or other stubs from version to version.
dist: Any = torch.distributed

# The tag of messages that are never sent.
_NO_TAG = 2**31 - 1
# gloo knows no wait without a limit.
_NEVER = timedelta(days=365)
_PAUSE = 0.005
# How often (s) a group looks whether the interpreter exits.
_LOOK = 0.2
# How long (s) the threads of an aborted group may take to notice.
_LINGER = 5.0


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

    def wait(self, seconds: float | None) -> None:
        limit = _NEVER if seconds is None else timedelta(seconds=seconds)
        late = time.monotonic() + limit.total_seconds()
        try:
            self._work.wait(limit)
        except RuntimeError as error:
            if time.monotonic() >= late:
                text = f"{self._what} did not finish within the time limit"
            else:
                text = f"{self._what} failed: the peer is lost"
            raise CommError(text) from error


class _AbortableStore(dist.Store):
    """A store whose waits end with a lifetime: torch's own know their time limit alone."""

    def __init__(self, store: KeyValueStore, lifetime: Lifetime, seconds: float) -> None:
        super().__init__()
        self._store: Any = store
        self._lifetime = lifetime
        self._late = time.monotonic() + seconds

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(keys))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return bytes(self._store.get(key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self.wait(keys)
        return list(self._store.multi_get(keys))

    def add(self, key: str, number: int) -> int:
        return int(self._store.add(key, number))

    def wait(self, keys: Sequence[str], timeout: object = None) -> None:
        while not self._store.check(keys):
            self._lifetime.check()
            if time.monotonic() > self._late:
                raise CommError("not all ranks were there within the time limit")
            time.sleep(_PAUSE)


class GlooComm(PointToPointComm):
    """One rank over gloo; see :class:`~dask_dgpu.comm.protocol.Comm`.

    A thread of its own ends the group, when the communicator is closed or aborted or the
    interpreter exits: it makes all waits raise, and frees the group when they have.

    Parameters
    ----------
    store : torch.distributed.Store
        The store of these ranks alone: a prefix used once.
    rank, size : int
        Which rank of how many this is. All of them make theirs at the same time.
    host : str
        Address or name of this rank's host, to listen on.
    timeout : float
        Seconds to connect.
    limit : float, optional
        Seconds after which a wait raises; without it a wait lasts until aborted.
    lifetime : Lifetime, optional
        Aborting it ends the connecting.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        rank: int,
        size: int,
        host: str,
        timeout: float,
        limit: float | None = None,
        lifetime: Lifetime | None = None,
    ) -> None:
        super().__init__(rank, size, timeout, limit)
        self._store = store
        self._host = host
        self._splits = 0
        self._meeting = _AbortableStore(store, lifetime or self._lifetime, timeout)
        self._group: Any = _make_group(self._meeting, rank, size, host, timeout)
        # No daemon, as its maker may be: one that an exiting interpreter stops in C++
        # ends the process.
        threading.Thread(target=self._keep, name="gloo", daemon=False).start()

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
            limit=self.limit,
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
            limit=self.limit,
            lifetime=self._lifetime,
        )
        self._lifetime.adopt(child._lifetime)
        return child

    def close(self) -> None:
        """Release the transport, children too; never blocks, even if peers are gone."""
        self._lifetime.abort("it was closed")

    def _keep(self) -> None:
        """Hold the group until the communicator ends, then end and free it."""
        changed = self._lifetime.changed
        with changed:
            while self._lifetime.reason is None and threading.main_thread().is_alive():
                changed.wait(_LOOK)
            threads = list(self._lifetime.threads)
        self._lifetime.abort("the interpreter exits")
        if self.size > 1:
            _disconnect(self._group, (self.rank + 1) % self.size)
        for thread in threads:
            thread.join(_LINGER)
        self._group = None  # joins its own threads; 13 s were seen after a peer's death

    def _post_send(self, peer: int, data: Buffer, tag: int) -> Message:
        if not data.flags.writeable:
            data = np.asarray(_Writable(data))
        return self._post_with("send", data, peer, tag, "send to")

    def _post_recv(self, peer: int, data: Buffer, tag: int) -> Message:
        return self._post_with("recv", data, peer, tag, "receive from")

    def _post_with(self, call: str, data: Buffer, peer: int, tag: int, verb: str) -> Message:
        what = f"Rank {self.rank}'s {verb} rank {peer}"
        group = self._group
        if group is None:
            self._lifetime.check()
        post = getattr(group, call)
        try:
            return _GlooMessage(post([torch.from_numpy(data)], peer, tag), what)
        except RuntimeError as error:
            raise CommError(f"{what} failed: the peer is lost") from error


def _disconnect(group: Any, peer: int) -> None:
    """End all waits of a group.

    gloo's own ``abort`` leaves them waiting. A receive that runs out of time
    closes every connection of its group, so this receives what no rank sends.
    """
    try:
        nothing = group.recv([torch.empty(1)], peer, _NO_TAG)
        nothing.wait(timedelta(milliseconds=1))
    except RuntimeError:
        pass


def _make_group(store: _AbortableStore, rank: int, size: int, host: str, timeout: float) -> Any:
    gloo = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._threads = 1  # they serve gloo's own collectives, which we do not call
    options._timeout = timedelta(seconds=timeout)
    try:
        return gloo(store, rank, size, options)
    except RuntimeError as error:
        raise CommError(f"Rank {rank} of {size} could not join: {error}") from error
