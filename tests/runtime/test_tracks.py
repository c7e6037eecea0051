"""Independent steps on two tracks: each comes after what it needs, no memory is freed early."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.runtime.prepared import prepared
from dask_dgpu.runtime.tracks import TRACKS, Tracks, places_of
from tests.runtime.test_prepared import planned
from tests.support.profiles import examples

Clock = list[int]


class Made(NamedTuple):
    """A step that is no more than its values."""

    number: int
    reads: set[int]
    spent: set[int]
    brings: set[int]
    ending: tuple[int, ...]
    exchanges: bool


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, list[Made]]:
    """Draw the number of inputs, and steps; values end with their last reader, or are results."""
    inputs, count = draw(st.integers(1, 3)), draw(st.integers(1, 14))
    reads = [
        draw(st.sets(st.integers(0, inputs + at - 1), min_size=1, max_size=3))
        for at in range(count)
    ]
    last = {value: at for at, some in enumerate(reads) for value in some}
    steps = []
    for at, some in enumerate(reads):
        ending = [value for value in sorted(some) if last[value] == at and draw(st.booleans())]
        spent = {value for value in ending if value >= inputs and draw(st.booleans())}
        brings = {value for value in some if value < inputs and draw(st.booleans())}
        steps.append(Made(inputs + at, some, spent, brings, tuple(ending), draw(st.booleans())))
    return inputs, steps


class Books:
    """A device that knows which steps its tracks have waited for: a clock for each track."""

    overlaps = True

    def __init__(self) -> None:
        self.clocks = [[0] * TRACKS for _ in range(TRACKS)]
        self.current = 0

    @contextmanager
    def track(self, number: int) -> Any:
        before, self.current = self.current, number
        yield
        self.current = before

    def computing(self) -> Any:
        return nullcontext()

    def mark_track(self) -> Clock:
        clock = self.clocks[self.current]
        clock[self.current] += 1
        return list(clock)

    def await_marks(self, marks: list[Clock]) -> None:
        mine = self.clocks[self.current]
        for mark in marks:
            mine[:] = map(max, mine, mark)

    def has_waited(self, track: int, moment: tuple[int, int]) -> bool:
        at, time = moment
        return at == track or self.clocks[track][at] >= time


@examples(3000)
@given(programs(), st.data())
def test_order_of_any_program(program: tuple[int, list[Made]], data: st.DataObject) -> None:
    inputs, steps = program
    leaving = data.draw(st.integers(0, 2 * len(steps)))
    places = places_of(steps)  # type: ignore[arg-type]
    if not places:
        return
    device = Books()
    tracks = Tracks(device, places)  # type: ignore[arg-type]
    values: dict[int, Any] = {value: {} for value in range(inputs)}
    written: dict[int, list[tuple[int, int]]] = {value: [] for value in values}
    read: dict[int, list[tuple[int, int]]] = {value: [] for value in values}
    for at, step in enumerate(steps):
        with tracks.step(step, values):  # type: ignore[arg-type]
            track = device.current
            assert all(device.has_waited(track, each) for v in step.reads for each in written[v])
            assert all(device.has_waited(track, each) for v in step.spent for each in read[v])
            if at == leaving:
                tracks.leave(values)
            now = track, device.clocks[track][track] + 1  # the mark that the step ends with
            values[step.number], written[step.number], read[step.number] = {}, [now], []
            for value in step.reads:
                read[value].append(now)
            for value in step.brings:
                written[value].append(now)
        for value in step.ending if at < leaving else ():
            for home, _ in written[value]:
                assert all(device.has_waited(home, each) for each in read[value])
            del values[value]
        if data.draw(st.integers(0, 9)) == 0:
            tracks.meet()
            assert device.clocks[0] == device.clocks[1] or at >= leaving


A = np.random.default_rng(2).random((16, 16))


@pytest.mark.parametrize(
    ("build", "tracks"),
    [
        (lambda x, y: da.fft.fft2(x) * da.fft.fft2(y), 2),
        (lambda x, y: x @ x + y @ y, 2),
        (lambda x, y: x @ y + y @ x, 0),  # the first copies NumPy blocks to the device for both
        (lambda x, y: da.concatenate([x @ x, da.fft.fft2(y)]), 2),
        (lambda x, y: da.fft.ifft2(da.fft.fft2(x @ y)), 0),
        (lambda x, y: (x + 1) @ y, 0),
    ],
)
def test_only_independent_transfers_are_on_two_tracks(build: Any, tracks: int) -> None:
    x, y = (da.from_array(each, chunks=(4, 16)) for each in (A, A + 1))
    with dgpu.enable(local_ranks=2):
        launch, fixed, _ = planned(build(x, y), 2)
    places = prepared(launch.program, fixed, 0).places
    assert len({place.track for place in places.values()}) == tracks
