"""The streams of the transport ``dask``: connections between workers that Dask itself opens.

They have the TLS, the certificates and the ports of Dask's own transfers. Two ranks share one
connection, which the lower one opens. All packets that wait are one message of Dask's; the memory
of a large packet is sent and received in place, as frames of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from distributed.comm.core import connect
from distributed.core import Status
from distributed.protocol.serialize import to_serialize

from dask_dgpu.comm.point_to_point import Posted
from dask_dgpu.comm.streams import Kind, StreamComm

if TYPE_CHECKING:
    from distributed.comm.core import Comm as Connection
    from distributed.core import Server

FAREWELL = -1
"""The kind of a link's last packet."""

FRAME_BYTES = 2**24
"""Bytes of a frame. Dask joins the frames of an object that is larger than its own limit."""


@dataclass
class _Link:
    """The connection to a peer, and the packets that wait for it."""

    packets: deque[tuple[int, int, Any]] = field(default_factory=deque)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    connection: Connection | None = None
    left: bool = False  # our farewell is sent
    peer_left: bool = False

    def push(self, kind: int, tag: int, data: Any) -> None:
        """Send a packet after all others."""
        self.packets.append((kind, tag, data))
        self.waiting.set()


class Links:
    """One rank's links to the other ranks of an epoch; see :class:`~.streams.Streams`.

    ``server`` is the worker, whose event loop opens and serves all links. Opening one takes at most
    ``timeout`` seconds.
    """

    def __init__(self, server: Server, epoch: str, timeout: float) -> None:
        self.address = str(server.address)
        self._server = server
        self._epoch = epoch
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop = server.loop.asyncio_loop  # type: ignore[attr-defined]
        self._by_reference = self.address.startswith("inproc:")
        self._links: dict[int, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened = asyncio.Event()
        self._closed = False

    # of any thread

    def open(self, rank: int, addresses: Sequence[str], comm: StreamComm) -> None:
        """Open the links to all other ranks; their packets go to ``comm``."""
        self._call(self._open, rank, addresses, comm)

    def send(self, peer: int, kind: Kind, tag: int, data: Any) -> None:
        """Send a packet."""
        if self._by_reference and data is not None:
            data = bytes(data)
        self._call(self._push, peer, kind, tag, data)

    def wait(self, message: Posted) -> None:
        """Wait for a message, which the event loop ends."""
        message.sleep()

    def close(self, seconds: float) -> None:
        """Close each link after its packets and the peer's farewell, or after ``seconds``."""
        self._call(self._close, seconds)

    def _call(self, function: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the worker has closed, and its communicators with it
            self._loop.call_soon_threadsafe(function, *arguments)

    # on the event loop

    async def accept(self, connection: Connection, peer: int) -> None:
        """Serve a link that a peer has opened, until it ends."""
        await self._opened.wait()
        link = self._links.get(peer)
        if link is None or link.connection is not None or self._closed or peer > self._rank:
            connection.abort()
            return
        await self._serve(peer, link, connection)

    def _open(self, rank: int, addresses: Sequence[str], comm: StreamComm) -> None:
        self._rank, self._comm = rank, comm
        self._links = {peer: _Link() for peer in range(len(addresses)) if peer != rank}
        self._opened.set()
        for peer in self._links:
            if peer > rank and not self._closed:
                task = self._loop.create_task(self._connect(peer, addresses[peer]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _push(self, peer: int, kind: Kind, tag: int, data: Any) -> None:
        self._links[peer].push(kind, tag, data)

    def _close(self, seconds: float) -> None:
        self._closed = True
        self._opened.set()  # nobody waits any more
        for link in self._links.values():
            if link.connection is not None and seconds:
                link.push(FAREWELL, 0, None)
            elif link.connection is not None:
                link.connection.abort()
        if seconds:
            self._loop.call_later(seconds, self._close, 0.0)

    async def _connect(self, peer: int, address: str) -> None:
        greeting = {"op": "dgpu_link", "epoch": self._epoch, "rank": self._rank, "reply": False}
        arguments = self._server.rpc.connection_args
        try:
            connection = await connect(address, timeout=self._timeout, **arguments)
            if self._closed:
                connection.abort()
                return
            await connection.write(greeting)
        except OSError as error:
            self._comm.lose(peer, f"could not connect to {address}: {error}")
        else:
            await self._serve(peer, self._links[peer], connection)

    async def _serve(self, peer: int, link: _Link, connection: Connection) -> None:
        link.connection = connection
        writer = self._loop.create_task(self._write(link, connection))
        try:
            while not (link.left and link.peer_left):
                for kind, tag, frames in await connection.read():
                    if kind == FAREWELL:
                        link.peer_left = True
                        self._comm.lose(peer, "the peer has left")
                    else:
                        self._comm.receive(peer, Kind(kind), tag, frames)
            await connection.close()
        except OSError:
            pass
        finally:
            writer.cancel()
            connection.abort()
            self._comm.lose(peer, "the peer is lost")

    async def _write(self, link: _Link, connection: Connection) -> None:
        with suppress(OSError):  # the reader notices it too
            while not link.left:
                await link.waiting.wait()
                link.waiting.clear()
                packets = [(kind, tag, _frames(data)) for kind, tag, data in link.packets]
                link.packets.clear()
                await connection.write(packets)
                link.left = any(kind == FAREWELL for kind, *_ in packets)
            if link.peer_left:
                await connection.close()


async def accept(links: Mapping[str, Links], comm: Connection, epoch: str, rank: int) -> Status:
    """Serve a link to an epoch that this worker joins; refuse others."""
    serving = links.get(epoch)
    if serving is None:
        comm.abort()
    else:
        await serving.accept(comm, rank)
    return Status.dont_reply


def _frames(data: Any) -> list[Any]:
    """Return the memory of a packet in pieces that Dask sends without a copy."""
    if data is None or isinstance(data, bytes):
        return [] if data is None else [data]
    stops = [*range(0, data.nbytes, FRAME_BYTES), data.nbytes]
    return [to_serialize(data[start:stop]) for start, stop in pairwise(stops)]
