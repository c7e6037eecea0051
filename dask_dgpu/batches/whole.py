"""Any function of arrays, as one Dask graph whose blocks are written one by one."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, isinf, prod
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array, normalize_chunks

from dask_dgpu.batches.operands import Operand, Template
from dask_dgpu.batches.operations import Operation
from dask_dgpu.batches.plan import Part, Plan
from dask_dgpu.batches.planning import Prediction, predict, seconds_of
from dask_dgpu.batches.progress import Batches
from dask_dgpu.batches.sites import Site

LARGEST = 64 << 20
"""Most bytes of a block."""
HELD = 8
"""Blocks that a thread of this process may hold: operands, temporaries and result of a task."""
PER_RANK = 4
"""Blocks of an operand for each rank of a cluster."""


@dataclass(frozen=True)
class Whole:
    """A call as one graph; ``result`` is no Dask array if the function computed at once."""

    operation: Operation
    template: Template
    site: Site
    result: Any

    @classmethod
    def of(cls, operation: Operation, template: Template, site: Site, room: float) -> Whole:
        """Build the graph of a call, of blocks so small that threads may hold several."""
        block = min(LARGEST, room / (site.threads * HELD))
        arrays = [_in_blocks(each, site, block) for each in template.operands]
        result = template.call(operation.function, arrays)
        if isinstance(result, tuple | list | dict | None):
            what = "a function that returns one array"
            raise TypeError(f"expected op to be {what}, got one that returns {result!r:.80}")
        return cls(operation, template, site, result)

    @property
    def is_lazy(self) -> bool:
        """Whether the result is a graph of known shape."""
        return isinstance(self.result, Array) and all(map(isfinite, self.result.shape))

    def plan(self, room: float) -> Plan:
        """Return the plan; its bytes are estimates for elementwise work and reductions."""
        site, operands = self.site, self.template.operands
        title = f"{self.operation.name} of {', '.join(map(str, operands))}"
        read = sum(each.nbytes for each in operands)
        result = self.result if self.is_lazy else da.asarray(np.zeros(()))
        nbytes = read + prod(result.shape) * result.dtype.itemsize
        block = max((each for each in _block_bytes(result)), default=0)
        if site.in_process:
            held = site.threads * HELD
            largest = max(block, int(min(LARGEST, room / held, read)))
            parts = (Part("blocks", (), held, held * largest),)
        else:
            parts = (Part("operands and result", (), 1, nbytes // site.ranks),)
        predicted = predict(site, result) if self.is_lazy else Prediction(None, 0)
        peak = sum(part.nbytes for part in parts)
        spilled = not site.in_process and peak > room
        return Plan(
            title=title,
            feasible=True,
            batches=max(1, result.npartitions),
            rows=max(result.chunks[0]) if result.ndim else 1,
            cuts={},
            devices=site.ranks,
            room=None if isinf(room) else int(room),
            parts=parts,
            host_bytes=nbytes,
            rank_bytes=predicted.moved_bytes,
            seconds=seconds_of(site, predicted.seconds, nbytes, 0, 1),
            advice="Dask spills blocks to disk; use more workers to avoid this" if spilled else "",
            whole=True,
        )

    def store(self, out: Any, plan: Plan, *, progress: bool) -> None:
        """Compute the graph and write its blocks."""
        with Batches(self.operation.name, plan.batches, progress) as bar:
            self.site.store(self.result, _Counted(out, bar))

    def compute(self) -> Any:
        """Return a result whose shape is unknown before."""
        if not isinstance(self.result, Array):
            return np.asarray(self.result)
        scheduler = {"scheduler": "threads"} if self.site.in_process else {}
        return self.result.compute(**scheduler)


@dataclass
class _Counted:
    """Counts the blocks that are written to an array."""

    out: Any
    bar: Batches

    def __setitem__(self, region: Any, block: Any) -> None:
        self.out[region] = block
        self.bar.advance()


def _block_bytes(array: Array) -> list[int]:
    if not array.npartitions:
        return []
    return [prod(map(max, array.chunks)) * array.dtype.itemsize]


def _in_blocks(operand: Operand, site: Site, nbytes: float) -> Array:
    """Return an operand in blocks of at most so many bytes, on a cluster some for each rank."""
    shape, dtype = operand.shape, operand.dtype
    if isinstance(operand.source, Array):
        return operand.source
    if not site.in_process:
        nbytes = min(nbytes, max(1.0, operand.nbytes / (site.ranks * PER_RANK)))
    limit = max(dtype.itemsize, int(nbytes))
    chunks = normalize_chunks("auto", shape, limit=limit, dtype=dtype)
    if site.in_process:
        return operand.lazy(chunks)
    part = operand.read([(0, size) for size in shape])
    return site.load(part, chunks, on_devices=False)
