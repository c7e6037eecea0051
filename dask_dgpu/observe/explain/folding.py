"""Fewer rows for what repeats: the operations of a loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TypeVar

from dask_dgpu.observe.explain.operations import Operation

MOST_ALIKE = 2
"""Most iterations of a loop to show one by one."""

LONGEST_BODY = 8
"""Most operations in the body of a loop that is recognised."""

Number = TypeVar("Number", int, float)


def folded(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Yield operations; those of a loop of more than ``MOST_ALIKE`` iterations become one body."""
    keys = [(each.operation, each.by, each.why, each.gang) for each in operations]
    at = 0
    while at < len(keys):
        length, times = _loop(keys, at)
        for place in range(at, at + length):
            yield reduce(_joined, operations[place : at + times * length : length])
        at += times * length


def _loop(keys: Sequence[object], at: int) -> tuple[int, int]:
    """Return the length of a loop's body that begins here, and the number of its iterations."""
    for length in range(1, LONGEST_BODY + 1):
        body, times = keys[at : at + length], 1
        while body == keys[at + times * length : at + (times + 1) * length]:
            times += 1
        if times > MOST_ALIKE:
            return length, times
    return 1, 1


def _joined(one: Operation, other: Operation) -> Operation:
    """Return both as one: sums, and the larger memory."""
    memory = [each.peak_bytes for each in (one, other) if each.peak_bytes is not None]
    return replace(
        one,
        times=one.times + other.times,
        tasks=_sum(one.tasks, other.tasks),
        moved_bytes=_sum(one.moved_bytes, other.moved_bytes),
        peak_bytes=max(memory, default=None),
        seconds=_sum(one.seconds, other.seconds),
        measured=_sum(one.measured, other.measured),
        hidden=_sum(one.hidden, other.hidden),
        exposed=_sum(one.exposed, other.exposed),
        sent_bytes=_sum(one.sent_bytes, other.sent_bytes),
    )


def _sum(one: Number | None, other: Number | None) -> Number | None:
    return other if one is None else one if other is None else one + other
