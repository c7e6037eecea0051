"""Gangs that the optimizer has planned: whether they run, and which of them become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dask.highlevelgraph import HighLevelGraph
from dask.utils import format_bytes

from dask_dgpu.environment.settings import Settings
from dask_dgpu.planner.parts import Gang
from graph_opt.model.piece import Region
from graph_opt.sharing import joined, together

LEAST_GAIN = 0.85
"""Run a gang if it takes less than this fraction of plain Dask's time: predictions err."""


@dataclass(frozen=True)
class Verdicts:
    """Why there is no gang for some layers.

    ``refused`` are collectives, and ``left`` layers of regions without any, with the reasons. Of
    the former some are ``too_large`` for the devices.
    """

    refused: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    too_large: set[str] = field(default_factory=set)

    def refuse(self, name: str, reason: str, *, fits: bool) -> None:
        """Add a collective whose gang would fit or would not."""
        self.refused[name] = reason
        if not fits:
            self.too_large.add(name)


def refusal_of(gang: Gang, settings: Settings) -> str | None:
    """Return the reason against a gang by its cost, if there is one."""
    found = gang.prediction
    if gang.room is not None and not gang.fits:
        needed, there = format_bytes(found.peak_bytes), format_bytes(int(gang.room))
        return f"it needs {needed} on a rank and {there} may be used"
    ours, plain = found.seconds, found.dask_seconds
    if settings.when == "always" or gang.region.forced or ours < LEAST_GAIN * plain:
        return None
    if ours < plain:
        return f"a gang is predicted to gain too little ({ours:.3g} s against {plain:.3g} s)"
    return f"plain Dask is predicted to be quicker ({plain:.3g} s against {ours:.3g} s)"


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
