"""Where batches are computed: in this process, or on the workers of a client."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dask
import numpy as np
import psutil
from dask.array.core import Array
from dask.system import CPU_COUNT

from dask_dgpu.batches.held import Put, Tasks, write
from dask_dgpu.batches.sources import (
    Chunks,
    Operand,
    Region,
    Room,
    array_of,
    largest_nbytes,
    on_host,
    regions,
)
from dask_dgpu.batches.windows import LEAST, LostError, Windows, together
from dask_dgpu.environment.facts import ALONE, chosen_client, gather
from dask_dgpu.environment.settings import read
from dask_dgpu.environment.workers import await_worker
from dask_dgpu.optimizer import GraphOptimizer
from dask_dgpu.planner.present import present_on
from graph_opt.model.layout import dealt

if TYPE_CHECKING:
    from distributed import Client, Scheduler

AT_A_TIME = 64 << 20
"""Bytes of an operand of any size that a worker gets at a time."""

PATIENCE = 10.0
"""Seconds in which the scheduler notices that a worker is lost; its connections fail before."""


@dataclass
class Here:
    """Threads of this process compute; operands are views of host arrays."""

    optimizer: GraphOptimizer
    is_enabled: bool
    overlaps = False
    others = 0

    in_process: bool = True
    ranks: int = 1
    gone: frozenset[str] = frozenset()
    threads: int = field(default_factory=lambda: dask.config.get("num_workers", None) or CPU_COUNT)
    _computing: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "dgpu-compute"), repr=False
    )

    @property
    def room(self) -> float:
        """Bytes of the settings, or the memory that is available."""
        room = self.optimizer.room(self.others)
        return float("inf") if room is None else room

    def spread(self, operand: Operand, chunks: Chunks) -> Array:
        """Return an array whose tasks read blocks."""
        return operand.lazy(chunks)

    def load(self, part: Any, chunks: Chunks) -> Array:
        """Return a view."""
        if isinstance(part, Array):
            return part.rechunk(chunks)
        blocks = {index: part[region] for index, region in regions(chunks)}
        return array_of(blocks, chunks, part.dtype)

    def start(self, result: Array) -> Future[Array]:
        """Begin to compute in a thread."""
        return self._computing.submit(result.persist, **self._by_threads)

    def blocks(
        self, handle: Future[Array], room: Room | None = None
    ) -> Iterator[tuple[Region, Any]]:
        """Wait for the array, and yield its blocks."""
        blocks = handle.result()
        graph = dict(blocks.dask)
        for index, region in regions(blocks.chunks):
            yield region, on_host(graph[(blocks.name, *index)])

    def wait(self, handle: Future[Array]) -> None:
        """Wait for the array."""
        handle.result()

    def release(self, handle: Future[Array]) -> None:
        """Nothing holds it."""

    def cancel(self, handle: Future[Array]) -> None:
        """Give up an array unless it is being computed."""
        handle.cancel()

    def compute(self, result: Array) -> Any:
        """Compute in threads."""
        return result.compute(**self._by_threads)

    def store(self, result: Array, put: Put, tasks: Tasks) -> None:
        """Compute blocks in threads and ``put`` each to its place, one at a time."""
        write(tasks, result, put, self.threads)

    @property
    def _by_threads(self) -> dict[str, Any]:
        """How Dask computes: from other threads than the main one it would use more."""
        return {"scheduler": "threads", "num_workers": self.threads}

    def lost(self, before: frozenset[str], error: Exception) -> frozenset[str]:
        """Return no workers."""
        return self.gone

    def close(self) -> None:
        """Wait for the batch that is being computed."""
        self._computing.shutdown(wait=True, cancel_futures=True)


@dataclass
class Cluster:
    """The workers of a client: operands are sent in even shares.

    Large blocks to and from workers of this host go through windows, and are on GPUs if gangs are.
    """

    client: Client
    optimizer: GraphOptimizer
    is_enabled: bool
    in_process: bool = False
    threads: int = 1
    _started: dict[str, Array] = field(default_factory=dict, repr=False)
    _used: set[str] = field(default_factory=set, repr=False)
    gone: frozenset[str] = frozenset()
    _windows: Windows = field(init=False, repr=False)
    _module: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        device = self.optimizer.facts.device if self.is_enabled else "cpu"
        self._windows = Windows(self.client, device, self.ranks)

    @property
    def overlaps(self) -> bool:
        """Whether blocks arrive on GPUs."""
        return self._windows.on_gpu

    @property
    def ranks(self) -> int:
        """The workers."""
        return max(1, self.optimizer.facts.workers)

    @property
    def room(self) -> float:
        """Bytes of the worker with the least, without other results."""
        room = self.optimizer.room(self.others)
        return float("inf") if room is None else room

    @cached_property
    def others(self) -> int:
        """Bytes of other results on the worker with the most, before anything is sent."""
        return present_on(self.optimizer.facts.scheduler, self.client).others(())

    def _module_for(self, nbytes: int) -> Any:
        """Return CuPy if blocks can arrive on GPUs and this process can describe them, else NumPy.

        Workers are about to get so many bytes.
        """
        if self._module is None:
            module: Any = np
            if self._windows.on_gpu and find_spec("cupy") is not None:
                import cupy

                addresses = self._addresses()
                share = nbytes // len(addresses)
                near = self.client.sync(self._windows.reach, addresses, share)
                module = cupy if near and cupy.cuda.is_available() else np
            self._module = module
        return self._module

    def load(self, part: Any, chunks: Chunks) -> Array:
        """Send the blocks of a part; workers get even shares, in order."""
        module = self._module_for(part.nbytes)
        if isinstance(part, Array):
            return (part if module is np else part.to_backend("cupy")).rechunk(chunks)
        return self._dealt(part.__getitem__, chunks, part.dtype, module)

    def spread(self, operand: Operand, chunks: Chunks) -> Array:
        """Read and send some blocks at a time, so that workers can spill them."""
        largest = largest_nbytes(chunks, operand.dtype.itemsize)
        count = self.ranks * max(1, AT_A_TIME // max(1, largest))
        return self._dealt(operand.block, chunks, operand.dtype, np, count)

    def _dealt(
        self,
        read: Callable[[Region], Any],
        chunks: Chunks,
        dtype: np.dtype[Any],
        module: Any,
        at_a_time: int | None = None,
    ) -> Array:
        """Send blocks in even shares, in order, all or some ``at_a_time``; return their array."""
        name, places = f"operand-{uuid4().hex}", list(regions(chunks))
        sent: dict[Any, Any] = {}
        count = at_a_time or len(places)
        for first in range(0, len(places), count):
            some = places[first : first + count]
            addresses = sorted(self._addresses())
            shares: dict[str, dict[Any, Any]] = defaultdict(dict)
            owners = dealt(len(some), len(addresses))
            for (index, region), owner in zip(some, owners, strict=True):
                shares[addresses[owner]][(name, *index)] = read(region)
            sent |= self.client.sync(self._send_all, shares, module)
        return array_of(sent, chunks, dtype, name, module)

    async def _send_all(
        self, shares: Mapping[str, Mapping[Any, Any]], module: Any
    ) -> dict[Any, Any]:
        """Send blocks to all workers at once; return their futures by index."""
        sent = await together(self._send(*share, module) for share in shares.items())
        return {key[1:]: future for each in sent for key, future in each.items()}

    async def _send(self, address: str, blocks: Mapping[Any, Any], module: Any) -> dict[Any, Any]:
        client: Any = self.client
        through_windows = (block.nbytes for block in blocks.values() if not block.dtype.hasobject)
        if module is not np or max(through_windows, default=0) >= LEAST:
            nbytes = await self._windows.send(address, blocks, on_gpu=module is not np)
            if nbytes is not None:
                return await self._declared(address, nbytes, module.ndarray)
            if module is not np:
                self._module = np  # the next batches get blocks by Dask
                raise LostError(f"{address}, a new worker, is not on the host of this client")
        try:
            sent: dict[Any, Any] = await client._scatter(blocks, workers=[address], hash=False)
        except OSError as error:
            raise LostError(f"{address} cannot be reached") from error
        return sent

    async def _declared(self, address: str, nbytes: dict[Any, int], of: type) -> Any:
        """Tell the scheduler which blocks a worker has; return their futures by key.

        Blocks are arrays of the type ``of``.
        """
        from distributed import Future

        client: Any = self.client
        futures: dict[Any, Any] = {key: Future(key, client) for key in nbytes}
        if not await client._run_on_scheduler(_declare, address, nbytes, client.id):
            raise LostError(f"{address} is lost")
        for key in nbytes:
            client.futures[key].finish(type=of)
        return futures

    def start(self, result: Array) -> Array:
        """Begin to compute on the workers."""
        started: Array = self.client.persist(result)
        self._started[started.name] = started
        return started

    def blocks(self, handle: Array, room: Room | None = None) -> Iterator[tuple[Region, Any]]:
        """Yield blocks in the order in which they are ready.

        Those that come through windows are written to their ``room``, if there is one.
        """
        from distributed import as_completed

        graph = dict(handle.dask)
        places = {(handle.name, *index): region for index, region in regions(handle.chunks)}
        futures = [graph[key] for key in places]
        largest = largest_nbytes(handle.chunks, handle.dtype.itemsize)
        near = largest >= LEAST and not handle.dtype.hasobject
        if near and room is not None:
            self.wait(handle)  # nothing is written if a block fails
        for batch in as_completed(futures, with_results=not near).batches():
            if near:
                rooms = {each.key: room(places[each.key]) for each in batch} if room else {}
                batch = self.client.sync(self._receive_all, batch, largest, rooms)
            for future, block in batch:
                if future.status == "error":  # Dask raises only the first one of a batch
                    future.result()
                if isinstance(block, BaseException):  # of futures that somebody cancelled
                    raise block
                yield places[future.key], on_host(block)
        self._started.pop(handle.name, None)

    async def _receive_all(
        self, futures: Sequence[Any], nbytes: int, rooms: Mapping[Any, Any]
    ) -> list[tuple[Any, Any]]:
        """Return blocks of at most so many bytes with their futures, from all workers at once."""
        client: Any = self.client
        done = [future.key for future in futures if future.status == "finished"]
        holders = await client.scheduler.who_has(keys=done) if done else {}

        async def receive(future: Any) -> Any:
            addresses = holders.get(future.key)
            if addresses:
                room = rooms.get(future.key)
                block = await self._windows.receive(addresses[0], future.key, nbytes, room)
                if block is not None:
                    return block
            return await future._result()

        return list(zip(futures, await together(map(receive, futures)), strict=True))

    def wait(self, handle: Array) -> None:
        """Wait for the blocks on the workers."""
        from distributed import futures_of, wait

        for future in wait(futures_of(handle)).done:
            if future.status == "error":
                future.result()

    def release(self, handle: Array) -> None:
        """Let go of an array that the next one reads."""
        self._started.pop(handle.name, None)

    def cancel(self, handle: Array) -> None:
        """Give up an array unless all of it has been fetched.

        Dask's scheduler drops a client that cancels keys which nobody wants any more.
        """
        if self._started.pop(handle.name, None) is not None:
            self.client.cancel(handle)

    def compute(self, result: Array) -> Any:
        """Compute on the workers, and fetch the values."""
        future = self.client.compute(result)
        try:
            return on_host(future.result())
        finally:
            future.cancel()  # an error keeps its frames, so the future and the operands too

    def store(self, result: Array, put: Put, tasks: Tasks) -> None:
        """Compute on the workers, and ``put`` blocks in the order in which they are ready."""
        started = self.start(result)
        try:
            for region, block in self.blocks(started):
                put(region, block)
        finally:
            self.cancel(started)

    def _addresses(self) -> set[str]:
        """Return the workers that get blocks, at least one."""
        addresses: set[str] = set()
        while not addresses:  # the last worker may be lost after the wait for it
            await_worker(self.client)
            addresses = self.client.sync(self._windows.addresses)
        self._used |= addresses
        return addresses

    def lost(self, before: frozenset[str], error: Exception) -> frozenset[str]:
        """Return the workers of this call that are ``gone`` beside those ``before``.

        An error of a connection may come before the scheduler notices.
        """
        from distributed.comm.core import CommClosedError

        is_late = isinstance(error, LostError | CommClosedError)
        end = time.monotonic() + (PATIENCE if is_late else 0)
        while True:
            self.gone |= self._used - self.client.sync(self._windows.addresses)
            if self.gone - before or time.monotonic() >= end:
                return self.gone - before
            time.sleep(0.1)

    def close(self) -> None:
        """Cancel what has not been fetched."""
        for started in list(self._started.values()):
            self.cancel(started)
        self.client.sync(self._windows.close)


def _declare(
    address: str, nbytes: dict[Any, int], client: str, *, dask_scheduler: Scheduler
) -> bool:
    """Let the scheduler know of blocks on a worker, unless it is lost."""
    if address not in dask_scheduler.workers:
        return False  # of these blocks keys would stay for ever
    who_has = {key: [address] for key in nbytes}
    dask_scheduler.update_data(who_has=who_has, nbytes=nbytes, client=client)
    return True


Site = Here | Cluster
"""Where arrays are computed: on ``ranks`` devices, each ``threads`` blocks at a time.

A device has ``room`` bytes, beside the ``others`` of other results. If transfers can hide behind
work, several batches take less time than one: it ``overlaps``.
"""


@contextmanager
def opened(client: Client | None) -> Iterator[Site]:
    """Yield the site of a client, by default of the current one, or this process."""
    client = chosen_client(client)
    if client is None:
        site: Site = Here(*_optimizer(None))
    else:
        site = Cluster(client, *_optimizer(client))
    try:
        yield site
    finally:
        site.close()


def _optimizer(client: Client | None) -> tuple[GraphOptimizer, bool]:
    """Return the optimizer for a site, and whether it is enabled; else it is only for plans."""
    enabled = dask.config.get("array_optimize", None)
    scheduler = None if client is None else client.scheduler_info(n_workers=0)["id"]
    is_enabled = isinstance(enabled, GraphOptimizer) and enabled.facts.scheduler == scheduler
    settings = enabled.settings if is_enabled else read()
    if client is None:  # with what is available before anything is computed
        facts = replace(ALONE, device_memory=int(psutil.virtual_memory().available))
        return GraphOptimizer(settings, facts), is_enabled
    if is_enabled:
        return enabled.calibrated(client), True
    return GraphOptimizer(settings, gather(client, settings)), False
