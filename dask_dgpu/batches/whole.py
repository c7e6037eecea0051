"""Any function of arrays, as one Dask graph whose blocks are written one by one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isfinite, isinf, prod
from typing import Any

import numpy as np
from dask.array.core import Array, normalize_chunks
from dask.core import flatten

from dask_dgpu.batches.again import SHARE
from dask_dgpu.batches.blocks import largest_nbytes
from dask_dgpu.batches.operands import Operand, Template
from dask_dgpu.batches.operations import Operation
from dask_dgpu.batches.plan import Part, Plan
from dask_dgpu.batches.planning import Prediction, advice, predict, seconds_of
from dask_dgpu.batches.progress import Batches
from dask_dgpu.batches.sites import Site
from dask_dgpu.batches.streamed import Tasks, bytes_held, read_again, sizes_of, tasks_of

LARGEST = 64 << 20
"""Most bytes of a block."""
LEAST = 1 << 20
"""Least bytes of a block on a cluster: each costs tasks."""
MANY = 1000
"""In this process operands have no more blocks, unless blocks of ``ENOUGH`` bytes are too large."""
ENOUGH = 16 << 20
HELD = 8
"""Blocks that a thread of this process may hold: operands, temporaries and result of a task."""
PER_RANK = 4
"""Blocks of an operand for each rank of a cluster."""
HELD_BY_WORKER = 32
"""Blocks that fit on a worker: it computes, receives, sends and spills several at a time."""
SMALLER = 2
"""Ratio of the block sizes that are tried in this process, one size after another."""


@dataclass(frozen=True)
class Whole:
    """A call as one graph; ``result`` is no Dask array if the function computed at once.

    ``reads`` are the arrays of the graph whose tasks load blocks in this process, and ``room`` the
    bytes of a device.
    """

    operation: Operation
    template: Template
    site: Site
    room: float
    result: Any
    reads: tuple[Array, ...]

    @classmethod
    def of(
        cls,
        operation: Operation,
        template: Template,
        site: Site,
        room: float,
        *,
        send: bool = True,
    ) -> Whole:
        """Build the graph of a call, of blocks so small that it fits, if there are any.

        On a cluster operands are sent, unless the graph is only for a plan.
        """
        held = site.threads * HELD if site.in_process else HELD_BY_WORKER
        block = min(LARGEST, room / held)
        found = cls._in_blocks(operation, template, site, room, block, send)
        while site.in_process and found.could_be_smaller(block):
            block /= SMALLER
            found = cls._in_blocks(operation, template, site, room, block, send)
        return found

    @classmethod
    def _in_blocks(
        cls,
        operation: Operation,
        template: Template,
        site: Site,
        room: float,
        block: float,
        send: bool,
    ) -> Whole:
        arrays, reads = [], []
        for each in template.operands:
            if isinstance(each.source, Array):
                arrays.append(each.source)
                continue
            chunks = normalize_chunks(
                "auto", each.shape, limit=_limit(each, site, block), dtype=each.dtype
            )
            arrays.append(site.spread(each, chunks) if send else each.lazy(chunks))
            reads.append(arrays[-1])
        result = template.call(operation.function, arrays)
        if isinstance(result, tuple | list | dict | None):
            what = "a function that returns one array"
            raise TypeError(f"expected op to be {what}, got one that returns {result!r:.80}")
        return cls(operation, template, site, room, result, tuple(reads))

    @property
    def is_lazy(self) -> bool:
        """Whether the result is a graph of known shape."""
        return isinstance(self.result, Array) and all(map(isfinite, self.result.shape))

    def could_be_smaller(self, block: float) -> bool:
        """Whether the blocks at work do not fit, and operands have blocks that can be cut."""
        kept, at_work = self._kept[1], self._at_work
        nbytes = [each.nbytes for each in self._read_operands]
        is_cut = any(block > _floor(each) for each in nbytes)
        return self.is_lazy and is_cut and kept < SMALLER * self.room < SMALLER * (kept + at_work)

    @cached_property
    def plan(self) -> Plan:
        """The plan; its bytes are estimates for elementwise work and reductions."""
        site, operands = self.site, self.template.operands
        read = sum(each.nbytes for each in operands)
        written = prod(self.result.shape) * self.result.dtype.itemsize if self.is_lazy else 0
        nbytes = read + written
        parts = [Part("operands and result", (), 1, nbytes // site.ranks)]
        if site.in_process:
            parts = [
                Part("blocks at work", (), site.threads * HELD, self._at_work),
                Part("blocks for later tasks", (), 1, self._kept[1]),
            ]
        predicted = predict(site, self.result) if self.is_lazy else Prediction(None, 0)
        peak = sum(part.nbytes for part in parts)
        feasible = peak <= self.room or not (site.in_process and self.is_lazy)
        change = ""
        if not feasible:
            change = advice(site, "Dask holds blocks that several tasks need: it", peak, self.room)
        elif peak > self.room:
            change = "Dask spills blocks to disk; use more workers to avoid this"
        return Plan(
            title=f"{self.operation.name} of {', '.join(map(str, operands))}",
            feasible=feasible,
            batches=self._blocks if feasible else 0,
            rows=max(self.result.chunks[0]) if self.is_lazy and self.result.ndim else 1,
            cuts={},
            devices=site.ranks,
            room=None if isinf(self.room) else int(self.room),
            parts=tuple(parts),
            host_bytes=nbytes if feasible else 0,
            rank_bytes=predicted.moved_bytes,
            seconds=seconds_of(site, predicted.seconds, nbytes, 0, 1) if feasible else None,
            advice=change,
            whole=True,
        )

    def store(self, out: Any, *, progress: bool) -> None:
        """Compute the graph and write its blocks."""
        with Batches(self.operation.name, self._blocks, progress) as bar:
            self.site.store(self.result, _Counted(out, bar), self._kept[0])

    def compute(self, *, progress: bool) -> Any:
        """Return a result whose shape is unknown before."""
        if not isinstance(self.result, Array):
            return np.asarray(self.result)
        scheduler = {"scheduler": "threads"} if self.site.in_process else {}
        with Batches(self.operation.name, 1, progress):
            return self.result.compute(**scheduler)

    def halved(self) -> Whole:
        """Return the call in blocks for half of the planned bytes, if that is possible."""
        room = SHARE * min(self.room, self.plan.peak_bytes)
        return Whole.of(self.operation, self.template, self.site, room)

    @property
    def _blocks(self) -> int:
        """The blocks of the result."""
        return max(1, self.result.npartitions) if self.is_lazy else 1

    @property
    def _at_work(self) -> int:
        """Bytes of the blocks that threads of this process hold."""
        arrays = [*self.reads, *([self.result] if self.is_lazy else [])]
        return self.site.threads * HELD * max(map(_block_bytes, arrays), default=0)

    @cached_property
    def _kept(self) -> tuple[Tasks, int]:
        """The tasks for this process, and the bytes of blocks that wait for other tasks.

        Blocks of operands are loaded once if there is room to keep them, or else by each reader.
        """
        if not (self.site.in_process and self.is_lazy):
            return {}, 0
        tasks = tasks_of(self.result)
        views = [
            array.name
            for array, each in zip(self.reads, self._read_operands, strict=True)
            if each.is_view
        ]
        block = max(map(_block_bytes, self.reads), default=0)
        sizes = sizes_of(self.result, views, block)
        kept = bytes_held(tasks, sizes)
        if kept + self._at_work <= self.room:
            return tasks, kept
        names = [array.name for array in self.reads]
        tasks = read_again(tasks, names, list(flatten(self.result.__dask_keys__())))
        return tasks, bytes_held(tasks, sizes)

    @property
    def _read_operands(self) -> list[Operand]:
        return [each for each in self.template.operands if not isinstance(each.source, Array)]


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


def _block_bytes(array: Array) -> int:
    return largest_nbytes(array.chunks, array.dtype.itemsize)


def _floor(nbytes: int) -> float:
    """Return the least bytes of a block of an operand in this process."""
    return min(nbytes / MANY, ENOUGH)


def _limit(operand: Operand, site: Site, nbytes: float) -> int:
    """Return the most bytes of a block; there are some for each rank of a cluster."""
    if site.in_process:
        nbytes = max(nbytes, _floor(operand.nbytes))
    else:
        nbytes = min(max(nbytes, LEAST), operand.nbytes / (site.ranks * PER_RANK))
    return max(operand.dtype.itemsize, int(nbytes))
