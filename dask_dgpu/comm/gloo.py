"""Ranks as processes with NumPy arrays, over gloo's TCP transport.

The module creates torch's gloo group directly, so the default group of ``torch.distributed``
is not affected, and uses only its messages: :mod:`dask_dgpu.comm.point_to_point` says why.
Short messages have sockets of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.doors import close_doors
from dask_dgpu.comm.point_to_point import Message, PointToPointComm, Verb
from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.comm.short import Link, connect
from dask_dgpu.comm.store import Store
from dask_dgpu.comm.torch_store import TorchStore
from dask_dgpu.errors import CommError

# torch has no stubs for much of this, or stubs that vary from version to version.
dist: Any = torch.distributed

SHORT = 64 * 1024
"""Messages of up to this many bytes go over :mod:`dask_dgpu.comm.short`, in a third of the time."""

# A tag without messages.
_NO_TAG = 2**31 - 1
# gloo cannot cancel a message that has begun, so a wait without a limit ends after this many times
# the limit for connecting; a gang without any progress was given up long before.
_PATIENCE = 12
# Seconds between two checks for the interpreter's exit.
_CHECK_INTERVAL = 0.2
# Seconds for the threads of an aborted group to end.
_LINGER = 5.0


class _Writable:
    """Read-only memory, declared as writable: torch warns about read-only arrays."""

    def __init__(self, array: Buffer) -> None:
        address = (array.ctypes.data, False)
        self.__array_interface__ = {**array.__array_interface__, "data": address}
        self._owner = array


class _GlooMessage:
    def __init__(self, work: Any, what: str, longest: float) -> None:
        self._work = work
        self._what = what
        self._longest = longest

    def wait(self, seconds: float | None) -> None:
        limit = timedelta(seconds=self._longest if seconds is None else seconds)
        late = time.monotonic() + limit.total_seconds()
        try:
            self._work.wait(limit)
        except RuntimeError as error:
            if time.monotonic() >= late:
                text = f"{self._what} did not finish within the time limit"
            else:
                text = f"{self._what} failed: the peer is lost"
            raise CommError(text) from error


class GlooComm(PointToPointComm):
    """One rank over gloo; see :class:`~dask_dgpu.comm.protocol.Comm`.

    A separate thread ends the group when the communicator is closed or aborted, or when the
    interpreter exits: it makes all waits raise, then frees the group. Threads of messages that were
    half sent or received then wait longer, up to 12 times ``timeout``: gloo cannot cancel those.

    All ranks create it at the same time, with a ``store`` for these ranks only. It listens on
    ``host``. Connecting ends after ``timeout`` seconds, or if ``lifetime`` is aborted. Waits raise
    after ``limit`` seconds; without it they last until aborted, at most 12 times ``timeout``.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        size: int,
        host: str,
        timeout: float,
        limit: float | None = None,
        lifetime: Lifetime | None = None,
    ) -> None:
        super().__init__(rank, size, limit, on_abort=self._lose)
        self._links: Mapping[int, Link] = {}
        self._longest = _PATIENCE * timeout
        self._store = TorchStore(store, timeout, lifetime or self._lifetime)
        self._group: Any = _create_group(self._store, rank, size, host, timeout)
        # No daemon: an exiting interpreter that stops one within C++ ends the process.
        threading.Thread(target=self._keep, name="gloo", daemon=False).start()
        try:
            self._links = connect(
                store,
                rank=rank,
                size=size,
                host=host,
                timeout=timeout,
                lifetime=self._store.lifetime,
            )
        except BaseException:
            self.abort("it could not connect")
            raise

    def _keep(self) -> None:
        """Hold the group until the communicator ends, then end and free it."""
        changed = self._lifetime.changed
        with changed:
            while self._lifetime.reason is None and threading.main_thread().is_alive():
                changed.wait(_CHECK_INTERVAL)
            threads = list(self._lifetime.threads)
        self._lifetime.abort("the interpreter exits")
        _disconnect(self._group, [peer for peer in range(self.size) if peer != self.rank])
        for thread in threads:
            thread.join(_LINGER)
        for each in self._links.values():
            each.close()
        self._group = None  # joins its own threads; 13 s were seen after a peer's death

    def _lose(self) -> None:
        for each in self._links.values():
            each.lose()

    def _post_message(self, verb: Verb, peer: int, data: Buffer, tag: int, what: str) -> Message:
        if data.nbytes <= SHORT:
            post = self._links[peer].send if verb == "send" else self._links[peer].receive
            return post(tag, data, what)
        if verb == "send" and not data.flags.writeable:
            data = np.asarray(_Writable(data))
        group = self._group
        if group is None:
            self._lifetime.check()
        try:
            work = getattr(group, verb)([torch.from_numpy(data)], peer, tag)
        except RuntimeError as error:
            raise CommError(f"{what} failed: the peer is lost") from error
        return _GlooMessage(work, what, self._longest)


def _disconnect(group: Any, peers: Sequence[int]) -> None:
    """End all waits of a group.

    gloo's own ``abort`` does not end them. A receive that exceeds its time limit closes every
    connection of its group, so this waits for a message that no rank sends. A receive from a lost
    peer fails at once and closes nothing, so this tries all of them.
    """
    for peer in peers:
        try:
            nothing = group.recv([torch.empty(1)], peer, _NO_TAG)
            nothing.wait(timedelta(milliseconds=1))
        except RuntimeError:
            continue


def _create_group(store: TorchStore, rank: int, size: int, host: str, timeout: float) -> Any:
    gloo = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._threads = 1  # only gloo's own collectives use them
    options._timeout = timedelta(seconds=timeout)
    try:
        return gloo(store, rank, size, options)
    except RuntimeError as error:
        raise CommError(f"rank {rank} of {size} could not connect: {error}") from error
    finally:
        close_doors(store.published)  # all ranks are connected; gloo would accept anyone
