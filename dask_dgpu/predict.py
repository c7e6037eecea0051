"""What a product will cost, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_dgpu.algorithms.summa import Operand, SummaPlan, plan_summa
from dask_dgpu.algorithms.summa.choose import cost
from dask_dgpu.algorithms.summa.schedule import traffic, workspace
from dask_dgpu.facts import ClusterFacts
from dask_dgpu.settings import Settings
from graph_opt.cost import GANG_SECONDS, TASK_SECONDS, dask_product_seconds
from graph_opt.layout import cuts_of, dealt
from graph_opt.node import ArrayNode, Product


@dataclass(frozen=True)
class Prediction:
    """The cost of one product.

    Parameters
    ----------
    mesh : tuple of int
        Ranks along rows, columns and the contraction.
    strategy : str
        What the mesh amounts to.
    steps : int
        Number of panels.
    tasks, dask_tasks : int
        Tasks that the scheduler sees, with a gang and without.
    moved_bytes : int
        Bytes that the busiest rank receives, if the blocks are dealt out evenly.
    peak_bytes : int
        Most bytes on one rank: its share of A, B and C, and the workspace.
    seconds, dask_seconds : float
        Time with a gang and without.
    """

    mesh: tuple[int, int, int]
    strategy: str
    steps: int
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


def predict(product: Product, facts: ClusterFacts, settings: Settings) -> Prediction:
    """Predict a product on this cluster, its blocks dealt out evenly in their order."""
    ranks = facts.workers or settings.local_ranks
    a, b = (_dealt(node, ranks) for node in (product.left, product.right))
    plan = plan_summa(a, b, product.output.dtype, ranks, facts.machine, room=room(facts, settings))
    steps = [traffic(plan, step)[1] for step in range(plan.steps)]
    received = [sum(rank) for rank in zip(*steps, strict=True)]
    rows, inner = a.grid
    columns = b.grid[1]
    tasks = a.grid[0] * a.grid[1] + b.grid[0] * b.grid[1] + rows * columns + 1
    itemsize = np.dtype(product.output.dtype).itemsize
    shape = (a.rows[-1], a.columns[-1], b.columns[-1])
    seconds = cost(plan, facts.machine, max(received), max(steps[0]))
    seconds += tasks * TASK_SECONDS + (GANG_SECONDS if facts.workers else 0.0)
    return Prediction(
        mesh=plan.mesh,
        strategy=strategy_of(plan),
        steps=plan.steps,
        tasks=tasks,
        dask_tasks=2 * rows * inner * columns,
        moved_bytes=max(received),
        peak_bytes=_peak(plan),
        seconds=seconds,
        dask_seconds=dask_product_seconds(
            shape, (rows, inner, columns), itemsize, max(1, ranks), facts.machine
        ),
    )


def strategy_of(plan: SummaPlan) -> str:
    """Name the corner of the family of meshes that a plan is."""
    name = _mesh_name(plan)
    return f"{name}, one-sided" if plan.one_sided and plan.size > 1 else name


def _mesh_name(plan: SummaPlan) -> str:
    rows, columns, depth = plan.mesh
    if depth > 1:
        return "inner" if rows == columns == 1 else "summa with layers"
    if rows == columns == 1:
        return "one rank"
    if columns == 1:
        return "ring over rows"
    return "ring over columns" if rows == 1 else "summa"


def _dealt(node: ArrayNode, ranks: int) -> Operand:
    rows, columns = (cuts_of(sizes) for sizes in node.chunks)
    return Operand(rows, columns, node.dtype, dealt(node.blocks, ranks))


def _peak(plan: SummaPlan) -> int:
    owned = [0] * plan.size
    itemsize = np.dtype(plan.accumulator).itemsize
    for (i, j), rank in plan.owners().items():
        height = plan.a.rows[i + 1] - plan.a.rows[i]
        owned[rank] += height * (plan.b.columns[j + 1] - plan.b.columns[j]) * itemsize
    shares = (plan.a.share(rank) + plan.b.share(rank) + owned[rank] for rank in range(plan.size))
    return max(shares) + workspace(plan)
