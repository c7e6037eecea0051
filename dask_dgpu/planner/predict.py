"""Predictions of the cost of a region, and the memory that a gang may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import Settings
from dask_dgpu.operations import OPERATIONS, Cost
from dask_dgpu.operations.value import Collective, Local, most_received
from dask_dgpu.planner.plain import plain_region
from dask_dgpu.runtime.plans import Making, Plans, plans
from dask_dgpu.runtime.program import Program
from dask_dgpu.runtime.tasks import PLUGIN
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.work import task_seconds
from graph_opt.model.cost import Machine, gang_seconds
from graph_opt.model.layout import dealt, label
from graph_opt.model.piece import Region

if TYPE_CHECKING:
    from distributed import Client
    from distributed.scheduler import Scheduler

Key = Any
Held = Callable[[Collection[Key]], "Memory"]
"""Returns what workers hold besides some keys."""
Figures = tuple[tuple[str, float], ...]
Bytes = NDArray[np.int64]
"""A number for each rank."""


class Memory(NamedTuple):
    """The most bytes of other results on one worker, and whether all keys are in memory."""

    others: int
    complete: bool


@dataclass(frozen=True, kw_only=True)
class Prediction(Cost):
    """The cost of a region, or of one piece, in a gang and in plain Dask.

    ``tasks`` are those in the scheduler, and ``steps`` the layer of each step and its seconds.
    """

    tasks: int
    dask_tasks: int
    dask_seconds: float
    steps: tuple[tuple[str, float], ...]


def usable(facts: ClusterFacts, settings: Settings) -> float | None:
    """Return the bytes of a device that a gang may use, ``None`` for no limit."""
    memory = facts.device_memory if settings.memory_limit is None else settings.memory_limit
    return None if memory is None else memory * (1 - settings.safety_margin)


def nothing(keys: Collection[Key]) -> Memory:
    """Return what no workers hold."""
    return Memory(0, False)


def scheduler_here(scheduler_id: str | None) -> Scheduler | None:
    """Return the scheduler of this id if it is in this process."""
    if scheduler_id is None:
        return None
    from distributed.scheduler import Scheduler

    return next((each for each in list(Scheduler._instances) if each.id == scheduler_id), None)


def held_by(scheduler_id: str | None, client: Client | None = None) -> Held:
    """Return the :data:`Held` of a scheduler, here or of a client; nothing without a cluster."""
    scheduler = scheduler_here(scheduler_id)
    if scheduler is not None:
        return partial(_memory, dask_scheduler=scheduler)
    if client is None or scheduler_id is None:
        return nothing

    def ask(keys: Collection[Key]) -> Memory:
        return Memory(*client.run_on_scheduler(_memory, keys=list(keys)))

    return ask


def figures_of(facts: ClusterFacts, client: Client | None = None) -> Figures:
    """Return the measured rates of a cluster, none if they are unknown so far."""
    scheduler = scheduler_here(facts.scheduler)
    if scheduler is not None:
        return _figures(facts.kind, scheduler)
    if client is None or facts.scheduler is None:
        return ()
    found: Figures = client.run_on_scheduler(_figures, kind=facts.kind)
    return found


def _figures(kind: str, dask_scheduler: Scheduler) -> Figures:
    plugin: Any = dask_scheduler.plugins.get(PLUGIN)
    return () if plugin is None else tuple(plugin.rates.keep(kind).items())


def _memory(keys: Collection[Key], dask_scheduler: Scheduler) -> Memory:
    """Return what the workers of a scheduler hold, without spilled results.

    This runs outside of the event loop's thread, so it copies containers before iterating.
    """
    counted: Counter[str] = Counter()
    complete = True
    for key in keys:
        ts = dask_scheduler.tasks.get(key)
        if ts is None or not ts.who_has:
            complete = False
            continue
        for ws in list(ts.who_has):
            counted[ws.address] += max(0, ts.nbytes)
    workers = list(dask_scheduler.workers.values())
    others = [max(0, ws.memory.managed - counted[ws.address]) for ws in workers]
    return Memory(max(others, default=0), complete)


def predict(
    region: Region, program: Program, facts: ClusterFacts, arrays: ArrayGraph, at_once: bool
) -> Prediction:
    """Predict a region on this cluster, with its inputs in even shares in their order.

    ``arrays`` are Dask's own layers, with those of the region. A gang starts ``at_once`` if its
    inputs are in memory.
    """
    ranks, machine = facts.workers or program.local_ranks, facts.machine
    staged = {name: len(value.indices()) for name, value in program.inputs}
    owners = {name: dealt(count, ranks) for name, count in staged.items()}
    fixed = plans(program, owners, ranks)
    costs = _costs(program, fixed, facts)
    shares = Shares(program, fixed, ranks)
    given = {name for name, _ in program.inputs} | region.nodes.keys()
    work = {
        step.output: shares.most_blocks(step) * task_seconds(arrays, step.output, given, machine)
        + shares.shipping(step, machine)
        for step in program.steps
        if isinstance(step, Local)
    }
    each = work | {name: cost.seconds for name, cost in costs.items()}
    seconds = sum(each.values())
    clustered = facts.workers > 0
    seconds += gang_seconds(machine, region.tasks, len(each), cluster=clustered, at_once=at_once)
    plain = plain_region(region, arrays, max(ranks, facts.cores), facts)
    return Prediction(
        text=", then ".join(dict.fromkeys(cost.text for cost in costs.values())),
        details=tuple(detail for cost in costs.values() for detail in cost.details),
        tasks=region.tasks,
        dask_tasks=plain.tasks,
        moved_bytes=sum(cost.moved_bytes for cost in costs.values()) + shares.shipped(),
        peak_bytes=shares.peak({name: cost.peak_bytes for name, cost in costs.items()}),
        seconds=seconds,
        dask_seconds=plain.seconds,
        steps=tuple(
            (label(s.output), each[s.output] + machine.step_seconds) for s in program.steps
        ),
    )


def _costs(program: Program, fixed: Plans, facts: ClusterFacts) -> dict[str, Cost]:
    """Return the cost of each collective; all iterations of a loop share one plan."""
    known: dict[int, Cost] = {}
    found: dict[str, Cost] = {}
    for step in program.steps:
        if isinstance(step, Collective):
            plan = fixed.collectives[step.output]
            if id(plan) not in known:
                known[id(plan)] = OPERATIONS[step.operation].cost(plan, facts.machine)
            found[step.output] = known[id(plan)]
    return found


class Shares:
    """The bytes of each value of a program on each of ``size`` ranks."""

    def __init__(self, program: Program, fixed: Plans, size: int) -> None:
        self.program = program
        self.fixed = fixed
        self.size = size
        self.values = dict(program.inputs) | {step.output: step.result for step in program.steps}
        self._numbered = [self.values[name] for name in program.names]
        self._shares = {name: self._share(name) for name in self.values}

    def peak(self, collectives: Mapping[str, int]) -> int:
        """Return the most bytes on a rank, given the peak of each collective.

        These peaks include the inputs, the output and the workspace.
        """
        held = self._sum(self.program.given)
        most = held.max()
        for step, ending in zip(self.program.steps, self.program.ends, strict=True):
            held = held + self._shares[step.output]
            workspace = 0
            if isinstance(step, Collective):
                arrays = self._sum({*step.inputs, step.output}).max()
                workspace = max(0, collectives[step.output] - arrays)
            most = max(most, held.max() + workspace)
            held = held - self._sum(ending)
        return int(most)

    def most_blocks(self, step: Local) -> int:
        """Return the number of blocks that the busiest rank computes in a step."""
        ranks = self.fixed.makings[step.output].ranks
        counted = Counter(rank for index in step.blocks() for rank in ranks[index])
        return max(counted.values(), default=0)

    def shipping(self, step: Local, machine: Machine) -> float:
        """Predict the seconds in which a step receives blocks of other ranks."""
        received = self._received([self.fixed.makings[step.output]])
        return machine.latency + received / machine.bandwidth if received else 0.0

    def shipped(self) -> int:
        """Return the bytes of whole blocks that the busiest rank receives."""
        return self._received(self.fixed.makings.values())

    def _received(self, makings: Iterable[Making]) -> int:
        shipments = chain.from_iterable(making.shipments for making in makings)
        return most_received(shipments, self._numbered, self.size)

    def _share(self, name: str) -> Bytes:
        total = [0] * self.size
        making, value = self.fixed.makings.get(name), self.values[name]
        if making is None:
            for index, rank in self.fixed.values[name].owners():
                total[rank] += value.nbytes(index)
        else:
            for index, ranks in making.ranks.items():
                for rank in ranks:
                    total[rank] += value.nbytes(index)
        return np.array(total, np.int64)

    def _sum(self, names: Iterable[str]) -> Bytes:
        return sum((self._shares[name] for name in names), np.zeros(self.size, np.int64))
