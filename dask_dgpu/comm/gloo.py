"""Ranks as processes with NumPy arrays, over gloo's TCP transport.

The module creates torch's gloo group directly, so the default group of ``torch.distributed``
is not affected, and uses only its messages: :mod:`dask_dgpu.comm.point_to_point` says why.

Short messages have sockets of their own. gloo wakes its thread for connections, and that one the
waiting thread, for each message. Here the posting thread writes to the socket and the waiting
thread reads it::

    send      header and data -> kernel; returns at once
    receive   note the buffer, or take the data if they are there already
    wait      read whatever arrives, until one's own message is there

If several threads wait for one peer, one of them reads for all.
"""

from __future__ import annotations

import hmac
import math
import secrets
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed

from dask_dgpu.comm.common import Lifetime, take_first
from dask_dgpu.comm.doors import close_doors
from dask_dgpu.comm.point_to_point import Message, PointToPointComm, Verb
from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.comm.store import Store, meet
from dask_dgpu.comm.torch_store import TorchStore
from dask_dgpu.errors import CommError

_HEADER = struct.Struct("<II")  # tag, bytes of data
_HELLO = struct.Struct("<16sI")  # token of the rank that listens, rank that connects
_READ = 1 << 17
# Seconds between two checks for an abort, while ranks connect.
_ABORT_INTERVAL = 0.1
# Seconds that a peer may take to say who it is.
_HELLO_SECONDS = 1.0


class Sent:
    """A message that the kernel has, or gets from a thread."""

    def wait(self, seconds: float | None) -> None:
        """Return at once."""


class Receive:
    """A posted receive, ``done`` once its message has arrived."""

    def __init__(self, link: Link, into: Buffer, what: str) -> None:
        self.done = False
        self._link = link
        self._into = memoryview(into)
        self._what = what
        self._fault = ""

    def fill(self, data: bytes) -> None:
        """Copy a message to the buffer; any thread may call this, so ``wait`` raises."""
        if len(data) == self._into.nbytes:
            self._into[:] = data
        else:
            self._fault = f"expected {self._into.nbytes} bytes, got {len(data)}"
        self.done = True

    def wait(self, seconds: float | None) -> None:
        """Return once it is done; raise :class:`~dask_dgpu.errors.CommError` if it fails."""
        if not self.done:
            self._link.wait(self, seconds, self._what)
        if self._fault:
            raise CommError(f"{self._what} failed: {self._fault}")


