"""The plan of a transform along several axes: slab or pencil, by the bytes that move."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from dask_dgpu.kernels.fft import TO_HALF_COMPLEX, TO_REAL, TRIGONOMETRIC, Transform
from graph_opt.model.layout import Chunks, Span, block_spans, cuts_of, even_spans


@dataclass(frozen=True)
class Stage:
    """Transforms of each block by itself; ``chunks`` are single along each transformed axis."""

    chunks: Chunks
    transforms: tuple[Transform, ...]

    @property
    def output_chunks(self) -> Chunks:
        """Chunks of the result."""
        return transformed(self.chunks, self.transforms)


@dataclass(frozen=True)
class Exchange:
    """A change of chunks between two stages; a shorter ``target`` crops the end of an axis."""

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
    """

    input_chunks: Chunks
    dtype: str
    stages: tuple[Stage, ...]
    output_chunks: Chunks
    output_dtype: str

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges before each stage and after the last, even if local."""
        chunks, dtype, exchanges = self.input_chunks, self.dtype, []
        for stage in self.stages:
            exchanges.append(Exchange(chunks, stage.chunks, dtype))
            chunks, dtype = stage.output_chunks, result_dtype(dtype, stage.transforms)
        return (*exchanges, Exchange(chunks, self.output_chunks, dtype))

    @property
    def axes(self) -> frozenset[int]:
        """The transformed axes."""
        return frozenset(transform.axis for stage in self.stages for transform in stage.transforms)

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


MANY = 4
"""Up to this number of axes, all sets of them are candidates."""

Transforms = tuple[Transform, ...]
Cost = tuple[float, float, int]
"""Missing blocks, moved bytes, exchanges: the first difference decides."""


@dataclass(frozen=True)
class _State:
    """A partial plan: the chunks of the array, and the remaining transforms."""

    chunks: Chunks
    left: Transforms
    stages: tuple[Stage, ...] = ()
    arrived: bool = False  # whether the last step was an exchange


def plan_pencil_fft(
    chunks: Chunks,
    dtype: str,
    transforms: Sequence[Transform],
    *,
    output_layout: Literal["any", "input"] = "any",
    output_chunks: Chunks | None = None,
    ranks: int | None = None,
) -> PencilPlan:
    """Choose the stages that move the fewest bytes and leave work for every rank.

    There is one transform for each axis, in any order, at most one of them from or to real numbers.
    ``output_layout="any"`` keeps the chunks of the last stage, ``"input"`` restores those of the
    input, or as many along an axis of another length; ``output_chunks`` override it. ``ranks`` is
    the minimum number of blocks after an exchange, if the axes allow; by default that of the input.

    The search is exhaustive, from the cheapest state on. A state is an array in some chunks with
    some remaining transforms. There are few states: an axis keeps its cuts, is whole, or is cut
    evenly.
    """
    target = ranks or math.prod(len(sizes) for sizes in chunks)
    goal = output_chunks
    if goal is None and output_layout == "input":
        goal = _like(chunks, transforms)
    everything = tuple(sorted(transforms, key=lambda each: (each.kind in TO_REAL, each.axis)))
    start = _State(_cropped(chunks, everything), everything)
    counter = itertools.count()  # among equal costs the first state wins
    queue: list[tuple[Cost, int, _State]] = [((0.0, 0.0, 0), next(counter), start)]
    seen: set[tuple[Chunks, Transforms]] = set()
    while True:
        cost, _, state = heapq.heappop(queue)
        if (state.chunks, state.left) in seen:
            continue
        seen.add((state.chunks, state.left))
        if not state.left and goal in (None, state.chunks):
            break
        for after, step in _next(state, dtype, everything, target, goal):
            total = cost[0] + step[0], cost[1] + step[1], cost[2] + step[2]
            heapq.heappush(queue, (total, next(counter), after))
    return PencilPlan(chunks, dtype, state.stages, state.chunks, result_dtype(dtype, everything))


def in_passes(plan: PencilPlan) -> tuple[PencilPlan, ...]:
    """Return plans of one stage each, one after another, that parts of the array can go through.

    Each keeps the cuts of the axes that it does not transform. An axis that it transforms gets
    some of those of the output, or is cut evenly, about as often as that of the input, so that the
    next ones can go through parts along it. An exchange comes first if the input is cut along the
    axes of the first stage only.
    """
    given, dtype, passes = plan.input_chunks, plan.dtype, list[PencilPlan]()
    chunks, most = given, max(map(len, given))
    first = {transform.axis for stage in plan.stages[:1] for transform in stage.transforms}
    others = [axis for axis in range(len(chunks)) if axis not in first]
    if all(len(chunks[axis]) == 1 for axis in others):
        cut = {axis: plan.output_chunks[axis] for axis in others if axis not in plan.axes}
        split = tuple(cut.get(axis, sizes) for axis, sizes in enumerate(chunks))
        if split != chunks:
            passes.append(PencilPlan(chunks, dtype, (), split, dtype))
            chunks = split
    for stage in plan.stages:
        after = list(chunks)
        for transform in stage.transforms:
            goal, parts = plan.output_chunks[transform.axis], len(given[transform.axis])
            parts = parts if parts > 1 else most
            after[transform.axis] = _joined(goal, parts) or even_chunks(sum(goal), parts)
        goals = plan.output_chunks if stage is plan.stages[-1] else tuple(after)
        passes.append(plan_pencil_fft(chunks, dtype, stage.transforms, output_chunks=goals))
        chunks, dtype = goals, passes[-1].output_dtype
    return tuple(passes)


def _joined(sizes: Sequence[int], parts: int) -> tuple[int, ...] | None:
    """Join chunks to so many, ``None`` if there is only one."""
    joined = (sum(sizes[lo:hi]) for lo, hi in block_spans(cuts_of(sizes), parts) if lo < hi)
    return tuple(joined) if len(sizes) > 1 else None


def _next(
    state: _State, dtype: str, everything: Transforms, target: int, goal: Chunks | None
) -> Iterator[tuple[_State, Cost]]:
    """Yield each way to transform in place and then exchange, and its cost."""
    if not state.left:
        if goal is not None:
            yield (
                _State(goal, (), state.stages),
                _cost(state.chunks, goal, result_dtype(dtype, everything), target, enough=True),
            )
        return
    for now in _local(state):
        done = state
        if now:
            stages = (*state.stages, Stage(state.chunks, _ordered(now, state.chunks)))
            left = tuple(transform for transform in state.left if transform not in now)
            done = _State(transformed(state.chunks, now), left, stages)
        elif state.arrived:
            continue
        if not done.left:
            yield done, (0.0, 0.0, 0)
            return  # an exchange would be useless
        present = result_dtype(dtype, (each for each in everything if each not in done.left))
        for axes in _gathered(done):
            for chunks in _layouts(done.chunks, axes, target):
                after = _State(chunks, done.left, done.stages, arrived=True)
                yield after, _cost(done.chunks, chunks, present, target)


def _local(state: _State) -> list[Transforms]:
    """Return the candidate sets of transforms before the next exchange.

    All possible ones; those that do not lengthen the array; those that keep real numbers real;
    none, since real numbers are smaller than complex ones.
    """
    everything = tuple(each for each in state.left if len(state.chunks[each.axis]) == 1)
    whole = tuple(each for each in everything if each.kind not in TO_REAL)
    lengths = shape_of(state.chunks)
    shorter = tuple(each for each in whole if each.output_length <= lengths[each.axis])
    real = tuple(each for each in whole if each.kind in TRIGONOMETRIC)
    sets = dict.fromkeys((everything, whole, shorter, real, ()))
    return [now for now in sets if _in_order(set(now), set(state.left))]


def _in_order(now: set[Transform], left: set[Transform]) -> bool:
    """Whether some may precede the others: only cosines and sines commute with all."""
    fourier = {each for each in left if each.kind not in TRIGONOMETRIC}
    first = {each for each in fourier if each.kind in TO_HALF_COMPLEX}
    last = {each for each in fourier if each.kind in TO_REAL}
    too_late = bool(now & fourier) and not first <= now
    too_early = bool(now & last) and not fourier <= now
    return not (too_late or too_early)


def _gathered(state: _State) -> Iterator[frozenset[int]]:
    """Yield the candidate sets of axes that an exchange makes whole.

    With many axes only neighbours are candidates, or the search takes seconds.
    """
    cut = {each.axis for each in state.left if len(state.chunks[each.axis]) > 1}
    axes = [each.axis for each in state.left]
    for count in range(len(axes), 0, -1):
        sets: Iterable[tuple[int, ...]] = itertools.combinations(axes, count)
        if len(axes) > MANY:
            sets = (tuple(axes[i : i + count]) for i in range(len(axes) - count + 1))
        for chosen in map(frozenset, sets):
            gathered = {each for each in state.left if each.axis in chosen}
            if chosen & cut and _in_order(gathered, set(state.left)):
                yield chosen


def _layouts(chunks: Chunks, whole: frozenset[int], target: int) -> Iterator[Chunks]:
    """Yield chunks that are single along some axes, with enough blocks if possible.

    The other axes keep their cuts if these are enough. Otherwise one of them is split further, and
    if it is too short the rest too, from the longest on.
    """
    shape = shape_of(chunks)
    base = {axis: (shape[axis],) if axis in whole else chunks[axis] for axis in range(len(shape))}
    free = sorted((a for a in base if a not in whole and shape[a] > 1), key=lambda a: -shape[a])
    if not free or math.prod(map(len, base.values())) >= target:
        yield tuple(base.values())
        return
    for first in free:
        cut = dict(base)
        for axis in [first, *(other for other in free if other != first)]:
            others = math.prod(len(sizes) for other, sizes in cut.items() if other != axis)
            parts = min(shape[axis], -(-target // others))
            if parts > len(cut[axis]):
                cut[axis] = even_chunks(shape[axis], parts)
        yield tuple(cut.values())


def _cost(old: Chunks, new: Chunks, dtype: str, target: int, *, enough: bool = False) -> Cost:
    if old == new:
        return 0.0, 0.0, 0
    blocks = math.prod(map(len, new))
    lacking = 0.0 if enough else max(0.0, target / blocks - 1)
    return lacking, Exchange(old, new, dtype).moved(target), 1


def _ordered(transforms: Transforms, chunks: Chunks) -> Transforms:
    """Sort: from real numbers first, to real numbers last, cosines and sines while they are real.

    Among those that commute, pads come late.
    """
    lengths = shape_of(chunks)
    from_real = any(transform.kind in TO_HALF_COMPLEX for transform in transforms)
    to_real = any(transform.kind in TO_REAL for transform in transforms)

    def key(transform: Transform) -> tuple[int, float, int]:
        growth = transform.output_length / max(1, lengths[transform.axis])
        turn = 2
        if transform.kind in TRIGONOMETRIC:
            turn = 0 if from_real else 4 if to_real else 2
        elif transform.kind in TO_HALF_COMPLEX + TO_REAL:
            turn = 1 if from_real else 3
        # NumPy goes from the last axis to the first
        return turn, growth, -transform.axis

    return tuple(sorted(transforms, key=key))


def _cropped(chunks: Chunks, transforms: Iterable[Transform]) -> Chunks:
    """Crop the elements that no transform uses."""
    cropped = list(chunks)
    for transform in transforms:
        cuts = cuts_of(chunks[transform.axis])
        if transform.input_length < cuts[-1]:
            inside = pairwise(min(cut, transform.input_length) for cut in cuts)
            cropped[transform.axis] = tuple(hi - lo for lo, hi in inside if lo < hi)
    return tuple(cropped)


def _like(chunks: Chunks, transforms: Iterable[Transform]) -> Chunks:
    """Return chunks for the output that resemble those of the input."""
    like = list(chunks)
    for transform in transforms:
        length = transform.output_length
        if length != sum(chunks[transform.axis]):
            like[transform.axis] = even_chunks(length, len(chunks[transform.axis]))
    return tuple(like)
