"""What a piece will cost, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask_dgpu.facts import ClusterFacts
from dask_dgpu.runtime.collectives import ALGORITHMS
from dask_dgpu.runtime.program import Collective, Program, plans
from dask_dgpu.settings import Settings
from graph_opt.cost import GANG_SECONDS, TASK_SECONDS
from graph_opt.layout import dealt
from graph_opt.piece import Piece


@dataclass(frozen=True)
class Prediction:
    """The cost of one piece.

    Parameters
    ----------
    text : str
        How it is computed, in a few words.
    details : tuple of (str, value)
        How it is computed, as plain values; which ones depends on the algorithm.
    tasks, dask_tasks : int
        Tasks that the scheduler sees, with a gang and without.
    moved_bytes : int
        Bytes that the busiest rank receives, if the blocks are dealt out evenly.
    peak_bytes : int
        Most bytes on one rank: its share of inputs and output, and the workspace.
    seconds, dask_seconds : float
        Time with a gang and without.
    """

    text: str
    details: tuple[tuple[str, Any], ...]
    tasks: int
    dask_tasks: int
    moved_bytes: int
    peak_bytes: int
    seconds: float
    dask_seconds: float


def room(facts: ClusterFacts, settings: Settings) -> float | None:
    """Return the bytes of a device that a gang may use, ``None`` for no limit."""
    memory = settings.memory_limit or facts.device_memory
    return None if memory is None else memory * (1 - settings.safety_margin)


def predict(piece: Piece, program: Program, facts: ClusterFacts) -> Prediction:
    """Predict a piece on this cluster, its blocks dealt out evenly in their order."""
    ranks = facts.workers or program.local_ranks
    staged = {name: len(value.indices()) for name, value in program.inputs}
    fixed = plans(program, {name: dealt(count, ranks) for name, count in staged.items()}, ranks)
    costs = [
        ALGORITHMS[step.algorithm].cost(fixed.collectives[step.output], facts.machine)
        for step in program.steps
        if isinstance(step, Collective)
    ]
    tasks = sum(staged.values()) + len(piece.computed) + 1
    seconds = sum(cost.seconds for cost in costs)
    dask_tasks, dask_seconds = piece.dask_cost(ranks, facts.machine)
    return Prediction(
        text=", then ".join(cost.text for cost in costs),
        details=tuple(detail for cost in costs for detail in cost.details),
        tasks=tasks,
        dask_tasks=dask_tasks,
        moved_bytes=sum(cost.moved_bytes for cost in costs),
        peak_bytes=max(cost.peak_bytes for cost in costs),
        seconds=seconds + tasks * TASK_SECONDS + (GANG_SECONDS if facts.workers else 0.0),
        dask_seconds=dask_seconds,
    )
