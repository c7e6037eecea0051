"""Slices of a contraction along its indices, so that no intermediate exceeds a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import Any, NoReturn

import numpy as np
from dask.utils import format_bytes

from dask_dgpu.array.einsum.parse import Subscripts
from dask_dgpu.array.einsum.path import EinsumPath, EinsumStep, linear, pairs_of, steps_of

Slices = dict[str, tuple[int, ...]]
Chunks = Mapping[str, tuple[int, ...]]

MOST = 1024
"""Most slices of a contraction. Each one has tasks of its own."""


def plan(
    subscripts: Subscripts,
    dtypes: Sequence[np.dtype[Any]] | None,
    chunks: Chunks,
    optimize: Any,
    limit: int | None,
) -> EinsumPath:
    """Return the steps of a contraction, sliced for intermediates of at most ``limit`` bytes."""
    pairs, output = pairs_of(optimize, subscripts), subscripts.output
    whole = steps = steps_of(subscripts, pairs, dtypes, {})
    slices = Slices()
    while limit is not None and (large := _over(steps, limit)):
        options: list[tuple[Slices, tuple[EinsumStep, ...]]] = []
        for index, size in zip(large.result, large.shape, strict=True):
            if size > 1:
                each = slices | {index: cut(chunks[index], _length(large, index, limit))}
                options.append((each, steps_of(subscripts, pairs, dtypes, each)))
        options = [option for option in options if _count(option[0]) <= MOST]
        if not options:
            _refuse(whole, limit)
        slices, steps = min(options, key=lambda option: _cost(option[0], option[1], output))
    return EinsumPath(str(subscripts), linear(pairs), steps, slices)


def cut(chunks: Sequence[int], longest: int) -> tuple[int, ...]:
    """Return the lengths of slices: whole chunks, or equal parts of chunks over ``longest``."""
    lengths: list[int] = []
    for size in chunks:
        if lengths and lengths[-1] + size <= longest:
            lengths[-1] += size
        else:
            parts = ceil(size / longest)
            lengths += [(size + part) // parts for part in range(parts)]
    return tuple(lengths)


def _over(steps: Sequence[EinsumStep], limit: int) -> EinsumStep | None:
    """Return the step with the largest intermediate if that exceeds a limit."""
    over = [step for step in steps[:-1] if (step.nbytes or 0) > limit]
    return max(over, key=lambda step: step.nbytes or 0, default=None)


def _length(step: EinsumStep, index: str, limit: int) -> int:
    """Return the length of slices of an index for a result of at most ``limit`` bytes."""
    length = step.shape[step.result.index(index)]
    return max(1, limit * length // (step.nbytes or 1))


def _count(slices: Slices) -> int:
    return prod(map(len, slices.values()))


def _cost(slices: Slices, steps: Sequence[EinsumStep], output: str) -> tuple[int, ...]:
    """Return what to minimize: work, then slices, then sums of slices."""
    work = sum(step.flops for step in steps)
    return work, _count(slices), sum(index not in output for index in slices)


def _refuse(steps: Sequence[EinsumStep], limit: int) -> NoReturn:
    """Raise with the largest intermediate before slicing."""
    large = max(steps[:-1], key=lambda step: step.nbytes or 0)
    shape = " x ".join(map(str, large.shape)) or "()"
    raise ValueError(
        f"expected memory_limit to need at most {MOST} slices, got {format_bytes(limit)} for "
        f"an intermediate of {shape} {large.dtype}, {format_bytes(large.nbytes or 0)}"
    )
