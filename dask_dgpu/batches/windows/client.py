"""Blocks to and from the workers of a client's host, through windows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from mmap import PAGESIZE
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from dask_dgpu.batches.copying import Staging, copy
from dask_dgpu.batches.windows.ring import Ring, StoppedError, Window, as_piece
from dask_dgpu.batches.windows.worker import Kind, closed, given, kind_of, opened, taken
from dask_dgpu.errors import DgpuError

if TYPE_CHECKING:
    from distributed import Client

LEAST = 1 << 20
"""Bytes from which a block goes through a window: for fewer, Dask's own transfer is as fast."""

MOST_SLOT = {"cpu": 4 << 20, "cuda": 64 << 20}
"""Bytes of the largest slots: pinning takes 0.3 s a GiB, and they count in a worker's memory."""
LEAST_SLOT = 1 << 20
SHARE = 32
"""Slots that the first block or blocks to go through a window fill."""

WATCH = 1.0
"""Seconds between looks whether the worker of an open call is still there."""

PATIENCE = 10.0
"""Seconds in which the scheduler notices that a worker is lost."""

Key = Any
T = TypeVar("T")
Work = Callable[[Callable[[], bool]], None]


async def together(works: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of all; raise the first error once all have ended."""
    found = await asyncio.gather(*works, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found  # type: ignore[return-value]


class LostError(DgpuError):
    """A worker that held blocks of a batch was lost."""


@dataclass
class _Way:
    """A window to a worker or from it, and who may use it."""

    address: str
    window: Window
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Windows:
    """The windows of a client to the workers of its host.

    Methods are coroutines for the client's event loop.
    """

    def __init__(self, client: Client, device: str, copying: Executor) -> None:
        self.client: Any = client
        self.on_gpu = device == "cuda"
        self.most = MOST_SLOT[device]
        self._ways: dict[tuple[str, str], _Way | None] = {}
        self._opening = asyncio.Lock()
        self._copying = copying
        self._staging = Staging()

    async def reach(self, addresses: Iterable[str], nbytes: int) -> bool:
        """Return whether all workers are on this host; each is about to get so many bytes."""
        return None not in await together(self._way(each, "to", nbytes) for each in addresses)

    async def send(
        self, address: str, blocks: Mapping[Key, Any], *, on_gpu: bool = False
    ) -> dict[Key, int] | None:
        """Copy blocks to a worker; return their bytes, or None if it is on another host."""
        way = await self._way(address, "to", sum(block.nbytes for block in blocks.values()))
        if way is None:
            return None
        kinds = [(key, Kind(block.shape, block.dtype)) for key, block in blocks.items()]
        fill = partial(self._fill, way.window.ring, blocks.values())
        nbytes: dict[Key, int] = await self._both(way, fill, taken, kinds, on_gpu)
        return nbytes

    async def receive(self, address: str, key: Key, nbytes: int) -> Any:
        """Return a block of a worker, of about so many bytes; None if Dask must fetch it."""
        way = await self._way(address, "from", nbytes)
        found = None if way is None else await self._run(address, kind_of, key)
        if way is None or found is None:
            return None
        block = self._staging.array(*found)
        empty = partial(self._empty, way.window.ring, found, block)
        await self._both(way, empty, given, key)
        return block

    async def close(self) -> None:
        """Let go of all windows, also on the workers that are still there."""
        ways, self._ways = [way for way in self._ways.values() if way is not None], {}
        if ways:
            there = await self._addresses()
            calls = (self._call(way, closed) for way in ways if way.address in there)
            await asyncio.gather(*calls, return_exceptions=True)
        for way in ways:
            way.window.close()

    async def _way(self, address: str, direction: str, nbytes: int) -> _Way | None:
        async with self._opening:
            key = address, direction
            if key not in self._ways:
                self._ways[key] = await self._opened(address, nbytes)
            return self._ways[key]

    async def _opened(self, address: str, nbytes: int) -> _Way | None:
        wanted = -(-nbytes // (SHARE * PAGESIZE)) * PAGESIZE
        try:
            window = Window(min(self.most, max(LEAST_SLOT, wanted)))
        except OSError:
            return None
        if await self._run(address, opened, window.place, self.on_gpu):
            return _Way(address, window)
        window.close()
        return None

    async def _both(
        self, way: _Way, work: Work, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Call a function on a worker, and do this end's work in a thread.

        After an error the window is not used again: the worker may still be at it.
        """
        async with way.lock:
            ring, over = way.window.ring, Event()
            ring.restart()
            call = asyncio.ensure_future(self._call(way, function, *arguments))
            here = asyncio.ensure_future(asyncio.to_thread(work, over.is_set))
            try:
                await asyncio.wait({call, here}, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                if not (call.done() and here.done()):
                    ring.stop()
                    over.set()
                found = await asyncio.gather(call, here, return_exceptions=True)
                errors = [each for each in found if isinstance(each, BaseException)]
                if errors:
                    await self._drop(way)
            for error in sorted(errors, key=lambda each: isinstance(each, StoppedError)):
                raise error
            return found[0]

    async def _drop(self, way: _Way) -> None:
        self._ways = {key: each for key, each in self._ways.items() if each is not way}
        with suppress(OSError, DgpuError):
            await self._call(way, closed)
        way.window.close()

    def _fill(self, ring: Ring, blocks: Iterable[Any], is_over: Callable[[], bool]) -> None:
        for block in blocks:
            for index in Kind(block.shape, block.dtype).pieces(ring):
                ring.fill(partial(self._put, block[index]), is_over)

    def _empty(self, ring: Ring, kind: Kind, block: Any, is_over: Callable[[], bool]) -> None:
        for index in kind.pieces(ring):
            ring.empty(partial(self._get, block[index]), is_over)

    def _put(self, part: Any, slot: Any) -> None:
        copy(self._copying, as_piece(slot, part), part)

    def _get(self, part: Any, slot: Any) -> None:
        copy(self._copying, part, as_piece(slot, part))

    async def _call(self, way: _Way, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._run(way.address, function, way.window.place, *arguments)

    async def _run(self, address: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on a worker.

        Raises
        ------
        LostError
            If the worker is lost.
        """
        from distributed.comm.core import CommClosedError
        from distributed.core import clean_exception
        from distributed.protocol.pickle import dumps

        rpc = self.client.rpc(address)
        call = asyncio.ensure_future(rpc.run(function=dumps(function), args=dumps(arguments)))
        try:
            while not (await asyncio.wait({call}, timeout=WATCH))[0]:
                if address not in await self._addresses():  # Dask tries to connect for 30 s
                    call.cancel()
                    raise CommClosedError(address)
            answer = call.result()
        except OSError as error:
            await self._noticed(address)
            raise LostError(f"lost {address} while batches were computed") from error
        if answer["status"] == "error":
            failure: Any = clean_exception(**answer)[1]
            raise failure
        return answer["result"]

    async def _noticed(self, address: str) -> None:
        """Wait until the scheduler knows that a worker is lost."""
        loop = asyncio.get_running_loop()
        late = loop.time() + PATIENCE
        while loop.time() < late:
            if address not in await self._addresses():
                return
            await asyncio.sleep(0.1)

    async def _addresses(self) -> set[str]:
        return set((await self.client.scheduler.identity(n_workers=-1))["workers"])
