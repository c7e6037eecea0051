"""A program that ran out of memory: planned again with less, and its second error."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

from dask.utils import format_bytes

from dask_dgpu.errors import OutOfMemoryError
from dask_dgpu.runtime.plans import Owners, Plans, costs_of, peak, plans
from dask_dgpu.runtime.program import Program


class Tried(NamedTuple):
    """The name of a program, and the bytes planned on a rank in its first and second run."""

    name: str
    first_bytes: int
    second_bytes: int

    def error(self, error: BaseException) -> OutOfMemoryError:
        """Return the error of the second run, with notes and traceback of a rank's error."""
        first, second = format_bytes(self.first_bytes), format_bytes(self.second_bytes)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        smaller = self.second_bytes < self.first_bytes
        message = (
            f"{self.name} ran out of memory twice: with {first} planned on a rank, and with "
            f"{second if smaller else 'the same, as no plan needs less'}; {reason}; "
            f"set dgpu.memory.cap to less than {second}"
        )
        lack = OutOfMemoryError(message, self.first_bytes, self.second_bytes)
        lack.with_traceback(error.__traceback__)
        for note in getattr(error, "__notes__", ()):
            lack.add_note(note)
        return lack


def with_less(program: Program, name: str, owners: Owners, size: int) -> tuple[Plans, Tried]:
    """Plan a program called ``name`` for its second run, in less memory if there is such a plan.

    Each collective may need half of what the largest did; it has narrower panels, or more rounds.
    If that does not help, the first plans are used again: ranks have freed what they kept.
    """
    first = plans(program, owners, size)
    planned = peak_bytes(program, first, size)
    largest = max((cost.peak_bytes for cost in costs_of(program, first).values()), default=0)
    half = min(largest / 2, inf if program.room is None else program.room)
    second = plans(replace(program, room=half), owners, size)
    less = peak_bytes(program, second, size)
    if less > planned:
        second, less = first, planned
    return second, Tried(name, planned, less)


def peak_bytes(program: Program, planned: Plans, size: int) -> int:
    """Return the most bytes that a program is planned to take on one of ``size`` ranks."""
    return sum(peak(program, planned, size, costs_of(program, planned)))
