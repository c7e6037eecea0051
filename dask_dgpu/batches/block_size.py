"""The size of blocks for functions that run as one graph, in this process or on a cluster."""

from __future__ import annotations

from collections.abc import Iterable

from dask.array.core import normalize_chunks

from dask_dgpu.batches.blocks import Chunks
from dask_dgpu.batches.operands import Operand
from dask_dgpu.batches.sites import Site

LARGEST = 64 << 20
"""Most bytes of a block."""
LEAST = 1 << 20
"""Least bytes of a block on a cluster: each costs tasks."""
MANY = 256
"""In this process operands have no more blocks, unless blocks of ``ENOUGH`` bytes are too large."""
ENOUGH = 16 << 20
FIRST = 64
"""The same for the first graph that is tried: the tasks of a function may grow as their square."""
MOST_TASKS = 10_000
"""Smaller blocks are not tried if there are more tasks."""
PER_RANK = 4
"""Blocks of an operand for each rank of a cluster."""
HELD = {True: 8, False: 32}
"""Blocks that a thread of this process holds, or a worker, which also sends and spills some."""
SMALLER = 2
"""
Ratio of the block sizes that are tried in this process, one size after another. With more room all
that are tried with less can be reached, so advice is enough.
"""


def first_block(operands: Iterable[Operand], site: Site, room: float) -> float:
    """Return the bytes of a block to try first, for ``room`` bytes of a device."""
    block = float(LARGEST)
    least = max((_floor(each, FIRST) for each in operands if site.in_process), default=0)
    while block > max(least, room / (site.threads * HELD[site.in_process])):
        block /= SMALLER
    return block


def can_be_cut(operands: Iterable[Operand], block: float) -> bool:
    """Whether operands may have smaller blocks in this process."""
    return any(block > _floor(each) for each in operands)


def chunks_of(operand: Operand, site: Site, block: float) -> Chunks:
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


def _floor(operand: Operand, many: int = MANY) -> float:
    """Return the least bytes of a block of an operand in this process."""
    return min(operand.nbytes / many, ENOUGH)
