"""Gangs for the parts of a collective that does not fit, and one gang for several regions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import prod

from dask_dgpu.planner.predict import Gang, StepCost
from graph_opt.model.layout import Index
from graph_opt.model.parts import finer, in_turn, largest, load, nbytes, rows_of
from graph_opt.model.piece import Region
from graph_opt.passes import Needed, joined, together


def with_joined(
    gangs: Iterable[Gang], needed: Needed, plan: Callable[[Region], Gang]
) -> list[Gang]:
    """Replace gangs with common inputs by one, if it fits and is predicted to be no slower.

    A gang whose inputs are all in memory does not wait for one that has to wait for its own.
    Those in parts stay as they are.
    """
    planned = {id(gang.region): gang for gang in gangs}
    in_parts = [gang for gang in planned.values() if gang.prediction.parts > 1]
    for at_once in (True, False):
        regions = [
            gang.region
            for gang in planned.values()
            if gang.prediction.at_once is at_once and gang.prediction.parts == 1
        ]
        for group in together(regions, needed):
            in_parts += _joined([planned[id(region)] for region in group], plan)
    return in_parts


def _joined(apart: Sequence[Gang], plan: Callable[[Region], Gang]) -> Sequence[Gang]:
    """Return one gang for several, or the same gangs if they are better apart."""
    if len(apart) == 1:
        return apart
    gang = plan(joined([each.region for each in apart]))
    quick = gang.prediction.seconds <= sum(each.prediction.seconds for each in apart)
    return [gang] if quick and gang.fits else apart


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
