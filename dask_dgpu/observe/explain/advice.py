"""What to change if operations do not fit: numbers that have been tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

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


def advised(optimizer: GraphOptimizer, lacks: Lacks, plan: Plan) -> tuple[Lacks, str]:
    """Return what operations lack, and what to change so that ``plan(optimizer)`` lacks nothing.

    Settings with more memory are tried. They may show that another part needs more.
    """
    if not lacks:
        return lacks, ""
    settings, facts, last, changes = optimizer.settings, optimizer.facts, lacks, dict[str, str]()
    for _ in range(MOST_TRIED):
        changes = _enough(last.values(), settings, facts)
        values: dict[str, Any] = {f"memory_{name}": parse_bytes(n) for name, n in changes.items()}
        last = plan(replace(optimizer, settings=replace(settings, **values)))
        if not last:
            break
        lacks = {
            name: replace(each, prediction=last.get(name, each).prediction)
            for name, each in lacks.items()
        }
    advice = [] if last else [_setting(changes, facts)]
    advice.append("use smaller chunks")
    if facts.workers:
        advice.append("use more workers")
    most = usable(facts, settings) or 0
    if all(lack.peak_bytes <= most for lack in lacks.values()):
        advice.append("free other results")
    return lacks, " or ".join(advice)


def _enough(lacks: Iterable[Lack], settings: Settings, facts: ClusterFacts) -> dict[str, str]:
    """Return the limit and the cap under which all that is lacking may be used, if they change."""
    most: dict[str, int] = {}
    for lack in lacks:
        least = enough(lack.peak_bytes, lack.others, facts, settings)
        for name, nbytes in least._asdict().items():
            if nbytes is not None:
                most[name] = max(nbytes, most.get(name, 0))
    return {name: at_least(nbytes) for name, nbytes in most.items()}


def _setting(changes: Mapping[str, str], facts: ClusterFacts) -> str:
    """Return what to set, or which workers have as much memory."""
    memory, limit = facts.device_memory, changes.get("limit")
    if limit is not None and memory is not None and parse_bytes(limit) > memory:
        return f"use workers with at least {limit} for blocks"
    known = [f"dgpu.memory.{name} to at least {text}" for name, text in changes.items()]
    return f"set {' and '.join(known)}"
