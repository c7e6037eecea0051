"""What a region costs in a gang and in plain Dask, and the memory that a gang may use.

Plain Dask runs layers one after another. The scheduler handles each task, the busiest worker sets
the time of transfers and of work, and each task that depends on another worker's adds a round trip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil
from operator import add
from types import MappingProxyType
from typing import NamedTuple

from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.operations import Cost
from dask_dgpu.operations.operation import Node, Value, shipped_to
from dask_dgpu.runtime.plans import costs_of, peak, plans, shipping_seconds
from dask_dgpu.runtime.program import Launch, Program
from graph_opt.model.cost import Machine, gang_seconds
from graph_opt.model.layout import (
    CUPY,
    NUMPY,
    Index,
    dealt,
    format_bytes,
)
from graph_opt.model.names import label
from graph_opt.model.parts import extent, nbytes
from graph_opt.model.piece import Piece, Region
from graph_opt.model.reader import Key, PlainLayer, Reader

Places = Mapping[Key, int]
"""The numbers of the workers with blocks that are known to exist."""

Read = tuple[int, Iterable[Index]]
"""Some blocks of a value."""

NO_MEETING = "no blocks meet"
"""Why work on blocks with the same index is left to Dask."""

ONE_PROCESS = "blocks of one process need no gang"
"""Why Dask's own layers are left to it without a cluster: its threads are as quick."""

USERS = "functions of users take unknown time"
"""Why work with such functions is left to Dask: it gives them to workers that are free."""

LEAST_GAIN = 0.85
"""Run a gang if it takes less than this fraction of plain Dask's time: predictions err."""


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
    shape: tuple[int, ...]
    tasks: int = 0
    dask_tasks: int = 0
    dask_seconds: float = 0.0
    steps: tuple[StepCost, ...] = ()
    at_once: bool = False
    host_bytes: int = 0
    rows: int = 1
    parts: int = 1
    terms: int = 1
    host_seconds: float = 0.0

    @property
    def device_seconds(self) -> float:
        """The seconds without copies, to compare with plain Dask, predicted without them too."""
        return self.seconds - self.host_seconds


@dataclass(frozen=True)
class Lack:
    """Work without a gang because it does not fit: as predicted, and the bytes that may be used.

    These are beside so many bytes of ``others``, on the worker with the most.
    If some ``part`` of it needs less than the whole, the prediction is that of the smallest.
    """

    prediction: Prediction
    room: float
    others: int
    part: bool

    @property
    def peak_bytes(self) -> int:
        """The bytes that it needs on a rank."""
        return self.prediction.peak_bytes

    @property
    def reason(self) -> str:
        """Why there is no gang."""
        needs = "its smallest part needs" if self.part else "it needs"
        there = format_bytes(int(self.room))
        return f"{needs} {format_bytes(self.peak_bytes)} on a rank and {there} may be used"


@dataclass(frozen=True)
class Gang:
    """What computes a region: one gang, or one after another for its parts.

    ``launches`` has the region, or its parts in order, with their programs. ``room`` are the bytes
    of a device that the gang, or the part that needs most, may use beside those of ``others``,
    ``None`` for no limit. If it does not fit, ``least`` is the part of the smallest cut that needs
    most, ``None`` if the whole needs less.
    """

    region: Region
    prediction: Prediction
    launches: tuple[tuple[Region, Launch], ...]
    room: float | None
    others: int
    least: Gang | None = None

    @property
    def fits(self) -> bool:
        """Whether the devices have the memory."""
        return self.room is None or self.prediction.peak_bytes <= self.room

    @property
    def gain(self) -> float:
        """Seconds that it is predicted to save."""
        return self.prediction.dask_seconds - self.prediction.device_seconds

    @property
    def lack(self) -> Lack | None:
        """What it lacks if it does not fit."""
        prediction = self.least or self
        if prediction.room is None or self.fits:
            return None
        return Lack(
            prediction.prediction, prediction.room, prediction.others, prediction is not self
        )

    def beats(self, others: Sequence[Gang]) -> bool:
        """Whether it fits and saves at least as much as some gangs, if there are any."""
        return bool(others) and self.fits and self.gain >= sum(other.gain for other in others)

    def refusal(self, when: str) -> str | None:
        """Return the reason against it, if there is one: its memory or, by ``when``, its cost."""
        if self.lack is not None:
            return self.lack.reason
        prediction = self.prediction
        ours, plain = prediction.device_seconds, prediction.dask_seconds
        if when == "always" or self.region.forced or ours < LEAST_GAIN * plain:
            return None
        if ours < plain:
            return f"a gang is predicted to gain too little ({ours:.3g} s against {plain:.3g} s)"
        return f"plain Dask is predicted to be quicker ({plain:.3g} s against {ours:.3g} s)"


