"""Gangs that the optimizer has planned; those that read the same arrays become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.planner.predict import Prediction
from dask_dgpu.runtime.program import Program
from graph_opt.model.piece import Region
from graph_opt.sharing import joined, together

Gang = tuple[Region, Prediction, Program]


def fits(prediction: Prediction, room: float | None) -> bool:
    """Whether a gang fits in so many bytes of a device."""
    return room is None or prediction.peak_bytes <= room


def with_joined(
    gangs: Iterable[Gang], graph: HighLevelGraph, plan: Callable[[Region], Gang]
) -> list[Gang]:
    """Replace gangs with common inputs by one, if it fits and is predicted to be no slower.

    A gang whose inputs are all in memory does not wait for one that has to wait for its own.
    """
    found: list[Gang] = []
    planned = {id(region): (region, prediction, program) for region, prediction, program in gangs}
    for at_once in (True, False):
        regions = [region for region, each, _ in planned.values() if each.at_once is at_once]
        for group in together(regions, graph):
            found += _joined([planned[id(region)] for region in group], plan)
    return found


def _joined(apart: Sequence[Gang], plan: Callable[[Region], Gang]) -> Sequence[Gang]:
    """Return one gang for several, or the same gangs if they are better apart."""
    if len(apart) == 1:
        return apart
    gang = plan(joined([region for region, _, _ in apart]))
    _, prediction, program = gang
    quick = prediction.seconds <= sum(each.seconds for _, each, _ in apart)
    return [gang] if quick and fits(prediction, program.room) else apart
