"""Blocks to and from the workers of a client's host, through memory that they share.

A window is memory of the client without a name (``memfd_create``), so nothing is left of it after
both processes. A worker maps it by the client's number and file descriptor, and pins it if it has a
GPU. One call to the worker moves blocks in pieces through a ring of slots: one process fills slots
while the other empties those before, and both note in the window which slots are full.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from dask.system import CPU_COUNT

from dask_dgpu.batches.ring import Place, Ring, StoppedError, Window, mapped
from dask_dgpu.errors import DgpuError

if TYPE_CHECKING:
    from distributed import Client, Worker

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

EXTENSION = "dgpu-windows"

T = TypeVar("T")
Key = Any
Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of a block."""


async def together(works: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of all; raise the first error once all have ended."""
    answers = await asyncio.gather(*works, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            answers.clear()  # frames of the error would hold blocks that were sent
            raise answer
    return answers  # type: ignore[return-value]


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
        return None not in await together(
            self._way((address, "to"), nbytes) for address in addresses
        )

    async def send(
        self, address: str, blocks: Mapping[Key, Any], *, on_gpu: bool = False
    ) -> dict[Key, int] | None:
        """Copy blocks to a worker; return their bytes, or None if it is on another host."""
        kinds = [(key, (block.shape, block.dtype)) for key, block in blocks.items()]
        nbytes = sum(block.nbytes for block in blocks.values())
        ours = list(blocks.values())
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
        await self._both((address, "from"), nbytes, [block], given, key)
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
            if key not in self._ways:
                self._ways[key] = await self._opened(key[0], nbytes)
            return self._ways[key]

    async def _opened(self, address: str, nbytes: int) -> _Way | None:
        wanted = -(-nbytes // (SHARE * PAGESIZE)) * PAGESIZE
        with suppress(OSError), ExitStack() as stack:
            window = Window(min(self._most, max(LEAST_SLOT, wanted)))
            stack.callback(window.close)
            if await self._run(address, opened, window.place, self.on_gpu):
                stack.pop_all()
                return _Way(address, window, ThreadPoolExecutor(self._threads, "dgpu-window"))
        return None

    async def _both(
        self,
        key: tuple[str, str],
        nbytes: int,
        arrays: Sequence[Any],
        function: Callable[..., Any],
        *arguments: Any,
    ) -> Any:
        """Call a function on a worker, and send it arrays, or receive them, in threads.

        Return its result, or None if the worker is on another host. After an error the window is
        not used again: the worker may still be at it.
        """
        while (way := await self._way(key, nbytes)) is not None:
            async with way.lock:
                if self._ways.get(key) is not way:
                    continue  # another transfer has failed
                way.window.ring.restart()
                call = self._call(way, function, *arguments)
                try:
                    return await self._moved(way, arrays, key[1] == "to", call)
                except BaseException:
                    self._ways.pop(key, None)
                    with suppress(OSError, DgpuError):
                        await self._call(way, closed)
                    way.close()
                    raise
        return None

    async def _moved(self, way: _Way, arrays: Sequence[Any], sends: bool, call: Awaitable[T]) -> T:
        """Do this end's work while a call does the other's; each thread has its share of pieces."""
        ring, run = way.window.ring, asyncio.get_running_loop().run_in_executor

        def move(first: int) -> None:
            ring.move(arrays, sends=sends, first=first, step=self._threads)

        theirs = asyncio.ensure_future(call)
        works: list[Any] = [
            theirs,
            *(run(way.threads, move, first) for first in range(self._threads)),
        ]
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            if not all(work.done() for work in works):
                ring.stop()
            await asyncio.wait(works)
        errors = [error for work in works if (error := work.exception()) is not None]
        for error in errors:
            if not isinstance(error, StoppedError):
                raise error
        if errors:
            raise LostError(f"a transfer of blocks with {way.address} has stopped")
        return theirs.result()

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


class Mapped(dict[Place, Ring]):
    """The windows that a worker has mapped; it lets go of those whose client has died."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: dict[Place, int] = {}
        self._loop = asyncio.get_running_loop()

    def map(self, place: Place) -> Ring:
        """Map a window; an ``OSError`` if it is not there."""
        ring = mapped(place)
        self._clients[place] = file = os.pidfd_open(place.process)
        self[place] = ring
        self._loop.add_reader(file, self.let_go, place)  # readable once the process has ended
        return ring

    def let_go(self, place: Place) -> None:
        """Let go of a window, if it is open; what goes through it ends, and then it is unpinned."""
        if (ring := self.pop(place, None)) is not None:
            ring.stop()
        if (file := self._clients.pop(place, None)) is not None:
            self._loop.remove_reader(file)
            os.close(file)

    def close(self) -> None:
        """Let go of all windows; Dask calls this when the worker closes."""
        for place in list(self):
            self.let_go(place)


def _windows(worker: Worker) -> Mapped:
    if EXTENSION not in worker.extensions:
        worker.extensions[EXTENSION] = Mapped()
    windows: Mapped = worker.extensions[EXTENSION]
    return windows


async def _use(worker: Worker, place: Place, function: Callable[[Ring], Any]) -> Any:
    """Call a function of a window in a thread."""
    ring = _windows(worker).get(place)
    if ring is None:  # the worker has started again
        raise StoppedError("a worker has let go of a window")
    return await asyncio.get_running_loop().run_in_executor(None, function, ring)


def _pin(ring: Ring) -> None:
    """Pin the slots while the ring is in use, if possible: otherwise copies are only slower."""
    from cupy.cuda import runtime

    slots = ring.slots
    with suppress(runtime.CUDARuntimeError):
        runtime.hostRegister(slots.ctypes.data, slots.nbytes, 0)
        unpin = weakref.finalize(ring, runtime.hostUnregister, slots.ctypes.data)
        unpin.atexit = False  # the process and its pinned memory end together


async def opened(place: Place, on_gpu: bool, *, dask_worker: Worker) -> bool:
    """Map a window; return whether it is on this host."""
    try:
        ring = _windows(dask_worker).map(place)
    except OSError:
        return False
    if on_gpu:
        _pin(ring)
    return True


async def closed(place: Place, *, dask_worker: Worker) -> None:
    """Let go of a window."""
    _windows(dask_worker).let_go(place)


async def taken(
    place: Place, blocks: Sequence[tuple[Key, Kind]], on_gpu: bool, *, dask_worker: Worker
) -> dict[Key, int]:
    """Make blocks that the client sends data of the worker; return their bytes."""

    def take(ring: Ring) -> dict[Key, Any]:
        stream: Any = None
        if on_gpu:
            import cupy

            # not on a stream that ends with this call: blocks may outlive it
            arrived = {key: cupy.empty(*kind) for key, kind in blocks}
            stream = cupy.cuda.Stream(non_blocking=True)
            stream.wait_event(cupy.cuda.get_current_stream().record())
        else:
            arrived = {key: np.empty(*kind) for key, kind in blocks}
        ring.move(list(arrived.values()), sends=False, stream=stream)
        return arrived

    arrived = await _use(dask_worker, place, take)
    nbytes: dict[Key, int] = dask_worker.update_data(arrived)["nbytes"]
    return nbytes


async def kind_of(key: Key, *, dask_worker: Worker) -> Kind | None:
    """Return what a block is; None if it is no array, or not here."""
    block: Any = dask_worker.data.get(key)
    is_array = isinstance(block, np.ndarray) or hasattr(block, "__cuda_array_interface__")
    return (block.shape, block.dtype) if is_array and not block.dtype.hasobject else None


async def given(place: Place, key: Key, *, dask_worker: Worker) -> None:
    """Send a block to the client, after what CuPy's current stream does with it."""
    block = dask_worker.data[key]
    await _use(dask_worker, place, partial(Ring.move, arrays=[block], sends=True))
