"""Blocks to and from the workers of a client's host, through windows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dask_dgpu.batches.copying import Staging, copies
from dask_dgpu.batches.windows.place import SLOTS, Window, as_piece, pieces
from dask_dgpu.batches.windows.worker import closed, given, kept, kind, opened, taken
from dask_dgpu.errors import DgpuError

if TYPE_CHECKING:
    from distributed import Client

LEAST = 1 << 20
"""Bytes from which a block goes through a window: for fewer, Dask's own transfer is as fast."""

SLOT_BYTES = {"cpu": 8 << 20, "cuda": 64 << 20}
"""Bytes of a slot. A message for each costs about 1 ms, and slots count in a worker's memory."""

WATCH = 1.0
"""Seconds between looks whether the worker of an open call is still there."""

PATIENCE = 10.0
"""Seconds in which the scheduler notices that a worker is lost."""

Key = Any


class LostError(DgpuError):
    """A worker that held blocks of a batch was lost."""


@dataclass
class _Way:
    """A window to a worker or from it, and who may use it."""

    address: str
    window: Window
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _InTurn:
    """Calls that use the slots of a window in turn; all have ended when the context does."""

    def __init__(self) -> None:
        self._calls: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> _InTurn:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def slot(self) -> int:
        """Return the next slot once the call that uses it has ended; raise its error."""
        turn = len(self._calls)
        if turn >= SLOTS:
            await self._calls[turn - SLOTS]
        return turn % SLOTS

    def add(self, call: Coroutine[Any, Any, None]) -> None:
        """Begin a call that uses the slot."""
        self._calls.append(asyncio.ensure_future(call))

    async def ended(self) -> None:
        """Wait for all calls; raise the error of one."""
        await asyncio.gather(*self._calls)


class Windows:
    """The windows of a client to the workers of its host.

    Methods are coroutines for the client's event loop.
    """

    def __init__(self, client: Client, device: str, copying: Executor) -> None:
        self.client: Any = client
        self.on_gpu = device == "cuda"
        self.slot_bytes = SLOT_BYTES[device]
        self._ways: dict[tuple[str, str], _Way | None] = {}
        self._opening = asyncio.Lock()
        self._copying = copying
        self._staging = Staging()

    async def send(self, address: str, blocks: Mapping[Key, Any]) -> dict[Key, int] | None:
        """Copy blocks to a worker; return their bytes, or None if it is on another host."""
        way = await self._way(address, "to")
        if way is None:
            return None
        async with way.lock, _InTurn() as calls:
            for key, block in blocks.items():
                for start, piece in pieces(block, self.slot_bytes):
                    slot = await calls.slot()
                    await self._copied(as_piece(way.window.slots[slot], piece), piece)
                    what = slot, piece.nbytes, key, (block.shape, block.dtype), start
                    calls.add(self._call(way, taken, *what))
            await calls.ended()
            nbytes: dict[Key, int] = await self._call(way, kept)
            return nbytes

    async def receive(self, address: str, key: Key) -> Any:
        """Return a block of a worker; None if it must be fetched otherwise."""
        way = await self._way(address, "from")
        found = None if way is None else await self._run(address, kind, key)
        if way is None or found is None:
            return None
        block = self._staging.array(*found)
        async with way.lock, _InTurn() as calls:
            for start, piece in pieces(block, self.slot_bytes):
                slot = await calls.slot()
                calls.add(self._received(way, slot, key, start, piece))
            await calls.ended()
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

    async def _way(self, address: str, direction: str) -> _Way | None:
        async with self._opening:
            key = address, direction
            if key not in self._ways:
                self._ways[key] = await self._opened(address)
            return self._ways[key]

    async def _opened(self, address: str) -> _Way | None:
        try:
            window = Window(self.slot_bytes)
        except OSError:
            return None
        if await self._run(address, opened, window.place, self.on_gpu):
            return _Way(address, window)
        window.close()
        return None

    async def _received(self, way: _Way, slot: int, key: Key, start: int, piece: Any) -> None:
        await self._call(way, given, slot, piece.nbytes, key, start)
        await self._copied(piece, as_piece(way.window.slots[slot], piece))

    async def _copied(self, target: Any, source: Any) -> None:
        await asyncio.gather(*map(asyncio.wrap_future, copies(self._copying, target, source)))

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
