"""Where batches are computed: in this process, or on the workers of a client."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
import psutil
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT

from dask_dgpu.arguments import check_client
from dask_dgpu.environment.facts import ALONE, current_client, gather
from dask_dgpu.environment.settings import read
from dask_dgpu.errors import DgpuError
from dask_dgpu.planner.optimizer import GraphOptimizer
from dask_dgpu.planner.present import present_on
from graph_opt.model.layout import cuts_of, dealt

if TYPE_CHECKING:
    from distributed import Client

Chunks = tuple[tuple[int, ...], ...]
Region = tuple[slice, ...]


class LostError(DgpuError):
    """A worker that held blocks of a batch was lost."""


class Site(Protocol):
    """Computes Dask arrays, and holds their operands meanwhile."""

    optimizer: GraphOptimizer
    in_process: bool
    is_enabled: bool

    @property
    def ranks(self) -> int:
        """Devices that share the blocks of a batch."""

    @property
    def threads(self) -> int:
        """Blocks that one device computes at a time."""

    @property
    def room(self) -> float:
        """Bytes of a device for blocks."""

    def load(self, part: Any, chunks: Chunks) -> Array:
        """Send a part of an operand to the devices; return it as a Dask array."""

    def start(self, result: Array) -> Any:
        """Begin to compute an array; return a handle."""

    def blocks(self, handle: Any) -> Iterator[tuple[Region, Any]]:
        """Yield the blocks of an array as host arrays, with their places; raise its error."""

    def wait(self, handle: Any) -> None:
        """Wait for an array that stays on the devices; raise its error."""

    def cancel(self, handle: Any) -> None:
        """Give up an array."""

    def store(self, result: Array, out: Any) -> None:
        """Compute an array and write its blocks, one by one, with ``out[region] = block``."""

    def close(self) -> None:
        """Give up what has not been computed."""


@contextmanager
def opened(client: Client | None) -> Iterator[Site]:
    """Yield the site of a client, by default of the current one, or this process."""
    client = current_client() if client is None else client
    site: Site
    if client is None:
        site = Here(*_optimizer(None))
    else:
        check_client("client", client)
        site = Cluster(client, *_optimizer(client))
    try:
        yield site
    finally:
        site.close()


def _optimizer(client: Client | None) -> tuple[GraphOptimizer, bool]:
    """Return the optimizer for a site, and whether it is enabled; else it is only for plans."""
    enabled = dask.config.get("array_optimize", None)
    scheduler = None if client is None else client.scheduler_info(n_workers=0)["id"]
    if isinstance(enabled, GraphOptimizer) and enabled.facts.scheduler == scheduler:
        return enabled.calibrated(client), True
    settings = read()
    facts = ALONE if client is None else gather(client, settings)
    return GraphOptimizer(settings, facts), False


@dataclass
class Here:
    """Threads of this process compute; operands are views of host arrays."""

    optimizer: GraphOptimizer
    is_enabled: bool
    in_process: bool = True
    ranks: int = 1
    threads: int = CPU_COUNT
    _computing: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "dgpu-compute"), repr=False
    )

    @property
    def room(self) -> float:
        """Bytes of the settings, or the memory that is available."""
        facts = replace(ALONE, device_memory=int(psutil.virtual_memory().available))
        room = replace(self.optimizer, facts=facts).room((), present_on(None))
        return float("inf") if room is None else room

    def load(self, part: Any, chunks: Chunks) -> Array:
        """Return a view."""
        if isinstance(part, Array):
            return part.rechunk(chunks)
        blocks = {index: part[region] for index, region in regions(chunks)}
        return array_of(blocks, chunks, part.dtype)

    def start(self, result: Array) -> Future[Array]:
        """Begin to compute in a thread."""
        return self._computing.submit(result.persist, scheduler="threads")

    def blocks(self, handle: Future[Array]) -> Iterator[tuple[Region, Any]]:
        """Wait for the array, and yield its blocks."""
        found = handle.result()
        graph = dict(found.dask)
        for index, region in regions(found.chunks):
            yield region, on_host(graph[(found.name, *index)])

    def wait(self, handle: Future[Array]) -> None:
        """Wait for the array."""
        handle.result()

    def cancel(self, handle: Future[Array]) -> None:
        """Give up an array unless it is being computed."""
        handle.cancel()

    def store(self, result: Array, out: Any) -> None:
        """Compute and write blocks in threads, one write at a time."""
        da.store(result, out, lock=True, scheduler="threads")

    def close(self) -> None:
        """Wait for the batch that is being computed."""
        self._computing.shutdown(wait=True, cancel_futures=True)


@dataclass
class Cluster:
    """The workers of a client: operands are scattered in even shares."""

    client: Client
    optimizer: GraphOptimizer
    is_enabled: bool
    in_process: bool = False
    threads: int = 1
    _started: dict[str, Array] = field(default_factory=dict, repr=False)
    _used: set[str] = field(default_factory=set, repr=False)

    @property
    def ranks(self) -> int:
        """The workers."""
        return max(1, self.optimizer.facts.workers)

    @property
    def room(self) -> float:
        """Bytes of the worker with the least, without other results."""
        present = present_on(self.optimizer.facts.scheduler, self.client)
        room = self.optimizer.room((), present)
        return float("inf") if room is None else room

    def load(self, part: Any, chunks: Chunks) -> Array:
        """Scatter the blocks of a part; workers get even shares, in order."""
        if isinstance(part, Array):
            return part.rechunk(chunks)
        name = f"operand-{uuid4().hex}"
        addresses = sorted(self._addresses())
        self._used |= set(addresses)
        places = list(regions(chunks))
        shares: dict[str, dict[Any, Any]] = defaultdict(dict)
        for (index, region), owner in zip(places, dealt(len(places), len(addresses)), strict=True):
            shares[addresses[owner]][(name, *index)] = part[region]
        with self._no_loss():
            sent = self.client.sync(self._scatter, shares)
        return array_of(sent, chunks, part.dtype, name)

    async def _scatter(self, shares: Mapping[str, Mapping[Any, Any]]) -> dict[Any, Any]:
        """Send blocks to all workers at once; return their futures by index."""
        client: Any = self.client
        sent = await asyncio.gather(
            *(
                client._scatter(blocks, workers=[address], hash=False)
                for address, blocks in shares.items()
            )
        )
        return {key[1:]: future for each in sent for key, future in each.items()}

    def start(self, result: Array) -> Array:
        """Begin to compute on the workers."""
        started: Array = self.client.persist(result)
        self._started[started.name] = started
        return started

    def blocks(self, handle: Array) -> Iterator[tuple[Region, Any]]:
        """Yield blocks in the order in which they are ready."""
        from distributed import as_completed

        graph = dict(handle.dask)
        places = {(handle.name, *index): region for index, region in regions(handle.chunks)}
        futures = [graph[key] for key in places]
        with self._no_loss():
            for future, block in as_completed(futures, with_results=True):
                if isinstance(block, BaseException):  # of futures that somebody cancelled
                    raise block
                yield places[future.key], on_host(block)
        self._started.pop(handle.name, None)

    def wait(self, handle: Array) -> None:
        """Wait for the blocks on the workers."""
        from distributed import futures_of, wait

        with self._no_loss():
            for future in wait(futures_of(handle)).done:
                if future.status == "error":
                    future.result()
        self._started.pop(handle.name, None)

    def cancel(self, handle: Array) -> None:
        """Give up an array unless all of it has been fetched."""
        if self._started.pop(handle.name, None) is not None:
            self.client.cancel(handle)

    def store(self, result: Array, out: Any) -> None:
        """Compute on the workers, and write blocks in the order in which they are ready."""
        for region, block in self.blocks(self.start(result)):
            out[region] = block

    def _addresses(self) -> set[str]:
        # not client.scheduler_info: another thread's call for fewer workers changes its result
        scheduler: Any = self.client.scheduler
        return set(self.client.sync(scheduler.identity, n_workers=-1)["workers"])

    @contextmanager
    def _no_loss(self) -> Iterator[None]:
        """Replace errors that follow from the loss of a worker, once for each."""
        try:
            yield
        except Exception as error:
            lost = self._used - self._addresses()
            self._used -= lost
            if not lost:
                raise
            names = ", ".join(sorted(lost))
            raise LostError(f"lost {names} while batches were computed") from error

    def close(self) -> None:
        """Cancel what has not been fetched."""
        for started in list(self._started.values()):
            self.cancel(started)


def array_of(
    blocks: Mapping[tuple[int, ...], Any],
    chunks: Chunks,
    dtype: np.dtype[Any],
    name: str | None = None,
) -> Array:
    """Return a Dask array of blocks by index, without copies, under a name or a new one."""
    name = f"operand-{uuid4().hex}" if name is None else name
    tasks: dict[Any, Any] = {(name, *index): block for index, block in blocks.items()}
    return Array(
        HighLevelGraph.from_collections(name, tasks, dependencies=()), name, chunks, dtype=dtype
    )


def regions(chunks: Chunks) -> Iterator[tuple[tuple[int, ...], Region]]:
    """Yield index and place of each block."""
    spans = [[slice(*span) for span in pairwise(cuts_of(sizes))] for sizes in chunks]
    for found in product(*(list(enumerate(each)) for each in spans)):
        yield tuple(at for at, _ in found), tuple(region for _, region in found)


def on_host(block: Any) -> Any:
    """Return a block as a NumPy array or scalar."""
    return block.get() if hasattr(block, "__cuda_array_interface__") else block
