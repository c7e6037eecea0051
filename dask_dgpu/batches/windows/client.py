"""Blocks to and from the workers of a client's host, through windows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dask_dgpu.batches.copying import THREADS, Staging, in_threads
from dask_dgpu.batches.windows.ring import Ring, StoppedError, Window, as_piece
from dask_dgpu.batches.windows.worker import Kind, closed, given, kind_of, opened, taken
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
"""Slots that the first block or blocks to go through a window fill."""

HELPERS = THREADS - 1
"""Threads that copy pieces of a transfer besides its own: one alone copies 10 GB/s."""

MOST_PUMPS = 64
"""Transfers at a time; the worker of one that waits for a thread gives up after a minute."""

WATCH = 1.0
"""Seconds between looks whether the worker of an open call is still there."""

PATIENCE = 10.0
"""Seconds in which the scheduler notices that a worker is lost."""

Key = Any
T = TypeVar("T")
Work = Callable[[Ring], None]


async def together(works: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of all; raise the first error once all have ended."""
    found = await asyncio.gather(*works, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            found.clear()  # frames of the error would hold blocks that were sent
            raise each
    return found  # type: ignore[return-value]


class LostError(DgpuError):
    """A worker that held blocks of a batch was lost."""

    @classmethod
    def of(cls, *workers: str) -> LostError:
        """Return the error for these workers."""
        return cls(f"lost {', '.join(sorted(workers))} while batches were computed")


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
        self.pumps = ThreadPoolExecutor(MOST_PUMPS, "dgpu-window")
        self._staging = Staging()

    @property
    def are_used(self) -> bool:
        """Whether there is anything to close."""
        return bool(self._ways)

    async def reach(self, addresses: Iterable[str], nbytes: int) -> bool:
        """Return whether all workers are on this host; each is about to get so many bytes."""
        return None not in await together(self._way((each, "to"), nbytes) for each in addresses)

    async def send(
        self, address: str, blocks: Mapping[Key, Any], *, on_gpu: bool = False
    ) -> dict[Key, int] | None:
        """Copy blocks to a worker; return their bytes, or None if it is on another host."""
        size = sum(block.nbytes for block in blocks.values())
        kinds = [(key, Kind(block.shape, block.dtype)) for key, block in blocks.items()]
        fill = partial(self._move, Ring.fill, self._put, blocks.values())
        sent: dict[Key, int] | None
        sent = await self._both((address, "to"), size, fill, taken, kinds, on_gpu)
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
        block = room if fits else self._staging.array(*kind)
        empty = partial(self._move, Ring.empty, self._get, [block])
        await self._both((address, "from"), nbytes, empty, given, key)
        return block

    async def close(self) -> None:
        """Let go of all windows, also on the workers that are still there."""
        ways, self._ways = [way for way in self._ways.values() if way is not None], {}
        with suppress(OSError):  # the scheduler may be lost
            there = await self.addresses()
            calls = (self._call(way, closed) for way in ways if way.address in there)
            await asyncio.gather(*calls, return_exceptions=True)
        for way in ways:
            way.window.close()

    async def _way(self, key: tuple[str, str], nbytes: int) -> _Way | None:
        async with self._opening:
            if key not in self._ways:
                self._ways[key] = await self._opened(key[0], nbytes)
            return self._ways[key]

    async def _opened(self, address: str, nbytes: int) -> _Way | None:
        wanted = -(-nbytes // (SHARE * PAGESIZE)) * PAGESIZE
        try:
            window = Window(min(self.most, max(LEAST_SLOT, wanted)))
        except OSError:
            return None
        way = None
        try:
            if await self._run(address, opened, window.place, self.on_gpu):
                way = _Way(address, window)
        finally:
            if way is None:
                window.close()
        return way

    async def _both(
        self,
        key: tuple[str, str],
        nbytes: int,
        work: Work,
        function: Callable[..., Any],
        *arguments: Any,
    ) -> Any:
        """Call a function on a worker, and do this end's work in a thread.

        Return its result, or None if the worker is on another host. After an error the window is
        not used again: the worker may still be at it.
        """
        while (way := await self._way(key, nbytes)) is not None:
            async with way.lock:
                if self._ways.get(key) is not way:
                    continue  # another transfer has failed
                try:
                    return await self._moved(way, work, function, *arguments)
                except BaseException:
                    await self._drop(key, way)
                    raise
        return None

    async def _moved(
        self, way: _Way, work: Work, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        ring = way.window.ring
        ring.restart()
        call = asyncio.ensure_future(self._call(way, function, *arguments))
        loop = asyncio.get_running_loop()
        here = loop.run_in_executor(self.pumps, work, ring)
        try:
            await asyncio.wait({call, here}, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            if not (call.done() and here.done()):
                ring.stop()
            found = await asyncio.gather(call, here, return_exceptions=True)
        errors = [each for each in found if isinstance(each, BaseException)]
        for error in errors:
            if not isinstance(error, StoppedError):
                raise error
        if errors:
            raise LostError(f"a transfer of blocks with {way.address} has stopped") from errors[0]
        return found[0]

    async def _drop(self, key: tuple[str, str], way: _Way) -> None:
        self._ways.pop(key, None)
        with suppress(OSError, DgpuError):
            await self._call(way, closed)
        way.window.close()

    def _move(
        self,
        turn: Callable[..., None],
        work: Callable[[Any, Any], None],
        blocks: Iterable[Any],
        ring: Ring,
    ) -> None:
        """Call ``work`` with each piece of blocks and its slot, once it is the slot's ``turn``."""
        kinds = ((block, Kind(block.shape, block.dtype)) for block in blocks)
        parts = (block[index] for block, kind in kinds for index in kind.pieces(ring))
        works = (
            partial(turn, ring, number, partial(work, part)) for number, part in enumerate(parts)
        )
        in_threads(self._copying, works, HELPERS, ring.stop)

    def _put(self, part: Any, slot: Any) -> None:
        np.copyto(as_piece(slot, part), part)

    def _get(self, part: Any, slot: Any) -> None:
        np.copyto(part, as_piece(slot, part))

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
        async with self.connected(address):
            while not (await asyncio.wait({call}, timeout=WATCH))[0]:
                if address not in await self.addresses():  # Dask tries to connect for 30 s
                    call.cancel()
                    raise CommClosedError(address)
            answer = call.result()
        if answer["status"] == "error":
            failure: Any = clean_exception(**answer)[1]
            raise failure
        return answer["result"]

    @asynccontextmanager
    async def connected(self, address: str) -> AsyncIterator[None]:
        """Replace errors that follow from the loss of a worker by a :class:`LostError`."""
        try:
            yield
        except Exception as error:
            of_connection = isinstance(error, OSError)
            if await self.lost([address], patient=of_connection) or of_connection:
                raise LostError.of(address) from error
            raise

    async def lost(self, workers: Collection[str], *, patient: bool) -> set[str]:
        """Return the lost ones of these workers.

        If ``patient``, wait until the scheduler knows one: a connection fails before.
        """
        loop = asyncio.get_running_loop()
        late = loop.time() + (PATIENCE if patient and workers else 0)
        while not (found := {*workers} - await self.addresses()) and loop.time() < late:
            await asyncio.sleep(0.1)
        return found

    async def addresses(self) -> set[str]:
        """Return the workers that the scheduler knows."""
        # not client.scheduler_info: another thread's call for fewer workers changes its result
        return set((await self.client.scheduler.identity(n_workers=-1))["workers"])
