"""What to change if operations do not fit: numbers that have been tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from dask.utils import parse_bytes

from dask_dgpu.cost.table import at_least
from dask_dgpu.environment.facts import ClusterFacts, usable
from dask_dgpu.environment.settings import Settings
from dask_dgpu.optimizer import GraphOptimizer
from dask_dgpu.planner.predict import Lack
from dask_dgpu.planner.present import enough

MOST_TRIED = 8
"""Most settings to try: each lets something more fit."""

Lacks = Mapping[str, Lack]
Plan = Callable[[GraphOptimizer], Lacks]


@dataclass(frozen=True)
class Enough:
    """Settings of memory under which all fits, as texts, ``None`` for those that stay."""

    limit: str | None
    cap: str | None

    @classmethod
    def of(cls, lacks: Iterable[Lack], settings: Settings, facts: ClusterFacts) -> Enough:
        """Return settings under which all that is lacking may be used."""
        found = [enough(each.peak_bytes, each.others, facts, settings) for each in lacks]

        def most(each: Iterable[int | None]) -> str | None:
            nbytes = max((nbytes for nbytes in each if nbytes is not None), default=None)
            return None if nbytes is None else at_least(nbytes)

        return cls(*map(most, zip(*found, strict=True)))

    def set_in(self, optimizer: GraphOptimizer) -> GraphOptimizer:
        """Return the optimizer with these settings."""
        settings = optimizer.settings
        if self.limit is not None:
            settings = replace(settings, memory_limit=parse_bytes(self.limit))
        if self.cap is not None:
            settings = replace(settings, memory_cap=parse_bytes(self.cap))
        return replace(optimizer, settings=settings)

    def change(self, facts: ClusterFacts) -> str:
        """Return what to set, or which workers have as much memory."""
        memory = facts.device_memory
        if self.limit is not None and memory is not None and parse_bytes(self.limit) > memory:
            return f"use workers with at least {self.limit} for blocks"
        names = {"dgpu.memory.limit": self.limit, "dgpu.memory.cap": self.cap}
        known = [f"{name} to at least {text}" for name, text in names.items() if text is not None]
        return f"set {' and '.join(known)}"


def advised(optimizer: GraphOptimizer, lacks: Lacks, plan: Plan) -> tuple[Lacks, str]:
    """Return what operations lack, and what to change so that ``plan(optimizer)`` lacks nothing.

    Settings with more memory are tried. They may show that another part needs more.
    """
    if not lacks:
        return lacks, ""
    settings, facts, tried, last = optimizer.settings, optimizer.facts, optimizer, lacks
    for _ in range(MOST_TRIED):
        changed = Enough.of(last.values(), settings, facts)
        tried = changed.set_in(optimizer)
        last = plan(tried)
        if not last:
            break
        lacks = {
            name: replace(each, prediction=last.get(name, each).prediction)
            for name, each in lacks.items()
        }
    changes = [] if last else [changed.change(facts)]
    changes.append("use smaller chunks")
    if facts.workers and not all(each.streams for each in lacks.values()):
        changes.append("use more workers")
    most = usable(facts, settings) or 0
    if all(each.peak_bytes <= most for each in lacks.values()):
        changes.append("free other results")
    return lacks, " or ".join(changes)
