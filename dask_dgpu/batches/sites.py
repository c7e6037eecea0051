"""Where batches are computed: in this process, or on the workers of a client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import dask
import psutil
from dask.array.core import Array
from dask.system import CPU_COUNT

from dask_dgpu.arguments import check_client
from dask_dgpu.batches.blocks import Chunks, Region, Room, array_of, on_host, regions
from dask_dgpu.batches.cluster import Cluster
from dask_dgpu.batches.held import Tasks, write
from dask_dgpu.batches.sources import Operand
from dask_dgpu.environment.facts import ALONE, ClusterFacts, current_client, gather
from dask_dgpu.environment.settings import read
from dask_dgpu.optimizer import GraphOptimizer

if TYPE_CHECKING:
    from distributed import Client


@dataclass
class Here:
    """Threads of this process compute; operands are views of host arrays."""

    optimizer: GraphOptimizer
    is_enabled: bool
    overlaps = False
    others = 0

    in_process: bool = True
    ranks: int = 1
    threads: int = field(default_factory=lambda: dask.config.get("num_workers", None) or CPU_COUNT)
    _computing: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "dgpu-compute"), repr=False
    )

    @cached_property
    def facts(self) -> ClusterFacts:
        """The process, with the memory that is available before anything is computed."""
        return replace(ALONE, device_memory=int(psutil.virtual_memory().available))

    @property
    def room(self) -> float:
        """Bytes of the settings, or the memory that is available."""
        room = replace(self.optimizer, facts=self.facts).room(self.others)
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
        found = handle.result()
        graph = dict(found.dask)
        for index, region in regions(found.chunks):
            yield region, on_host(graph[(found.name, *index)])

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

    def store(self, result: Array, out: Any, tasks: Tasks) -> None:
        """Compute and write blocks in threads, one write at a time."""
        write(tasks, result, out, self.threads)

    @property
    def _by_threads(self) -> dict[str, Any]:
        """How Dask computes: from other threads than the main one it would use more."""
        return {"scheduler": "threads", "num_workers": self.threads}

    def workers(self) -> set[str]:
        """Return none."""
        return set()

    def lost(self, workers: set[str], error: Exception) -> set[str]:
        """Return none."""
        return set()

    def close(self) -> None:
        """Wait for the batch that is being computed."""
        self._computing.shutdown(wait=True, cancel_futures=True)


Site = Here | Cluster
"""Where arrays are computed: on ``ranks`` devices, each ``threads`` blocks at a time.

A device has ``room`` bytes, beside the ``others`` of other results. If transfers can hide behind
work, several batches take less time than one: it ``overlaps``.
"""


@contextmanager
def opened(client: Client | None) -> Iterator[Site]:
    """Yield the site of a client, by default of the current one, or this process."""
    client = current_client() if client is None else client
    if client is None:
        site: Site = Here(*_optimizer(None))
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
