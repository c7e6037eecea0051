"""What it takes to compute lost arrays again: the calls, and their sources."""

from __future__ import annotations

import math
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dask.array.core import Array

from dask_dgpu.calls.ranks.connections import Question
from dask_dgpu.calls.trace import Loop, Program
from dask_dgpu.errors import GangError, UndeclaredError
from dask_dgpu.runtime.failure import opened

if TYPE_CHECKING:
    from dask_dgpu.calls.ranks.calls import Ranks

MOST_REPEATED = 10_000
"""Number of the last calls that can be repeated after a loss."""

SOURCES = 1 / 8
"""Fraction of the memory of all ranks for arguments of calls that can be repeated."""


@dataclass(eq=False)
class Held:
    """An array on the ranks, by its number there, which is valid in one generation.

    ``owners`` are the ranks of its blocks. It comes from a ``source`` in Dask's memory, or it is
    the result at a place of a call. A ``spent`` one has been donated. ``blocks`` are those of a
    small result, which have come with the answer.
    """

    ranks: Ranks
    number: int
    generation: int
    owners: tuple[int, ...]
    source: Array | None = None
    call: ProgramCall | None = None
    place: int = 0
    spent: bool = False
    blocks: dict[Any, Any] = field(default_factory=dict)

    def __del__(self) -> None:
        if self.generation == self.ranks.generation:
            self.ranks.free(self.number)


@dataclass(eq=False)
class ProgramCall(Question):
    """A call of a program, or a loop of calls, of which so many are ``done`` at the end.

    Its ``inputs`` are sources, or other calls with the places of their results, ``None`` if it
    cannot be repeated. ``made`` are those of its results that are still referred to.
    """

    program: Program = field(kw_only=True)
    tokens: bytes = field(kw_only=True)
    loop: Loop = field(kw_only=True)
    inputs: tuple[Held | tuple[ProgramCall, int], ...] | None = field(kw_only=True)
    made: list[weakref.ref[Held]] = field(default_factory=list)
    losses: int = 0
    done: int = 0

    @property
    def makers(self) -> list[tuple[ProgramCall, int]]:
        """The calls whose results it reads, with their places."""
        return [each for each in self.inputs or () if not isinstance(each, Held)]

    def answered(self, facts: Mapping[str, Any]) -> None:
        """Keep the blocks of small results."""
        self.done = facts["done"]
        for place, index, block in pickle.loads(facts["values"]):
            if (held := self.made[place]()) is not None:
                held.blocks[index] = block

    def failed(self, error: bytes, *, lost: bool) -> None:
        """Keep the error, unless it is a loss for which the call is repeated."""
        self.losses += 1
        if not lost or self.losses > self.program.launch.program.limits.restarts:
            self.error = opened(error)
        if isinstance(self.error, UndeclaredError):
            self.program.fault = str(self.error)

    def interrupted(self) -> bool:
        """Whether it is a loop, which then has failed."""
        if self.loop.most > 1:
            self.error = GangError("the loop was interrupted")
        return self.loop.most > 1


class History:
    """The last calls that can be repeated after a loss, with the bytes of their new sources."""

    def __init__(self) -> None:
        self._calls: deque[tuple[ProgramCall, float]] = deque()
        self._nbytes = 0.0

    def add(self, call: ProgramCall, members: int) -> None:
        """Keep a call; forget the first ones if sources take too much memory of the ranks."""
        last = self._calls[-1][0].inputs if self._calls else None
        sources = {each for each in call.inputs or () if isinstance(each, Held)} - {*(last or ())}
        nbytes = sum(source.source.nbytes for source in sources if source.source is not None)
        self._calls.append((call, nbytes))
        self._nbytes += nbytes
        room = call.program.launch.program.room
        most = math.inf if room is None else room * members * SOURCES
        while len(self._calls) > MOST_REPEATED or self._nbytes > most:
            first, freed = self._calls.popleft()
            first.inputs = None
            self._nbytes -= freed


def repeat(
    last: ProgramCall,
    is_present: Callable[[Held], bool],
    submit: Callable[[ProgramCall, Sequence[Held]], list[Held]],
) -> None:
    """Submit a call again, after those whose results it needs and are not present.

    Raises
    ------
    GangError
        If one is too long ago.
    """
    alive: dict[tuple[int, int], Held] = {}
    stack = [last]
    done = set[int]()
    while stack:
        call = stack[-1]
        if id(call) in done:
            stack.pop()
            continue
        if call.error is not None:
            raise call.error
        if call.inputs is None:
            raise GangError("an array is lost, and its call is too long ago to be repeated")
        inputs, missing = list[Held](), list[ProgramCall]()
        for each in call.inputs:
            if isinstance(each, Held):
                inputs.append(each)
                continue
            maker, place = each
            held = alive.get((id(maker), place)) or maker.made[place]()
            if held is None or not is_present(held):
                missing.append(maker)
            else:
                inputs.append(held)
        if missing:
            done.difference_update(map(id, missing))
            stack += missing
            continue
        made = submit(call, inputs)
        stack.pop()
        done.add(id(call))
        alive |= {(id(call), place): held for place, held in enumerate(made)}
        needed = {(id(maker[0]), maker[1]) for other in stack for maker in other.makers}
        alive = {key: held for key, held in alive.items() if key in needed}
