"""The report of an iteration as a block of its array, so that it travels like other blocks.

It is the first block of an additional chunk along the first axis. Its bytes are float64 numbers,
whatever its dtype.
"""

from __future__ import annotations

from itertools import chain
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.algorithms.jacobi.rank import REASONS, Outcome
from graph_opt.model.layout import Chunks

Array = Any

REPORT_BYTES = 1 << 15
"""Bytes of a report: two numbers for each of the first residual and the last 2,046."""


def beside(chunks: Chunks, dtype: str) -> Chunks:
    """Return the chunks of an array with its report: one more along the first axis."""
    row = prod(sizes[0] for sizes in chunks[1:]) * np.dtype(dtype).itemsize
    return (*chunks[0], -(-REPORT_BYTES // max(1, row))), *chunks[1:]


def written(outcome: Outcome, shape: tuple[int, ...], dtype: str) -> Array:
    """Return a report as a block."""
    most = REPORT_BYTES // 16 - 1
    history = outcome.history
    if len(history) > most:  # the last residuals matter more than the first
        history = (history[0], *history[len(history) - most + 1 :])
    numbers = [REASONS.index(outcome.reason), len(history), *chain.from_iterable(history)]
    block = np.zeros(shape, dtype)
    values = np.array(numbers, np.float64).view(np.uint8)
    block.reshape(-1).view(np.uint8)[: len(values)] = values
    return block


def read(block: Array) -> Outcome:
    """Return the report in a block."""
    flat = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
    reason, count = flat[:16].view(np.float64)
    numbers = flat[16 : 16 + 16 * int(count)].view(np.float64).reshape(-1, 2)
    return Outcome(REASONS[int(reason)], tuple((int(at), float(r)) for at, r in numbers))
