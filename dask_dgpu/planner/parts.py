"""Gangs for a region, and for the parts of a collective that does not fit the devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

from dask.utils import format_bytes

from dask_dgpu.planner.predict import Prediction, StepCost
from dask_dgpu.runtime.program import Launch
from graph_opt.dask_graph.layers import PieceLayer
from graph_opt.model.layout import Index
from graph_opt.model.parts import finer, in_turn, largest, load, nbytes, rows_of
from graph_opt.model.piece import Region

LEAST_GAIN = 0.85
"""Run a gang if it takes less than this fraction of plain Dask's time: predictions err."""


@dataclass(frozen=True)
class Lack:
    """Work without a gang because it does not fit: as predicted, and the bytes that may be used.

    These are beside so many bytes of ``others``, on the worker with the most.
    If some ``part`` of it needs less than the whole, the prediction is that of the smallest. If
    Dask ``streams`` its blocks, the prediction is that of the tasks at work.
    """

    prediction: Prediction
    room: float
    others: int
    part: bool
    streams: bool = False

    @property
    def peak_bytes(self) -> int:
        """The bytes that it needs on a rank."""
        return self.prediction.peak_bytes

    @property
    def reason(self) -> str:
        """Why there is no gang."""
        needs = "its smallest part needs" if self.part else "it needs"
        there = format_bytes(int(self.room))
        if self.streams:
            needs = "the blocks at work need"
        return f"{needs} {format_bytes(self.peak_bytes)} on a rank and {there} may be used"


@dataclass(frozen=True)
class Gang:
    """What computes a region: one gang, or one after another for its parts.

    ``launches`` has the region, or its parts in order, with their programs. ``room`` are the bytes
    of a device that the gang, or the part that needs most, may use beside those of ``others``,
    ``None`` for no limit. If it does not fit, ``least`` is the part of the smallest cut that needs
    most, ``None`` if the whole needs less.
    """

    region: Region
    prediction: Prediction
    launches: tuple[tuple[Region, Launch], ...]
    room: float | None
    others: int
    least: Gang | None = None

    @property
    def fits(self) -> bool:
        """Whether the devices have the memory."""
        return self.room is None or self.prediction.peak_bytes <= self.room

    @property
    def gain(self) -> float:
        """Seconds that it is predicted to save."""
        return self.prediction.dask_seconds - self.prediction.device_seconds

    @property
    def lack(self) -> Lack | None:
        """What it lacks if it does not fit."""
        found = self.least or self
        if found.room is None or self.fits:
            return None
        return Lack(found.prediction, found.room, found.others, found is not self)

    def beats(self, others: Sequence[Gang]) -> bool:
        """Whether it fits and saves at least as much as some gangs, if there are any."""
        return bool(others) and self.fits and self.gain >= sum(each.gain for each in others)

    def refusal(self, when: str) -> str | None:
        """Return the reason against it, if there is one: its memory or, by ``when``, its cost."""
        if self.lack is not None:
            return self.lack.reason
        found = self.prediction
        ours, plain = found.device_seconds, found.dask_seconds
        if when == "always" or self.region.forced or ours < LEAST_GAIN * plain:
            return None
        if ours < plain:
            return f"a gang is predicted to gain too little ({ours:.3g} s against {plain:.3g} s)"
        return f"plain Dask is predicted to be quicker ({plain:.3g} s against {ours:.3g} s)"


def alone(layer: PieceLayer) -> Region:
    """Return the region of one piece and its used blocks."""
    wanted = ((layer.piece.output.name, tuple(sorted(layer.wanted))),)
    return Region((layer.piece,), wanted, layer.annotations)


def in_parts(whole: Gang, ranks: int, planned: Callable[[Region], Gang]) -> Gang:
    """Return the fewest parts of a collective that fit one after another, else the ``whole``.

    ``planned`` plans the gang of a part.
    """
    if whole.room is None or len(whole.region.members) > 1 or not whole.region.pieces:
        return whole
    least, skipped = whole, list[Region]()
    for parts in finer(whole.region):
        most = largest(parts)
        # this takes no plan: a rank needs at least its share of the blocks
        if load(most) > whole.room * ranks:
            skipped = parts
            continue
        gangs, skipped = [planned(most)], []
        if gangs[0].fits:
            gangs = [planned(part) for part in in_turn(parts)]
            if all(gang.fits for gang in gangs):
                return _together(whole, gangs, ranks)
        least = min(least, max(gangs, key=_excess), key=_excess)
    if skipped:
        least = min(least, planned(max(skipped, key=load)), key=_excess)
    return whole if least is whole else replace(whole, least=least)


def _excess(gang: Gang) -> float:
    """Return the bytes that a gang needs beyond those that it may use."""
    return gang.prediction.peak_bytes - (gang.room or 0.0)


def _together(whole: Gang, gangs: Sequence[Gang], ranks: int) -> Gang:
    """Return the gangs of all parts as one: sums, and the memory of the one that needs most."""
    each = [gang.prediction for gang in gangs]
    terms, additions, added_bytes = _adding([gang.region for gang in gangs])
    machine = whole.launches[0][1].program.machine
    adding = additions * machine.task_seconds
    adding += 3 * added_bytes / (machine.memory_bandwidth * ranks)
    fullest = max(gangs, key=lambda gang: gang.prediction.peak_bytes)
    most = fullest.prediction
    text = f"in {len(gangs)} parts{f', {terms} terms a block' * (terms > 1)}: {most.text}"
    steps: dict[str, StepCost] = {}
    for step in chain.from_iterable(prediction.steps for prediction in each):
        before = steps.get(step.name)
        steps[step.name] = replace(step, text=text) if before is None else before.plus(step)
    prediction = replace(
        whole.prediction,
        parts=len(gangs),
        terms=terms,
        shape=max((prediction.shape for prediction in each), key=prod),
        rows=rows_of(whole.region, [gang.region for gang in gangs]),
        text=text,
        details=most.details,
        tasks=sum(prediction.tasks for prediction in each) + additions,
        moved_bytes=sum(prediction.moved_bytes for prediction in each),
        peak_bytes=most.peak_bytes,
        peak=most.peak,
        host_bytes=sum(prediction.host_bytes for prediction in each),
        host_seconds=sum(prediction.host_seconds for prediction in each),
        seconds=sum(prediction.seconds for prediction in each) + adding,
        steps=tuple(steps.values()),
    )
    launches = tuple(chain.from_iterable(gang.launches for gang in gangs))
    return Gang(whole.region, prediction, launches, fullest.room, fullest.others)


def _adding(parts: Sequence[Region]) -> tuple[int, int, int]:
    """Return the most terms of a block, and the number of Dask's additions and their bytes."""
    sizes: defaultdict[Index, list[int]] = defaultdict(list)
    for part in parts:
        ((name, blocks),) = part.wanted
        for index in blocks:
            sizes[index].append(nbytes(part.nodes[name], [index]))
    added = [size for each in sizes.values() for size in each[1:]]
    return max(map(len, sizes.values())), len(added), sum(added)
