"""Streams over TCP sockets of our own, between ranks on CPUs.

No thread waits for packets. The posting thread writes to the socket, and a waiting thread reads::

    send     header and data -> kernel; a thread sends what the kernel does not take at once
    wait     read whatever arrives, from all peers, until one's own message is there

If several threads wait, one of them reads for all. A large message arrives in the buffer of its
receive.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.point_to_point import Posted
from dask_dgpu.comm.protocol import Buffer
from dask_dgpu.comm.store import Store
from dask_dgpu.comm.streams import Kind, StreamComm, join
from dask_dgpu.errors import CommError

_HEADER = struct.Struct("<BIQ")  # kind, tag, bytes of data
_HELLO = struct.Struct("<16sI")  # token of the rank that listens, rank that connects
# Packets of more bytes are read in place.
_READ = 1 << 17
# Parts of packets that the kernel gets at once; it refuses more than 1024.
_PARTS = 64
# Seconds between two checks for an abort, while ranks connect.
_ABORT_INTERVAL = 0.1
# Seconds that a peer may take to say who it is.
_HELLO_SECONDS = 1.0
# Seconds between two looks at packets that are still sent at the end.
_PAUSE = 0.01

Packet = tuple[Kind, int, list[Any]]


class Link:
    """The connection with one peer, over a socket that it owns."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.unsent: deque[memoryview] = deque()
        self._sending = threading.Lock()
        self._incomplete = b""
        self._packet: Packet | None = None  # whose data arrives in ``_missing``
        self._missing = memoryview(b"")

    def send(self, kind: Kind, tag: int, data: Any) -> None:
        """Send a packet, in order."""
        view = memoryview(data or b"")
        parts = [memoryview(_HEADER.pack(kind, tag, view.nbytes)), *([view] if view else [])]
        with self._sending:
            waits = bool(self.unsent)
            self.unsent.extend(parts)
            if not waits:
                self._write()
                if self.unsent:
                    threading.Thread(target=self._write_rest, name="tcp-send", daemon=True).start()

    def _write(self) -> None:
        """Give the kernel what it takes; nothing is left to send if the peer is lost."""
        try:
            sent = self.socket.sendmsg(list(islice(self.unsent, _PARTS)))
        except BlockingIOError:
            return
        except OSError:  # the reader notices it too
            self.unsent.clear()
            return
        while self.unsent and sent >= len(self.unsent[0]):
            sent -= len(self.unsent.popleft())
        if sent:
            self.unsent[0] = self.unsent[0][sent:]

    def _write_rest(self) -> None:
        writable = select.poll()
        writable.register(self.socket, select.POLLOUT)
        while self.unsent:
            writable.poll()
            with self._sending:
                self._write()

    def read(self, target: Callable[[int, int], Buffer | None]) -> list[Packet]:
        """Return the packets that have arrived.

        ``target`` returns the memory for so many bytes of a tag, if a receive expects them.

        Raises
        ------
        OSError
            If the peer is lost.
        """
        if self._packet is not None:
            self._missing = self._missing[_taken(self.socket.recv_into(self._missing)) :]
            if self._missing:
                return []
            packet, self._packet = self._packet, None
            return [packet]
        data = self.socket.recv(_READ)
        _taken(len(data))
        received, at, packets = self._incomplete + data, 0, []
        while len(received) - at >= _HEADER.size:
            kind, tag, nbytes = _HEADER.unpack_from(received, at)
            start, end = at + _HEADER.size, at + _HEADER.size + nbytes
            if end <= len(received):
                packets.append((Kind(kind), tag, [received[start:end]]))
            elif nbytes > _READ:
                whole = target(tag, nbytes)
                whole = np.empty(nbytes, np.uint8) if whole is None else whole
                self._packet = Kind(kind), tag, [whole]
                begun, end = len(received) - start, len(received)
                self._missing = whole.data
                self._missing[:begun] = received[start:]
                self._missing = self._missing[begun:]
            else:
                break
            at = end
        self._incomplete = received[at:]
        return packets

    @property
    def arrives_in_place(self) -> bool:
        """Whether a large packet has begun to arrive."""
        return self._packet is not None

    def end(self) -> None:
        """End all transfers, from any thread; does not block."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def _taken(nbytes: int) -> int:
    if not nbytes:
        raise ConnectionResetError("the peer has left")
    return nbytes


class Sockets:
    """One rank's sockets to all other ranks; see :class:`~.streams.Streams`.

    Others connect by the ``listener``, within ``timeout`` seconds and before ``lifetime`` ends.
    Only who knows the token of a rank can connect with it.
    """

    def __init__(self, listener: socket.socket, timeout: float, lifetime: Lifetime) -> None:
        self._deadline = time.monotonic() + timeout
        self._lifetime = lifetime
        self._listener = listener
        self._token = secrets.token_bytes(16)
        self.address = "{} {} {}".format(*self._listener.getsockname()[:2], self._token.hex())
        self._links: dict[int, Link] = {}
        self._changed = threading.Condition()
        self._reading = False
        self._readable = select.poll()
        self._peers: dict[int, int] = {}

    def open(self, rank: int, addresses: Sequence[str], comm: StreamComm) -> None:
        """Connect with all other ranks, each of which calls this.

        Raises
        ------
        CommError
            If not all have connected in time.
        CommAbortedError
            If the lifetime ends first.
        """
        self._comm = comm
        for peer in range(rank):
            self._add(peer, _connect(addresses[peer], rank, self._deadline))
        while missing := {*range(rank + 1, len(addresses))} - self._links.keys():
            self._lifetime.check()
            if time.monotonic() > self._deadline:
                ranks = f"{sorted(missing)} of {len(addresses)}"
                raise CommError(f"ranks {ranks} did not connect in time")
            for peer, connected in _accept(self._listener, self._token, missing).items():
                self._add(peer, connected)

    def _add(self, peer: int, connected: socket.socket) -> None:
        self._links[peer] = Link(connected)
        self._peers[connected.fileno()] = peer
        self._readable.register(connected, select.POLLIN)

    def send(self, peer: int, kind: Kind, tag: int, data: Any) -> None:
        """Send a packet."""
        self._links[peer].send(kind, tag, data)

    def wait(self, message: Posted) -> None:
        """Read until a message is over, or wait while another thread reads."""
        while self._begins_to_read(message):
            try:
                self._read()
            finally:
                with self._changed:
                    self._reading = False
                    self._changed.notify_all()

    def _begins_to_read(self, message: Posted) -> bool:
        """Wait while another thread reads; return ``False`` once the message is over."""
        with self._changed:
            self._changed.wait_for(lambda: message.over or not self._reading)
            if message.over:
                return False
            self._reading = True
        return True

    def _read(self) -> None:
        """Read once from all peers that have sent something, and wait for one."""
        comm = self._comm
        for descriptor, _ in self._readable.poll():
            peer = self._peers[descriptor]
            try:
                packets = self._links[peer].read(partial(comm.target, peer))
            except BlockingIOError:
                continue
            except OSError:
                self._readable.unregister(descriptor)
                comm.lose(peer, "the peer is lost")
                continue
            for packet in packets:
                comm.receive(peer, *packet)

    def close(self, seconds: float) -> None:
        """Close all sockets once everything is sent, or after ``seconds``.

        A message that arrives in place ends at once: its memory is the caller's again.
        """
        links = list(self._links.values())
        if not any(link.unsent for link in links) or any(link.arrives_in_place for link in links):
            seconds = 0.0
            for link in links:
                link.end()
        late = time.monotonic() + seconds
        threading.Thread(target=self._close, args=(links, late), name="tcp", daemon=True).start()

    def _close(self, links: Sequence[Link], late: float) -> None:
        while any(link.unsent for link in links) and time.monotonic() < late:
            time.sleep(_PAUSE)
        for link in links:
            link.end()
        with self._changed:
            self._changed.wait_for(lambda: not self._reading)
        while any(link.unsent for link in links):
            time.sleep(_PAUSE)
        for link in links:
            link.socket.close()


def connect(store: Store, *, host: str, timeout: float, **given: Any) -> StreamComm:
    """Connect over sockets on ``host``; see :func:`~.streams.join`."""
    with _listener(host, given["size"]) as listener:
        streams = Sockets(listener, timeout, given["lifetime"])
        return join(store, timeout=timeout, streams=streams, **given)


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
        try:
            connected.sendall(_HELLO.pack(bytes.fromhex(token), rank))
        except OSError:  # the peer ended before it accepted
            connected.close()
            raise
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
