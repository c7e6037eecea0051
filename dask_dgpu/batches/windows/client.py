"""Blocks to and from the workers of a client's host, through windows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from dask.system import CPU_COUNT

from dask_dgpu.batches.windows.ring import Kind, Ring, StoppedError, Window, as_piece
from dask_dgpu.batches.windows.worker import closed, given, kind_of, opened, taken
from dask_dgpu.errors import DgpuError

if TYPE_CHECKING:
    from distributed import Client

LEAST = 1 << 20
"""Bytes from which a block goes through a window: for fewer, Dask's own transfer is as fast."""

MOST_SLOT = {"cpu": 2 << 20, "cuda": 4 << 20}
"""Bytes of the largest slots. A window then fits in the processors' caches, is pinned in 10 ms, and
counts little in a worker's memory."""
LEAST_SLOT = 1 << 20
SHARE = 64
"""Slots that the first blocks to go through a window fill: a small one is open sooner."""

THREADS = min(8, CPU_COUNT)
"""Threads that copy at a time to all workers, at least one for each: one alone copies 10 GB/s."""

WATCH = 1.0
"""Seconds between looks whether the worker of an open call is still there."""

Key = Any
T = TypeVar("T")


async def together(works: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of all; raise the first error once all have ended."""
    found = await asyncio.gather(*works, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            found.clear()  # frames of the error would hold blocks that were sent
            raise each
    return found  # type: ignore[return-value]


class LostError(DgpuError):
    """A worker that held blocks of a batch was lost, or no longer moves blocks."""


@dataclass
class _Way:
    """A window to a worker or from it, who may use it, and the threads that do."""

    address: str
    window: Window
    threads: ThreadPoolExecutor
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def close(self) -> None:
        self.threads.shutdown(wait=False)
        self.window.close()


class Windows:
    """The windows of a client to the workers of its host, at most ``most`` of them.

    Methods are coroutines for the client's event loop.
    """

    def __init__(self, client: Client, device: str, most: int) -> None:
        self.client: Any = client
        self.on_gpu = device == "cuda"
        self._most = MOST_SLOT[device]
        self._threads = -(-THREADS // most)
        self._ways: dict[tuple[str, str], _Way | None] = {}
        self._opening = asyncio.Lock()

    async def reach(self, addresses: Iterable[str], nbytes: int) -> bool:
        """Return whether all workers are on this host; each is about to get so many bytes."""
        return None not in await together(self._way((each, "to"), nbytes) for each in addresses)

    async def send(
        self, address: str, blocks: Mapping[Key, Any], *, on_gpu: bool = False
    ) -> dict[Key, int] | None:
        """Copy blocks to a worker; return their bytes, or None if it is on another host."""
        kinds = [(key, Kind(block.shape, block.dtype)) for key, block in blocks.items()]
        nbytes = sum(block.nbytes for block in blocks.values())
        ours = Ring.fill, self._put, list(blocks.values())
        sent: dict[Key, int] | None
        sent = await self._both((address, "to"), nbytes, ours, taken, kinds, on_gpu)
        return sent

    async def receive(self, address: str, key: Key, nbytes: int, room: Any = None) -> Any:
        """Return a block of a worker, of about so many bytes; None if Dask must fetch it.

        It is written to ``room``, an array of its shape and dtype, if there is one.
        """
        if await self._way((address, "from"), nbytes) is None:
            return None
        kind = await self._run(address, kind_of, key)
        if kind is None:
            return None
        fits = room is not None and (room.shape, room.dtype) == kind
        block = room if fits else np.empty(*kind)
        ours = Ring.empty, self._get, [block]
        await self._both((address, "from"), nbytes, ours, given, key)
        return block

    async def close(self) -> None:
        """Let go of all windows, also on the workers that are still there."""
        ways, self._ways = [way for way in self._ways.values() if way is not None], {}
        with suppress(OSError):  # the scheduler may be lost
            there = await self.addresses() if ways else set()
            calls = (self._call(way, closed) for way in ways if way.address in there)
            await asyncio.gather(*calls, return_exceptions=True)
        for way in ways:
            way.close()

    async def _way(self, key: tuple[str, str], nbytes: int) -> _Way | None:
        """Return a way, opened at its first use; None to another host, or without windows."""
        async with self._opening:
            if key in self._ways:
                return self._ways[key]
            self._ways[key] = None
            with suppress(OSError):
                wanted = -(-nbytes // (SHARE * PAGESIZE)) * PAGESIZE
                window = Window(min(self._most, max(LEAST_SLOT, wanted)))
                try:
                    if await self._run(key[0], opened, window.place, self.on_gpu):
                        threads = ThreadPoolExecutor(self._threads, "dgpu-window")
                        self._ways[key] = _Way(key[0], window, threads)
                except BaseException:
                    del self._ways[key]
                    raise
                finally:
                    if self._ways.get(key) is None:
                        window.close()
            return self._ways.get(key)

    async def _both(
        self,
        key: tuple[str, str],
        nbytes: int,
        ours: Any,
        function: Callable[..., Any],
        *arguments: Any,
    ) -> Any:
        """Call a function on a worker, and do this end's work in threads.

        Return its result, or None if the worker is on another host. After an error the window is
        not used again: the worker may still be at it.
        """
        while (way := await self._way(key, nbytes)) is not None:
            async with way.lock:
                if self._ways.get(key) is not way:
                    continue  # another transfer has failed
                try:
                    return await self._moved(way, ours, self._call(way, function, *arguments))
                except BaseException:
                    self._ways.pop(key, None)
                    with suppress(OSError, DgpuError):
                        await self._call(way, closed)
                    way.close()
                    raise
        return None

    async def _moved(self, way: _Way, ours: Any, theirs: Awaitable[Any]) -> Any:
        """Do both ends' work; each of this end's threads does its share of the pieces."""
        (turn, work, blocks), ring = ours, way.window.ring
        ring.restart()
        kinds = ((block, Kind(block.shape, block.dtype)) for block in blocks)
        parts = [block[index] for block, kind in kinds for index in kind.pieces(ring.slot_bytes)]

        def go(first: int) -> None:
            try:
                for at in range(first, len(parts), self._threads):
                    turn(ring, at, partial(work, parts[at]))
            except BaseException:
                ring.stop()
                raise

        call, run = asyncio.ensure_future(theirs), asyncio.get_running_loop().run_in_executor
        each = (run(way.threads, go, first) for first in range(self._threads))
        here = asyncio.gather(*each, return_exceptions=True)
        try:
            await asyncio.wait({call, here}, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            if not (call.done() and here.done()):
                ring.stop()
            await asyncio.wait({call, here})
        errors = [call.exception(), *here.result()]
        for error in errors:
            if error is not None and not isinstance(error, StoppedError):
                raise error
        if any(errors):
            raise LostError(f"a transfer of blocks with {way.address} has stopped")
        return call.result()

    def _put(self, part: Any, slot: Any) -> None:
        np.copyto(as_piece(slot, part), part)

    def _get(self, part: Any, slot: Any) -> None:
        np.copyto(part, as_piece(slot, part))

    async def _call(self, way: _Way, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._run(way.address, function, way.window.place, *arguments)

    async def _run(self, address: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on a worker; raise ``LostError`` if it is lost."""
        from distributed.core import clean_exception
        from distributed.protocol.pickle import dumps

        rpc = self.client.rpc(address)
        call = asyncio.ensure_future(rpc.run(function=dumps(function), args=dumps(arguments)))
        while not (await asyncio.wait({call}, timeout=WATCH))[0]:
            if address not in await self.addresses():  # Dask tries to connect for 30 s
                call.cancel()
                raise LostError(f"{address} is lost")
        try:
            answer = call.result()
        except OSError as error:
            raise LostError(f"{address} cannot be reached") from error
        if answer["status"] == "error":
            failure: Any = clean_exception(**answer)[1]
            raise failure
        return answer["result"]

    async def addresses(self) -> set[str]:
        """Return the workers that the scheduler knows."""
        # not client.scheduler_info: another thread's call for fewer workers changes its result
        return set((await self.client.scheduler.identity(n_workers=-1))["workers"])
