"""Stretches of a program that a GPU has recorded: one launch instead of their steps.

A rank repeats what it did for other blocks: the same functions, exchanges and plans. Ranks need not
agree: recorded exchanges and those of steps meet as they are issued.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from dask_dgpu.comm.protocol import RecordableComm
from dask_dgpu.comm.timed import TimedComm
from dask_dgpu.kernels.device.sequences import Recorded
from dask_dgpu.operations.value import Blocks, container_of
from dask_dgpu.runtime.observer import IGNORE, Span
from dask_dgpu.runtime.placement import Block
from dask_dgpu.runtime.prepared import Stretch
from dask_dgpu.runtime.tracks import Tracks
from graph_opt.model.layout import CUPY, NUMPY

if TYPE_CHECKING:
    from dask_dgpu.runtime.execute import Rank

Array = Any


def repeat(rank: Rank, stretch: Stretch) -> bool:
    """Let the device repeat a stretch, and do as its steps would; return whether it did.

    It does not if it has not recorded the steps for such blocks, and cannot do so now.
    """
    sequences = rank.device.sequences
    if sequences is None or not stretch.recordable or not rank.is_recordable:
        return False
    places = [(number, index) for number in stretch.reads for index in rank.values[number]]
    arrays = [rank.values[number][index] for number, index in places]
    container = CUPY if rank.on_cuda else NUMPY
    if any(container_of(array) != container for array in arrays):
        return False
    work = partial(_record, rank, stretch, places)
    recorded = sequences.find(stretch, arrays, work, rank.most_kept)
    if recorded is None:
        return False
    if isinstance(rank.given_comm, RecordableComm):
        rank.given_comm.hold(recorded)
    rank.tracks.meet()
    made = _launch(rank, stretch, recorded, arrays)
    rank.tracks.meet()  # before what ends is freed
    rank.values |= {number: dict(blocks) for number, blocks in made.items()}
    rank.recorded.append(recorded)
    for number in stretch.ends:
        del rank.values[number]
        rank.facts.pop(number, None)
    return True


def _launch(
    rank: Rank, stretch: Stretch, recorded: Recorded, arrays: Sequence[Array]
) -> dict[int, Blocks]:
    """Launch a recording, and report its steps; the first has the host's time."""
    names = [rank.labels[step.number] for step in stretch.steps]
    rank.observer.progress(names[0], 0, len(names))
    with rank.observer.step(names[0], stretch.steps[0].action) as first:
        made, spans = recorded.launch(arrays)
        if isinstance(rank.given_comm, RecordableComm):
            rank.given_comm.launched()
        rank.device.join()
        _fill(first, spans[0])
    for name, then in zip(names[1:], spans[1:], strict=True):
        with rank.observer.step(name, then.action) as span:
            _fill(span, then)
    found: dict[int, Blocks] = made
    return found


def _fill(span: Span, then: Span) -> None:
    span.nbytes, span.sent_bytes = then.nbytes, then.sent_bytes


def _record(
    rank: Rank, stretch: Stretch, places: Sequence[Block], device: Any, arrays: Sequence[Array]
) -> tuple[dict[int, Blocks], list[Span]]:
    """Issue the steps on a device that records them, for its own copies of the blocks."""
    recording = copy(rank)
    recording.device, recording.observer, recording.facts = device, IGNORE, {}
    recording.comm = recording.timed = TimedComm(rank.given_comm)  # counts bytes
    recording.tracks = Tracks(device, {})
    recording.values = {number: {} for number in stretch.reads}
    for (number, index), array in zip(places, arrays, strict=True):
        recording.values[number][index] = array
    spans = [recording.take(step) for step in stretch.steps]
    return {number: recording.values[number] for number in stretch.makes}, spans