def blocks_of(region: Region) -> list[Key]:
    """Return the keys of the blocks that a region reads."""
    return [*_keys((node.name, blocks) for node, blocks in region.inputs)]


def _keys(wanted: Iterable[tuple[str, Iterable[Index]]]) -> Iterator[Key]:
    return ((name, *index) for name, blocks in wanted for index in blocks)


def predict(
    region: Region,
    launch: Launch,
    facts: ClusterFacts,
    reader: Reader,
    places: Places = MappingProxyType({}),
) -> Prediction:
    """Predict a region on this cluster, with its inputs at their known ``places``.

    Inputs without known places are in even shares in their order.
    """
    program, names, machine = launch.program, launch.names, facts.machine
    ranks = facts.workers or program.local_ranks
    inputs = zip(names, program.inputs, strict=False)
    owners = [_owners(name, value, ranks, places) for name, value in inputs]
    planned = plans(program, owners, ranks)
    costs = costs_of(program, planned)
    seconds_of = block_seconds(region, reader, machine)
    steps, received = [], {}
    for number, node in program.numbered.items():
        shipped = shipped_to(planned.shipments(number), program.values, ranks)
        cost, name, seconds = costs.get(number), names[number], shipping_seconds(shipped, machine)
        if cost is None:
            received[name] = _parts_received(program, node, ranks) if node.merges else max(shipped)
            seconds += planned.makings[number].most_blocks * seconds_of[name]
            steps.append(StepCost(label(name), seconds, shipped))
            continue
        moved = tuple(cost.moved_bytes + nbytes for nbytes in shipped)
        seconds += cost.seconds
        steps.append(StepCost(label(name), seconds, moved, cost.text, cost.peak_bytes))
    seconds = sum(step.seconds for step in steps)
    at_once = begins_at_once(region, places)
    seconds += gang_seconds(machine, region.tasks, len(steps), at_once=at_once)
    workers = max(ranks, facts.cores)
    layers = [*_plain_layers(region, seconds_of, received, workers)]
    plain = _run(layers, {*_keys(region.wanted)}, workers, machine)
    numbers, given = {name: number for number, name in enumerate(names)}, _given(region)
    works = [work.output.name for work in region.works if work.copied is None]
    beside = {numbers[name]: reader.beside(name, given) for name in works if seconds_of[name]}
    parts = peak(
        program,
        planned,
        ranks,
        costs,
        beside,
        {numbers[node.name] for node, _ in region.inputs if reader.is_stored(node.name)},
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
        peak_bytes=sum(parts),
        peak=parts,
        seconds=seconds + copying,
        dask_seconds=plain.seconds,
        steps=tuple(replace(s, seconds=s.seconds + machine.step_seconds) for s in steps),
        at_once=at_once,
        host_bytes=copied,
        host_seconds=copying,
        shape=shape,
        rows=max(shape[:1], default=1),
    )


def _parts_received(program: Program, node: Node, workers: int) -> int:
    """Predict the bytes that a worker receives in plain Dask, which merges no parts before."""
    values = [program.values[number] for number in node.reads]
    nbytes = sum(values[at].nbytes(index) for blocks in node.needs for at, index in blocks)
    return nbytes * (workers - 1) // (workers * max(1, min(workers, len(node.needs))))


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


def host_bytes(program: Program) -> int:
    """Return the bytes of blocks that all ranks, on GPUs, copy to them and back."""
    return sum(
        program.values[number].nbytes(index)
        for number, blocks in _copied(program)
        for index in blocks
    )


def _copied(program: Program) -> Iterator[Read]:
    """Yield what a program copies between host and device.

    Collectives compute on the device, and functions that return NumPy blocks on the host.
    """
    values = program.values
    on_host = {i for i, value in enumerate(program.inputs) if value.container == NUMPY}
    for number, node in program.numbered.items():
        is_here = node.operation is None and node.value.container == NUMPY
        yield from (read for read in _reads(node, values) if (read[0] in on_host) != is_here)
        if is_here:
            on_host.add(number)
        elif node.operation is not None:
            on_host -= {*node.reads}  # the copies take the place of the blocks
    for number, blocks in program.outputs:
        if values[number].container == NUMPY and number not in on_host:
            yield number, blocks


def _reads(node: Node, values: Sequence[Value]) -> Iterator[Read]:
    """Yield the blocks of each input that a node reads."""
    needs = {need for each in node.needs for need in each}
    for i, number in enumerate(dict.fromkeys(node.reads)):
        own = [index for place, index in needs if place == i]
        yield number, own if node.operation is None else values[number].indices()


