"""Predictions of the cost of a region, and the memory that a gang may use."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from operator import add
from types import MappingProxyType
from typing import Any, NamedTuple

from dask_dgpu.environment.facts import ClusterFacts, rounded
from dask_dgpu.environment.settings import Settings
from dask_dgpu.operations import Cost
from dask_dgpu.operations.operation import Value
from dask_dgpu.planner.host import host_bytes
from dask_dgpu.planner.plain import block_memory, block_seconds, in_memory, plain_region
from dask_dgpu.planner.stages import Places
from dask_dgpu.runtime.plans import Shares, costs_of, plans
from dask_dgpu.runtime.program import Launch, Limits, Program
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.model.cost import gang_seconds
from graph_opt.model.layout import CUPY, dealt, label
from graph_opt.model.parts import extent, nbytes
from graph_opt.model.piece import Region

RECORDED_FRACTION = 1 / 8
"""Most of the usable memory for recordings, which plans do not count: the margin has it."""

ROOM_STEPS = 64
"""Free memory counts in such fractions of the limit, so equal programs have equal plans."""

MEMORIES = range(1 << 62)
"""Bytes that a device may have."""

Key = Any


@dataclass(frozen=True)
class StepCost:
    """What a step takes within a gang: the label of its layer, and what each rank ``received``.

    A collective has its plan in words and its peak of memory. Its ranks count alike.
    """

    name: str
    seconds: float
    received: tuple[int, ...]
    text: str = ""
    peak_bytes: int | None = None

    def plus(self, other: StepCost) -> StepCost:
        """Return the sum with the same step of another part, and the larger peak."""
        return replace(
            self,
            seconds=self.seconds + other.seconds,
            received=tuple(map(add, self.received, other.received)),
            peak_bytes=max(self.peak_bytes or 0, other.peak_bytes or 0) or None,
        )


def most_received(steps: Iterable[StepCost]) -> int:
    """Return the bytes of the rank that receives most in some steps together."""
    return max(map(sum, zip(*(step.received for step in steps), strict=True)), default=0)


@dataclass(frozen=True, kw_only=True)
class Prediction(Cost):
    """The cost of a region, or of one piece, in a gang and in plain Dask.

    ``tasks`` are those in the scheduler, and ``steps`` the cost of each step.
    ``peak`` is what makes up ``peak_bytes``: inputs, results of steps, and workspace. All ranks
    together copy ``host_bytes`` to GPUs and back, in ``host_seconds`` of the ``seconds``: a rank
    copies the blocks of a step before it computes, so nothing hides the copies. ``shape`` is that
    of the largest result. A gang with all inputs in memory starts ``at_once``.

    A collective in several ``parts`` has the sums of all, but the memory of the part that needs
    most, and the shape of the largest. Their longest along the first axis that is cut has so many
    ``rows``; without parts these are all of the first axis. If parts are terms of sums, a block has
    so many ``terms``.
    """

    peak: tuple[int, int, int]
    tasks: int
    dask_tasks: int
    dask_seconds: float
    steps: tuple[StepCost, ...]
    at_once: bool
    host_bytes: int
    shape: tuple[int, ...]
    rows: int
    parts: int = 1
    terms: int = 1
    host_seconds: float = 0.0

    @property
    def device_seconds(self) -> float:
        """The seconds without copies, to compare with plain Dask, predicted without them too."""
        return self.seconds - self.host_seconds


def memory_of(facts: ClusterFacts, settings: Settings) -> int | None:
    """Return the bytes of a device, ``None`` if nobody knows."""
    return facts.device_memory if settings.memory_limit is None else settings.memory_limit


def usable(facts: ClusterFacts, settings: Settings) -> float | None:
    """Return the bytes of a device that may be used, ``None`` for no limit."""
    memory = memory_of(facts, settings)
    found = None if memory is None else memory * (1 - settings.safety_margin)
    bounds = [bound for bound in (found, settings.memory_cap) if bound is not None]
    return min(bounds, default=None)


def left_of(most: float, others: float) -> float:
    """Return the bytes that are left of ``most`` for a gang beside other results."""
    step = max(1.0, most / ROOM_STEPS)
    return max(0.0, most - ceil(others / step) * step)


class LeastMemory(NamedTuple):
    """The least bytes of a setting under which something fits, ``None`` if it is no less now."""

    limit: int | None
    cap: int | None


def enough(needed: float, others: float, facts: ClusterFacts, settings: Settings) -> LeastMemory:
    """Return settings under which so many bytes are left beside other results."""

    def least(share: float) -> int:
        """Return the least bytes of which a share leaves enough: more of them leave more."""
        leaves = partial(left_of, others=others)
        return bisect_left(MEMORIES, True, key=lambda nbytes: leaves(nbytes * share) >= needed)

    memory, cap = memory_of(facts, settings), settings.memory_cap
    least_limit, least_cap = least(1 - settings.safety_margin), least(1.0)
    return LeastMemory(
        least_limit if memory is not None and memory < least_limit else None,
        least_cap if cap is not None and cap < least_cap else None,
    )


def blocks_of(region: Region) -> list[Key]:
    """Return the keys of the blocks that a region reads."""
    return [(node.name, *index) for node, blocks in region.inputs for index in blocks]


def predict(
    region: Region,
    launch: Launch,
    facts: ClusterFacts,
    arrays: ArrayGraph,
    places: Places = MappingProxyType({}),
) -> Prediction:
    """Predict a region on this cluster, with its inputs at their known ``places``.

    Inputs without known places are in even shares in their order. ``arrays`` are Dask's own
    layers, with those of the region.
    """
    program, names, machine = launch.program, launch.names, facts.machine
    ranks = facts.workers or program.local_ranks
    inputs = zip(names, program.inputs, strict=False)
    owners = [_owners(name, value, ranks, places) for name, value in inputs]
    planned = plans(program, owners, ranks)
    costs = costs_of(program, planned)
    shares = Shares(program, planned, ranks)
    seconds_of = block_seconds(region, region.works, arrays, machine)
    steps = []
    for number in program.numbered:
        shipped, cost, name = shares.shipped(number), costs.get(number), names[number]
        seconds = shares.shipping(shipped, machine)
        if cost is None:
            seconds += shares.most_blocks(number) * seconds_of[name]
            steps.append(StepCost(label(name), seconds, shipped))
            continue
        moved = tuple(cost.moved_bytes + nbytes for nbytes in shipped)
        seconds += cost.seconds
        steps.append(StepCost(label(name), seconds, moved, cost.text, cost.peak_bytes))
    seconds = sum(step.seconds for step in steps)
    at_once = begins_at_once(region, places)
    seconds += gang_seconds(machine, region.tasks, len(steps), at_once=at_once)
    plain = plain_region(region, arrays, max(ranks, facts.cores), facts, places, seconds_of)
    works = (work for work in region.works if seconds_of.get(work.output.name))  # no views
    numbers = {name: number for number, name in enumerate(names)}
    beside = block_memory(region, works, arrays).items()
    peak = shares.peak(
        {number: cost.peak_bytes for number, cost in costs.items()},
        {numbers[name]: each for name, each in beside},
        {numbers[name] for name in _lasting(region, arrays)},
        facts.threads,
    )
    shape = _largest(region)
    copied = host_bytes(program) if _is_on_gpus(program, facts) else 0
    copying = machine.link_seconds(copied, ranks)
    return Prediction(
        text=", then ".join(dict.fromkeys(cost.text for cost in costs.values())),
        details=tuple(detail for cost in costs.values() for detail in cost.details),
        tasks=region.tasks,
        dask_tasks=plain.tasks,
        moved_bytes=most_received(steps),
        peak_bytes=sum(peak),
        peak=peak,
        seconds=seconds + copying,
        dask_seconds=plain.seconds,
        steps=tuple(replace(s, seconds=s.seconds + machine.step_seconds) for s in steps),
        at_once=at_once,
        host_bytes=copied,
        host_seconds=copying,
        shape=shape,
        rows=max(shape[:1], default=1),
    )


def _lasting(region: Region, arrays: ArrayGraph) -> set[str]:
    """Return the inputs in memory, which their owner holds whatever a gang frees."""
    names = (node.name for node, _ in region.inputs)
    return {name for name in names if in_memory(arrays.layers.get(name))}


def limits_of(facts: ClusterFacts, settings: Settings) -> Limits:
    """Return the limits of a gang, with those of its recordings by the memory of a device.

    The free memory of a machine changes, so they are a power of two: equal programs stay equal.
    """
    limits, most = settings.limits, usable(facts, settings)
    if most is None:
        return limits
    power = rounded(max(1, int(RECORDED_FRACTION * most)), bits=1)
    return replace(limits, kept_recordings=min(limits.kept_recordings, power))


def begins_at_once(region: Region, places: Places) -> bool:
    """Whether all blocks that a region reads are on workers, so its gang needs no tasks.

    A part of a collective that waits for another needs them.
    """
    return region.after is None and bool(places) and all(key in places for key in blocks_of(region))


def _largest(region: Region) -> tuple[int, ...]:
    """Return the shape of the largest result of a region, or of its wanted part."""
    results = [(region.nodes[name], blocks) for name, blocks in region.wanted]
    if all(len(blocks) == node.blocks for node, blocks in results):
        return max((node for node, _ in results), key=lambda node: node.nbytes).shape
    return extent(*max(results, key=lambda result: nbytes(*result)))


def _is_on_gpus(program: Program, facts: ClusterFacts) -> bool:
    """Whether ranks compute on GPUs; without a cluster they do if there are CuPy blocks."""
    if facts.workers:
        return facts.device == "cuda"
    return any(value.container == CUPY for value in program.values)


def _owners(name: str, value: Value, ranks: int, places: Places) -> Sequence[int]:
    """Return the ranks of an input's blocks; even shares unless all their places are known."""
    known = [places.get((name, *index), ranks) for index in value.indices()]
    return known if max(known, default=ranks) < ranks else dealt(len(known), ranks)
