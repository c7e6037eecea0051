"""Steps that do not depend on each other, on different tracks of a device.

A track is a pair of lanes. Tracks are not ordered, so the transfers of one hide behind the work of
the other::

    track 0    fft | exchange | fft ......... | product
    track 1          fft ......| exchange | fft |        the product waits for both

A step waits for the last step of the other track that made what it reads, or that reads what it
overwrites. Memory belongs to the track on which it was allocated: that track waits for the readers
on the other one before the memory is freed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_dgpu.kernels.device import Device, Mark

if TYPE_CHECKING:
    from dask_dgpu.operations.operation import Blocks
    from dask_dgpu.runtime.prepared import Step

TRACKS = 2


class Place(NamedTuple):
    """The track of a step, and its order with steps of the other track, by their numbers.

    The step ``awaits`` others. After it some tracks wait for a step, before memory of theirs is
    freed: ``frees``. The values ``held`` until then are in such memory.
    """

    track: int
    awaits: tuple[int, ...]
    frees: tuple[tuple[int, int], ...]
    held: tuple[int, ...]


def places_of(steps: Sequence[Step]) -> dict[int, Place]:
    """Return the place of each step by its number, none if only one track has transfers."""
    placing = _Placing()
    places = {step.number: placing.place(step) for step in steps}
    exchanging = {places[step.number].track for step in steps if step.exchanges}
    return places if len(exchanging) > 1 else {}


class _Placing:
    """Places steps one after the other; all maps are by the numbers of values."""

    def __init__(self) -> None:
        self.track: dict[int, int] = {}  # of each step
        self.order: dict[int, int] = {}  # the position of each step
        self.tails = [-1] * TRACKS  # the position of the last step of each track
        self.makers: dict[int, list[int]] = defaultdict(list)
        self.readers: dict[int, list[int]] = defaultdict(list)

    def place(self, step: Step) -> Place:
        """Place a step behind one that it depends on, else on the track that is idle longer."""
        makers = {maker for value in step.reads for maker in self.makers[value]}
        behind = {self.order[maker] for maker in makers}
        following = [track for track in range(TRACKS) if self.tails[track] in behind]
        if following:
            track = max(following, key=self.tails.__getitem__)
        else:
            track = min(range(TRACKS), key=self.tails.__getitem__)
        self.track[step.number] = track
        self.tails[track] = self.order[step.number] = len(self.order)
        overwritten = {reader for value in step.spent for reader in self.readers[value]}
        awaits = self._last(makers | overwritten, but=track).values()
        for value in (step.number, *step.brings):
            self.makers[value].append(step.number)
        for value in step.reads:
            self.readers[value].append(step.number)
        frees: dict[int, int] = {}
        for value in step.ending:
            for home in {self.track[maker] for maker in self.makers[value]}:
                for reader in self._last({*self.readers[value]}, but=home).values():
                    latest = max(frees.get(home, reader), reader, key=self.order.__getitem__)
                    frees[home] = latest
        held = [
            value for value in step.ending if value in step.reads and self._elsewhere(value, track)
        ]
        return Place(track, tuple(awaits), tuple(frees.items()), tuple(held))

    def _last(self, steps: set[int], but: int) -> dict[int, int]:
        """Return the last of some steps on each track but one."""
        last: dict[int, int] = {}
        for step in sorted(steps, key=self.order.__getitem__):
            if self.track[step] != but:
                last[self.track[step]] = step
        return last

    def _elsewhere(self, value: int, track: int) -> bool:
        return any(self.track[maker] != track for maker in self.makers[value])


class Tracks:
    """The tracks of a device while it runs a program; until it :meth:`leaves <leave>` them."""

    def __init__(self, device: Device, places: Mapping[int, Place]) -> None:
        self._device = device
        self._places = places
        self._marks: dict[int, Mark] = {}
        self._kept: list[Any] = []

    @contextmanager
    def step(self, step: Step, values: Mapping[int, Blocks]) -> Iterator[None]:
        """Take a step on its track; the values that end with it are freed afterwards."""
        place = self._places.get(step.number)
        if place is None:
            yield
            return
        held = [dict(values[number]) for number in place.held]
        with self._device.track(place.track), self._device.computing():
            self._wait(place.awaits)
            yield
            self._marks[step.number] = self._device.mark_track()
        for track, reader in place.frees:
            with self._device.track(track):
                self._wait([reader])
        if not self._places:  # no later step waits for this one
            self._meet()
        del held

    def _wait(self, steps: Sequence[int]) -> None:
        """Let the current track wait for steps, but for those before the last meeting."""
        self._device.await_marks([self._marks[step] for step in steps if step in self._marks])

    def meet(self) -> None:
        """Let the tracks wait for each other."""
        if self._places:
            self._meet()

    def _meet(self) -> None:
        marks = []
        for track in range(TRACKS):
            with self._device.track(track):
                marks.append(self._device.mark_track())
        for track in range(TRACKS):
            with self._device.track(track):
                self._device.await_marks(marks)
        self._marks.clear()

    def leave(self, values: Mapping[int, Blocks]) -> None:
        """Use one track from now on, and keep all ``values`` until the end.

        Some got memory of another track than was planned.
        """
        if self._places:
            self._meet()
            self._kept = [dict(blocks) for blocks in values.values()]
            self._places = {}