class LayerCost(NamedTuple):
    """The tasks of a layer, their seconds, and the bytes that the busiest worker receives."""

    tasks: int = 0
    seconds: float = 0.0
    moved_bytes: int = 0


class Plain(NamedTuple):
    """The number of Dask's tasks, their seconds, and the cost of each layer after Dask's fusion."""

    tasks: int
    seconds: float
    layers: Mapping[str, LayerCost] = MappingProxyType({})

    def plus(self, tasks: int, seconds: float) -> Plain:
        """Return the cost with further tasks and seconds, of the same layers."""
        return self._replace(tasks=self.tasks + tasks, seconds=self.seconds + seconds)


def plain_graph(
    reader: Reader,
    pieces: Iterable[Piece],
    regions: Collection[Region],
    facts: ClusterFacts,
    *,
    workers: int,
    kernels: bool,
) -> Plain:
    """Predict plain Dask's time for a graph with these pieces, and the results of these regions.

    With ``kernels``, these do the work of several layers.
    """
    wanted, machine = {*reader.keys}.union(*map(blocks_of, regions)), facts.machine
    layers = reader.plain_layers(pieces, regions, wanted, machine, workers, kernels=kernels)
    plain = _run([*layers], wanted, workers, machine)
    return plain.plus(0, 2 * machine.round_trip_seconds)  # submit and report


def _plain_layers(
    region: Region, seconds: Mapping[str, float], moved: Mapping[str, int], workers: int
) -> Iterator[PlainLayer]:
    """Yield the layers of a region for plain Dask, which moves as many bytes as the gang.

    ``seconds`` are those of a block in each step, and ``moved`` the bytes of the busiest rank.
    """
    for member in region.members:
        name, reads = member.output.name, [node.name for node in member.inputs]
        if isinstance(member, Piece):
            blocks = [(name, *index) for name, index in member.reads()]
            yield PlainLayer(name, reads, {name: blocks}, piece=member)
            continue
        needs = {
            (name, *index): [(other, *block) for other, block in blocks]
            for index, blocks in member.needs.items()
        }
        steps = [(step.output.name, ceil(len(step.needs) / workers)) for step in member.steps]
        yield PlainLayer(
            name,
            reads,
            needs,
            sum(seconds[step] * blocks for step, blocks in steps),
            sum(moved[step] for step, _ in steps),
            inner=member.inner,
            depth=member.depth,
        )


def block_seconds(region: Region, reader: Reader, machine: Machine) -> dict[str, float]:
    """Predict the work of a block, on average, in each step of Dask's layers in a region."""
    given = _given(region)
    return {
        work.output.name: reader.task_seconds(work.output.name, given, machine)
        if work.copied is None
        else work.copied / machine.memory_bandwidth
        for work in region.works
    }


def _given(region: Region) -> set[str]:
    return {node.name for node, _ in region.inputs} | region.nodes.keys()


def _run(
    layers: Sequence[PlainLayer], wanted: Collection[Key], workers: int, machine: Machine
) -> Plain:
    """Predict layers in their order. Dask fuses a task with the only reader of its block."""
    reads = (read for layer in layers for read in layer.needs.values())
    readers = Counter(chain.from_iterable(reads))
    made = set[Key]()
    levels: dict[str, int] = {}
    costs: dict[str, LayerCost] = {}
    for layer in layers:
        own = layer.needs.keys()
        if layer.piece is not None:
            costs[layer.name] = LayerCost(*layer.piece.dask_cost(workers, machine))
            made.update((layer.name, *index) for index in layer.piece.computed)
        else:
            fused = {
                key
                for key, read in layer.needs.items()
                if len(read) == 1 and all(each in made and readers[each] == 1 for each in read)
            }
            tasks = layer.inner + len(own - fused - {*layer.aliases})
            seconds = layer.seconds + layer.moved_bytes / machine.dask_rate
            seconds += tasks * machine.task_seconds
            costs[layer.name] = LayerCost(tasks, seconds, int(layer.moved_bytes))
            made |= fused | (own - {*layer.aliases})
        made.difference_update(wanted)
        waits = costs[layer.name].tasks > 0
        before = (levels[other] + waits for other in layer.reads if other in levels)
        levels[layer.name] = max(before, default=0) + layer.depth
    seconds = sum(cost.seconds for cost in costs.values())
    seconds += max(levels.values(), default=0) * machine.round_trip_seconds
    return Plain(sum(cost.tasks for cost in costs.values()), seconds, costs)
