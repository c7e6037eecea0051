"""Gangs that the optimizer has planned; those that read the same arrays become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.planner.parts import Gang
from graph_opt.model.piece import Region
from graph_opt.sharing import joined, together


def with_joined(
    gangs: Iterable[Gang], graph: HighLevelGraph, plan: Callable[[Region], Gang]
) -> list[Gang]:
    """Replace gangs with common inputs by one, if it fits and is predicted to be no slower.

    A gang whose inputs are all in memory does not wait for one that has to wait for its own.
    Those in parts stay as they are.
    """
    planned = {id(gang.region): gang for gang in gangs}
    found = [gang for gang in planned.values() if gang.prediction.parts > 1]
    for at_once in (True, False):
        regions = [
            gang.region
            for gang in planned.values()
            if gang.prediction.at_once is at_once and gang.prediction.parts == 1
        ]
        for group in together(regions, graph):
            found += _joined([planned[id(region)] for region in group], plan)
    return found


def _joined(apart: Sequence[Gang], plan: Callable[[Region], Gang]) -> Sequence[Gang]:
    """Return one gang for several, or the same gangs if they are better apart."""
    if len(apart) == 1:
        return apart
    gang = plan(joined([each.region for each in apart]))
    quick = gang.prediction.seconds <= sum(each.prediction.seconds for each in apart)
    return [gang] if quick and gang.fits else apart
