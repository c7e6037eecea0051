"""Any function of arrays, as one Dask graph whose blocks are written one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, prod
from typing import Any

import numpy as np
from dask.array.core import Array, normalize_chunks
from dask.base import is_dask_collection
from dask.core import flatten
from dask.utils import disable_gc

from dask_dgpu.array.chunks import small_steps
from dask_dgpu.batches.call import Request
from dask_dgpu.batches.held import Held, Tasks, held, read_again, tasks_of
from dask_dgpu.batches.plan import Part, Plan
from dask_dgpu.batches.planning import advice, predict, seconds_of
from dask_dgpu.batches.sinks import selected
from dask_dgpu.batches.sites import Cluster, Site
from dask_dgpu.batches.sources import Chunks, Operand, Region, largest_nbytes

VARIES = 1.1
"""Bytes that graphs of equal calls hold vary by less: their order depends on names of arrays."""

LARGEST = 64 << 20
"""Most bytes of a block."""
LEAST = 1 << 20
"""Least bytes of a block on a cluster: each costs tasks."""
MANY = 256
"""In this process operands have no more blocks, unless blocks of ``ENOUGH`` bytes are too large."""
ENOUGH = 16 << 20
MOST_TASKS = 10_000
"""Smaller blocks are not tried if there are more tasks."""
PER_RANK = 4
"""Blocks of an operand for each rank of a cluster."""
HELD = {True: 8, False: 32}
"""Blocks that a thread of this process holds, or a worker, which also sends and spills some."""


@dataclass(frozen=True)
class Whole:
    """A request as one graph; ``result`` is no Dask array if the function computed at once.

    ``reads`` are the arrays of the graph whose tasks load blocks in this process, ``room`` the
    bytes of a device, and ``held`` those that threads of this process hold while they compute the
    ``tasks``.
    """

    request: Request
    room: float
    result: Any
    reads: tuple[Array, ...]
    tasks: Tasks
    held: Held

    @classmethod
    def planned(cls, request: Request, room: float, *, send: bool = True) -> Whole:
        """Build the graph of a request, of blocks so small that it fits, if there are any.

        Blocks are halved: with more room all that are tried with less can be reached, so advice is
        enough. On a cluster operands are sent, unless the graph is only for a plan. A call may need
        a bit more than a plan for which there was room.
        """
        site, block = request.site, float(LARGEST)
        sources = [operand for operand in request.operands if not isinstance(operand.source, Array)]
        while block > max(1, room / (site.threads * HELD[site.in_process])):
            block /= 2
        best = trial = cls._in_blocks(request, room, block, send)
        while (
            not trial.fits and trial.is_small and any(block > _floor(source) for source in sources)
        ):
            block /= 2
            trial = cls._in_blocks(request, room, block, send)
            best = min(best, trial, key=lambda each: each.held.nbytes)
        if send and not best.fits and best.held.nbytes <= VARIES * room:
            best = replace(best, room=best.held.nbytes)
        return best

    @classmethod
    def _in_blocks(cls, request: Request, room: float, block: float, send: bool) -> Whole:
        site = request.site
        arrays, reads, loading = [], [], 0
        for operand in request.operands:
            if isinstance(operand.source, Array):
                arrays.append(operand.source)
                continue
            chunks = _chunks_of(operand, site, block)
            arrays.append(site.spread(operand, chunks) if send else operand.lazy(chunks))
            reads.append(arrays[-1])
            largest = [max(sizes, default=0) for sizes in chunks]
            loading = max(loading, operand.bytes_beside(largest))
        result = request.of(arrays)
        if not (isinstance(result, Array) or _is_of_numbers(result)):
            what = "a function that returns one array"
            got = f"one that returns {type(result).__name__}"
            raise TypeError(f"expected op to be {what}, got {got}")
        usual = sum(largest_nbytes(read.chunks, read.dtype.itemsize) for read in reads)
        tasks: Tasks = {}
        needs = Held()
        if site.in_process and not isinstance(result, Array):
            needs = Held(at_work=site.threads * HELD[True] * usual)
        elif site.in_process:
            rule = (result, site.threads, usual, request.operation.beside, loading)
            with disable_gc(), small_steps(int(block)):  # our own operations expand to tasks
                tasks = tasks_of(result)
                needs = held(tasks, *rule)
                if needs.nbytes > room:  # each reader of a block loads it, so that none is kept
                    again = [read.name for read in reads]
                    needs = held(tasks, *rule, again)
                    tasks = read_again(tasks, again, list(flatten(result.__dask_keys__())))
        return cls(request, room, result, tuple(reads), tasks, needs)

    @property
    def is_lazy(self) -> bool:
        """Whether the result is a graph of known shape."""
        return isinstance(self.result, Array) and all(map(isfinite, self.result.shape))

    @property
    def is_small(self) -> bool:
        """Whether there may be more tasks."""
        return len(self.tasks) < MOST_TASKS and self.held.graph <= self.room

    @property
    def fits(self) -> bool:
        """Whether there is room for the blocks that this process holds; other sizes are unknown."""
        return not self.is_lazy or self.held.nbytes <= self.room

    @property
    def chunks(self) -> list[Chunks]:
        """Of the operands that have blocks of a planned size."""
        return [read.chunks for read in self.reads]

    @property
    def blocks(self) -> int:
        """The blocks of the result."""
        return max(1, self.result.npartitions) if self.is_lazy else 1

    @cached_property
    def plan(self) -> Plan:
        """The plan; on a cluster its bytes are estimates for elementwise work and reductions."""
        request, site = self.request, self.request.site
        read = sum(operand.nbytes for operand in request.operands)
        written = prod(self.result.shape) * self.result.dtype.itemsize if self.is_lazy else 0
        nbytes = read + written
        parts = [Part("operands and result", (), 1, nbytes // site.ranks)]
        if site.in_process:
            parts = [
                Part("blocks at work", (), site.threads, self.held.at_work),
                Part("blocks for later tasks", (), 1, self.held.waiting),
            ]
            if self.held.graph:
                parts.append(Part("Dask's tasks", (), 1, self.held.graph))
        plan = Plan.of(request.title, site.ranks, self.room, parts)
        if not self.fits:
            least = int(VARIES * plan.peak_bytes)
            needs = "Dask holds blocks that several tasks need: it"
            return replace(plan, whole=True, advice=advice(site, needs, least, self.room))
        spills = "Dask spills blocks to disk; use more workers to avoid this"
        return replace(
            plan,
            feasible=True,
            batches=self.blocks,
            rows=max(self.result.chunks[0]) if self.is_lazy and self.result.ndim else 1,
            host_bytes=nbytes,
            advice=spills if plan.peak_bytes > self.room else "",
            whole=True,
        )

    def timed(self) -> Plan:
        """Return the plan with its seconds and the bytes between ranks."""
        if not (self.is_lazy and self.plan.feasible):
            return self.plan
        site, nbytes = self.request.site, self.plan.host_bytes
        batch, moved = predict(site, self.result)
        return replace(self.plan, rank_bytes=moved, seconds=seconds_of(site, batch, nbytes, 0, 1))

    def compute(self, target: Any, advance: Callable[[], None]) -> Any:
        """Return the array with the result; if its shape is unknown before, in an unchecked one.

        ``advance`` is called for each block that is written.
        """
        request, result = self.request, self.result
        if self.is_lazy:
            out = selected(request, target)

            def put(region: Region, block: Any) -> None:
                declared = tuple(part.stop - part.start for part in region)
                if np.shape(block) != declared:  # NumPy would broadcast it
                    raise ValueError(f"expected a block of shape {declared}, got {np.shape(block)}")
                out[region] = block
                advance()

            request.site.store(result, put, self.tasks)
            return target
        is_array = isinstance(result, Array)
        values: Any = request.site.compute(result) if is_array else np.asarray(result)
        target = request.target(target, values.shape, values.dtype)
        target[...] = values
        return target

    def drop(self) -> None:
        """Free the operands that were sent, also if frames of an error hold them."""
        if isinstance(self.request.site, Cluster):
            self.request.site.client.cancel(list(self.reads))


def _is_of_numbers(result: Any) -> bool:
    """Whether a function returned a number or an array in place of a Dask array."""
    if is_dask_collection(result) or isinstance(result, tuple | list | str | bytes):
        return False
    return np.asarray(result).dtype.kind != "O"


def _chunks_of(operand: Operand, site: Site, block: float) -> Chunks:
    """Return chunks of about so many bytes; a cluster gets some for each rank."""
    if not operand.nbytes:  # Dask would divide by zero
        return tuple((size,) for size in operand.shape)
    if site.in_process:
        block = max(block, _floor(operand))
    else:
        block = min(max(block, LEAST), operand.nbytes / (site.ranks * PER_RANK))
    limit = max(operand.dtype.itemsize, int(block))
    chunks: Chunks = normalize_chunks("auto", operand.shape, limit=limit, dtype=operand.dtype)
    return chunks


def _floor(operand: Operand) -> float:
    """Return the least bytes of a block of an operand in this process."""
    return min(operand.nbytes / MANY, ENOUGH)