class Link:
    """The connection with one peer, over a socket that it owns.

    The n-th message of a tag is for the n-th receive of that tag.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._lost = False
        self._sending = threading.Lock()
        self._unsent: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._reading = False
        self._readable = _poll(connected, select.POLLIN)
        self._incomplete = b""
        self._posted: dict[int, deque[Receive]] = {}
        self._early: dict[int, deque[bytes]] = {}

    # sending

    def send(self, tag: int, data: Buffer, what: str) -> Sent:
        """Send a message; a thread sends what the kernel does not take at once."""
        message = _HEADER.pack(tag, data.nbytes) + memoryview(data)
        with self._sending:
            if self._lost:
                raise CommError(f"{what} failed: the peer is lost")
            rest = message if self._unsent else message[self._write(message) :]
            if rest:
                self._unsent.append(rest)
                if len(self._unsent) == 1:
                    threading.Thread(target=self._send_rest, name="short", daemon=True).start()
        return Sent()

    def _write(self, message: bytes) -> int:
        """Return how many bytes the kernel has taken; all of them if the peer is lost."""
        try:
            return self._socket.send(message)
        except BlockingIOError:
            return 0
        except OSError:
            self.lose()
            return len(message)

    def _send_rest(self) -> None:
        writable = _poll(self._socket, select.POLLOUT)
        while True:
            writable.poll()
            with self._sending:
                message = self._unsent[0]
                self._unsent[0] = message[self._write(message) :]
                if not self._unsent[0]:
                    self._unsent.popleft()
                if not self._unsent or self._lost:
                    self._unsent.clear()
                    return

    # receiving

    def receive(self, tag: int, into: Buffer, what: str) -> Receive:
        """Post a receive of a message with as many bytes as ``into``."""
        receive = Receive(self, into, what)
        with self._changed:
            data = take_first(self._early, tag)
            if data is None:
                self._posted.setdefault(tag, deque()).append(receive)
            else:
                receive.fill(data)
        return receive

    def wait(self, receive: Receive, seconds: float | None, what: str) -> None:
        """Read until a receive is done, or until another thread has read its message."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while self._begins_to_read(receive, deadline, what):
            data = b""
            try:
                data = self._read(deadline)
            finally:
                with self._changed:
                    self._reading = False
                    self._changed.notify_all()
                    self._deliver(data)

    def _begins_to_read(self, receive: Receive, deadline: float, what: str) -> bool:
        """Wait while another thread reads; return ``False`` once the receive is done."""
        with self._changed:
            while not receive.done:
                if self._lost:
                    raise CommError(f"{what} failed: the peer is lost")
                if time.monotonic() >= deadline:
                    raise CommError(f"{what} did not finish within the time limit")
                if not self._reading:
                    self._reading = True
                    return True
                self._changed.wait(_left(deadline))
        return False

    def _read(self, deadline: float) -> bytes:
        left = _left(deadline)
        if not self._readable.poll(None if left is None else math.ceil(1000 * left)):
            return b""
        data = b""
        with suppress(OSError):
            data = self._socket.recv(_READ)
        if not data:
            self.lose()
        return data

    def _deliver(self, data: bytes) -> None:
        """Give each complete message to its receive, or keep it for a later one."""
        received = self._incomplete + data
        at = 0
        while len(received) - at >= _HEADER.size:
            tag, nbytes = _HEADER.unpack_from(received, at)
            start, end = at + _HEADER.size, at + _HEADER.size + nbytes
            if end > len(received):
                break
            receive = take_first(self._posted, tag)
            if receive is None:
                self._early.setdefault(tag, deque()).append(received[start:end])
            else:
                receive.fill(received[start:end])
            at = end
        self._incomplete = received[at:]

    # the end

    def lose(self) -> None:
        """Make all waits raise, from any thread; does not block."""
        with self._changed:
            self._lost = True
            self._changed.notify_all()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket once no thread uses it, and let go of all buffers."""
        self.lose()
        with self._changed:
            self._changed.wait_for(lambda: not self._reading)
            self._posted.clear()
            self._early.clear()
        with self._sending:
            self._socket.close()


def _poll(of: socket.socket, event: int) -> select.poll:
    poll = select.poll()
    poll.register(of, event)
    return poll


def _left(deadline: float) -> float | None:
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic())


def connect_links(
    store: Store, *, rank: int, size: int, host: str, timeout: float, lifetime: Lifetime
) -> Mapping[int, Link]:
    """Connect with all other ranks, each of which calls this; return the links by rank.

    Only who knows the token of a rank, from the store, can connect with it.

    Raises
    ------
    CommError
        If not all have connected after ``timeout`` seconds.
    CommAbortedError
        If ``lifetime`` ends first.
    """
    deadline = time.monotonic() + timeout
    token = secrets.token_bytes(16)
    connected: dict[int, socket.socket] = {}
    try:
        with _listener(host, size) as listener:
            name, port = listener.getsockname()[:2]
            texts = meet(
                store,
                "short",
                f"{name} {port} {token.hex()}",
                rank=rank,
                size=size,
                limit=timeout,
                lifetime=lifetime,
            )
            for peer in range(rank):
                connected[peer] = _connect(texts[peer], rank, deadline)
            while missing := {*range(rank + 1, size)} - connected.keys():
                lifetime.check()
                if time.monotonic() > deadline:
                    raise CommError(f"ranks {sorted(missing)} of {size} did not connect in time")
                connected |= _accept(listener, token, missing)
    except BaseException:
        for each in connected.values():
            each.close()
        raise
    return {peer: Link(each) for peer, each in connected.items()}


def _listener(host: str, size: int) -> socket.socket:
    """Listen on the first address of a host that this machine has."""
    last: OSError | None = None
    for family, *_, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            listener.listen(size)
        except OSError as error:
            listener.close()
            last = error
        else:
            listener.settimeout(_ABORT_INTERVAL)
            return listener
    raise CommError(f"expected an address of this host, got {host!r}: {last}")


def _connect(address: str, rank: int, deadline: float) -> socket.socket:
    host, port, token = address.split()
    left = max(_ABORT_INTERVAL, deadline - time.monotonic())
    try:
        connected = socket.create_connection((host, int(port)), left)
        connected.sendall(_HELLO.pack(bytes.fromhex(token), rank))
    except OSError as error:
        raise CommError(f"rank {rank} could not connect to {host}: {error}") from error
    return connected


def _accept(listener: socket.socket, token: bytes, missing: set[int]) -> dict[int, socket.socket]:
    """Return the socket of the missing rank that connects next, if one does soon."""
    try:
        connected, _ = listener.accept()
    except TimeoutError:
        return {}
    connected.settimeout(_HELLO_SECONDS)
    with suppress(OSError, struct.error):
        given, rank = _HELLO.unpack(connected.recv(_HELLO.size, socket.MSG_WAITALL))
        if hmac.compare_digest(given, token) and rank in missing:
            return {rank: connected}
    connected.close()
    return {}


# torch has no stubs for much of this, or stubs that vary from version to version.
dist: Any = torch.distributed

SHORT = 64 * 1024
"""Messages of up to this many bytes go over sockets of our own, in a third of the time."""

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
            self._links = connect_links(
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
