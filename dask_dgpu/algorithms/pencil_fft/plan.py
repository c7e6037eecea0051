"""The plan of a transform along several axes, in chunks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dask_dgpu.kernels.fft import Transform
from graph_opt.model.layout import Chunks, Span, cuts_of, even_spans


@dataclass(frozen=True)
class Stage:
    """Transforms of each block by itself.

    Parameters
    ----------
    chunks : tuple of tuple of int
        Chunks of the input; a single one along each transformed axis.
    transforms : tuple of Transform
        In their order.
    """

    chunks: Chunks
    transforms: tuple[Transform, ...]

    @property
    def output_chunks(self) -> Chunks:
        """Chunks of the result."""
        return transformed(self.chunks, self.transforms)


@dataclass(frozen=True)
class Exchange:
    """A change of chunks between two stages.

    Parameters
    ----------
    source, target : tuple of tuple of int
        Chunks before and after. A shorter ``target`` crops the end of an axis.
    dtype : str
        The dtype of the array.
    """

    source: Chunks
    target: Chunks
    dtype: str

    @property
    def local(self) -> bool:
        """Whether every block stays as it is, or is only cropped."""
        return all(
            len(new) <= len(old)
            and new[:-1] == old[: len(new) - 1]
            and new[-1] <= old[len(new) - 1]
            for old, new in zip(self.source, self.target, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the array after the exchange."""
        return math.prod(shape_of(self.target)) * np.dtype(self.dtype).itemsize

    def moved(self, ranks: int) -> float:
        """Return the expected bytes that all ranks together send.

        Ranks form a mesh over the blocks. Nothing crosses a cut of both layouts, so there are
        groups of ranks that exchange nothing with each other. In a group of ``g`` each rank keeps 1
        / ``g`` of its elements. Fewer ranks than blocks are assumed to have a mesh of the same
        proportions.
        """
        if self.local:
            return 0.0
        pairs = zip(self.source, self.target, strict=True)
        kept = math.prod(len({*cuts_of(old[:-1])} & {*cuts_of(new[:-1])}) for old, new in pairs)
        blocks = math.prod(map(len, self.target))
        groups = min(ranks, blocks) ** (math.log(kept) / math.log(blocks)) if kept > 1 else 1
        return self.nbytes * (1 - groups / ranks)


@dataclass(frozen=True)
class PencilPlan:
    """The plan of a transform along some axes of an array.

    Before each stage and after the last there is an exchange, if chunks differ.

    Parameters
    ----------
    input_chunks : tuple of tuple of int
        Chunks of the input.
    dtype : str
        The dtype of the input.
    stages : tuple of Stage
        In their order.
    output_chunks : tuple of tuple of int
        Chunks of the output.
    output_dtype : str
        The dtype of the output, as in NumPy.
    """

    input_chunks: Chunks
    dtype: str
    stages: tuple[Stage, ...]
    output_chunks: Chunks
    output_dtype: str

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges before each stage and after the last, even if local."""
        chunks, dtype, found = self.input_chunks, self.dtype, []
        for stage in self.stages:
            found.append(Exchange(chunks, stage.chunks, dtype))
            chunks, dtype = stage.output_chunks, result_dtype(dtype, stage.transforms)
        return (*found, Exchange(chunks, self.output_chunks, dtype))

    @property
    def axes(self) -> frozenset[int]:
        """The transformed axes."""
        return frozenset(each.axis for stage in self.stages for each in stage.transforms)

    def within(self, spans: Sequence[Span | None]) -> PencilPlan:
        """Return the plan for a part of the array: spans of axes without transforms."""

        def part(chunks: Chunks) -> Chunks:
            along = zip(chunks, spans, strict=True)
            return tuple(sizes if span is None else _between(sizes, span) for sizes, span in along)

        return replace(
            self,
            input_chunks=part(self.input_chunks),
            stages=tuple(replace(stage, chunks=part(stage.chunks)) for stage in self.stages),
            output_chunks=part(self.output_chunks),
        )

    def moved(self, ranks: int) -> float:
        """Return the expected bytes that all ranks together send."""
        return sum(exchange.moved(ranks) for exchange in self.exchanges)

    @property
    def flops(self) -> float:
        """Floating-point operations, by the usual estimate."""
        total = 0.0
        for stage in self.stages:
            shape = list(shape_of(stage.chunks))
            for transform in stage.transforms:
                lines = math.prod(shape[: transform.axis] + shape[transform.axis + 1 :])
                total += lines * transform.flops
                shape[transform.axis] = transform.output_length
        return total


def _between(sizes: Sequence[int], span: Span) -> tuple[int, ...]:
    """Return the sizes of the parts of chunks in a span, empty chunks with those before them."""
    start, stop = span
    return tuple(
        min(hi, stop) - max(lo, start)
        for lo, hi in pairwise(cuts_of(sizes))
        if max(lo, start) < min(hi, stop) or (lo == hi <= stop and (lo > start or not start))
    )


def even_chunks(length: int, parts: int) -> tuple[int, ...]:
    """Return up to ``parts`` chunks of an axis, with lengths that differ by at most one."""
    return tuple(hi - lo for lo, hi in even_spans(0, length, max(1, min(parts, length))))


def shape_of(chunks: Chunks) -> tuple[int, ...]:
    """Return the length of each axis."""
    return tuple(sum(sizes) for sizes in chunks)


def transformed(chunks: Chunks, transforms: Iterable[Transform]) -> Chunks:
    """Return the chunks after some transforms."""
    lengths = {transform.axis: transform.output_length for transform in transforms}
    return tuple(
        (lengths[axis],) if axis in lengths else sizes for axis, sizes in enumerate(chunks)
    )


def result_dtype(dtype: str, transforms: Iterable[Transform]) -> str:
    """Return the dtype after some transforms, as in NumPy."""
    for transform in transforms:
        dtype = transform.output_dtype(dtype)
    return dtype


def overwrites(plan: PencilPlan) -> bool:
    """Whether the last stage reads blocks of an earlier one, and may overwrite slices of these."""
    if len(plan.stages) < 2:
        return False
    stage, (before, after) = plan.stages[-1], plan.exchanges[-2:]
    free = len(stage.chunks) > len(stage.transforms)
    return free and (before.dtype, stage.chunks) == (after.dtype, stage.output_chunks)
