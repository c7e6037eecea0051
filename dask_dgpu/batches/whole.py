"""Any function of arrays, as one Dask graph whose blocks are written one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, prod
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.base import is_dask_collection
from dask.core import flatten
from dask.utils import disable_gc

from dask_dgpu.array.chunks import small_steps
from dask_dgpu.batches.again import SHARE
from dask_dgpu.batches.block_size import (
    HELD,
    MOST_TASKS,
    SMALLER,
    can_be_cut,
    chunks_of,
    first_block,
)
from dask_dgpu.batches.blocks import Chunks, largest_nbytes
from dask_dgpu.batches.cluster import Cluster
from dask_dgpu.batches.held import Held, Rule, Tasks
from dask_dgpu.batches.plan import Part, Plan
from dask_dgpu.batches.planning import Prediction, advice, predict, seconds_of
from dask_dgpu.batches.progress import Batches
from dask_dgpu.batches.request import Request
from dask_dgpu.batches.streamed import read_again, tasks_of

VARIES = 1.1
"""Bytes that graphs of equal calls hold vary by less: their order depends on names of arrays."""


@dataclass(frozen=True)
class Whole(Request):
    """A request as one graph; ``result`` is no Dask array if the function computed at once.

    ``reads`` are the arrays of the graph whose tasks load blocks in this process, ``room`` the
    bytes of a device, and ``held`` those that threads of this process hold while they compute the
    ``tasks``.
    """

    room: float
    result: Any
    reads: tuple[Array, ...]
    tasks: Tasks
    held: Held

    @classmethod
    def planned(cls, request: Request, room: float, *, send: bool = True) -> Whole:
        """Build the graph of a request, of blocks so small that it fits, if there are any.

        On a cluster operands are sent, unless the graph is only for a plan. A call may need a bit
        more than a plan for which there was room.
        """
        sources = [each for each in request.operands if not isinstance(each.source, Array)]
        block = first_block(sources, request.site, room)
        best = found = cls._in_blocks(request, room, block, send)
        while not found.fits and found.is_small and can_be_cut(sources, block):
            block /= SMALLER
            found = cls._in_blocks(request, room, block, send)
            best = min(best, found, key=lambda each: each.held.nbytes)
        if send and not best.fits and best.held.nbytes <= VARIES * room:
            best = replace(best, room=best.held.nbytes)
        return best

    @classmethod
    def _in_blocks(cls, request: Request, room: float, block: float, send: bool) -> Whole:
        operation, site = request.operation, request.site
        arrays, reads, loading = [], [], 0
        for each in request.operands:
            if isinstance(each.source, Array):
                arrays.append(each.source)
                continue
            chunks = chunks_of(each, site, block)
            arrays.append(site.spread(each, chunks) if send else each.lazy(chunks))
            reads.append(arrays[-1])
            largest = [max(sizes, default=0) for sizes in chunks]
            loading = max(loading, each.bytes_beside(largest))
        result = request.of(arrays)
        if not (isinstance(result, Array) or _is_of_numbers(result)):
            what = "a function that returns one array"
            got = f"one that returns {type(result).__name__}"
            raise TypeError(f"expected op to be {what}, got {got}")
        usual = sum(largest_nbytes(each.chunks, each.dtype.itemsize) for each in reads)
        tasks: Tasks = {}
        held = Held()
        if site.in_process and not isinstance(result, Array):
            held = Held(at_work=site.threads * HELD[True] * usual)
        elif site.in_process:
            rule = Rule(site.threads, usual, operation.beside, loading)
            with disable_gc(), small_steps(int(block)):  # our own operations expand to tasks
                tasks, held = _streamed(result, rule, [each.name for each in reads], room)
        own = (room, result, tuple(reads), tasks, held)
        return cls(operation, request.template, site, *own)

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
        return not (self.site.in_process and self.is_lazy) or self.held.nbytes <= self.room

    @cached_property
    def plan(self) -> Plan:
        """The plan; its bytes are estimates for elementwise work and reductions."""
        site = self.site
        read = sum(each.nbytes for each in self.operands)
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
        found = Plan.of(self.title, site.ranks, self.room, parts)
        if not self.fits:
            least = int(VARIES * found.peak_bytes)
            needs = "Dask holds blocks that several tasks need: it"
            return replace(found, whole=True, advice=advice(site, needs, least, self.room))
        predicted = predict(site, self.result) if self.is_lazy else Prediction(None, 0)
        spills = "Dask spills blocks to disk; use more workers to avoid this"
        return replace(
            found,
            feasible=True,
            batches=self._blocks,
            rows=max(self.result.chunks[0]) if self.is_lazy and self.result.ndim else 1,
            host_bytes=nbytes,
            rank_bytes=predicted.moved_bytes,
            seconds=seconds_of(site, predicted.seconds, nbytes, 0, 1),
            advice=spills if found.peak_bytes > self.room else "",
            whole=True,
        )

    def compute(self, target: Any, *, progress: bool) -> Any:
        """Return the array with the result; if its shape is unknown before, in an unchecked one."""
        try:
            with Batches(self.operation.name, self._blocks, progress) as bar:
                if self.is_lazy:
                    out = _Counted(self.writer(target), bar)
                    self.site.store(self.result, out, self.tasks)
                    return target
                values: Any = (
                    np.asarray(self.result)
                    if not isinstance(self.result, Array)
                    else self.site.compute(self.result)
                )
        except BaseException:
            self.drop()
            raise
        target = self.target(target, values.shape, values.dtype)
        target[...] = values
        return target

    def drop(self) -> None:
        """Free the operands that were sent, also if frames of an error hold them."""
        if isinstance(self.site, Cluster):
            self.site.client.cancel(list(self.reads))

    def halved(self) -> Whole:
        """Return the call in blocks for half of the planned bytes, if that is possible."""
        room = SHARE * min(self.room, self.plan.peak_bytes)
        return Whole.planned(self, room)

    @property
    def chunks(self) -> list[Chunks]:
        """Of the operands that have blocks of a planned size."""
        return [each.chunks for each in self.reads]

    @property
    def _blocks(self) -> int:
        """The blocks of the result."""
        return max(1, self.result.npartitions) if self.is_lazy else 1


@dataclass
class _Counted:
    """Counts the blocks that are written to an array."""

    out: Any
    bar: Batches

    def __setitem__(self, region: Any, block: Any) -> None:
        declared = tuple(part.stop - part.start for part in region)
        if np.shape(block) != declared:  # NumPy would broadcast it
            raise ValueError(f"expected a block of shape {declared}, got {np.shape(block)}")
        self.out[region] = block
        self.bar.advance()


def _is_of_numbers(result: Any) -> bool:
    """Whether a function returned a number or an array in place of a Dask array."""
    if is_dask_collection(result) or isinstance(result, tuple | list | str | bytes):
        return False
    return np.asarray(result).dtype.kind != "O"


def _streamed(result: Array, rule: Rule, reads: list[str], room: float) -> tuple[Tasks, Held]:
    """Return the tasks of an array, and what threads of this process hold.

    Blocks of operands are loaded once if there is room to keep them, or else by each reader.
    """
    tasks = tasks_of(result)
    kept = rule.held(tasks, result)
    if kept.nbytes <= room:
        return tasks, kept
    again = rule.held(tasks, result, reads)
    return read_again(tasks, reads, list(flatten(result.__dask_keys__()))), again
