"""Which parts of a graph become gangs: pieces and regions that fit and are predicted to be quicker.

This sees a graph by its reader only, and is the same for all kinds of graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.environment.facts import ClusterFacts, limits_of, usable
from dask_dgpu.environment.settings import Settings
from dask_dgpu.operations.operation import Node, value_of
from dask_dgpu.planner.gangs import in_parts, with_joined
from dask_dgpu.planner.predict import (
    NO_MEETING,
    ONE_PROCESS,
    USERS,
    Gang,
    Lack,
    Places,
    Plain,
    Prediction,
    blocks_of,
    plain_graph,
    predict,
)
from dask_dgpu.planner.present import (
    NOTHING,
    Figures,
    Present,
    figures_of,
    is_offloaded,
    room_of,
)
from dask_dgpu.runtime.program import Blockworks, Launch, Program
from graph_opt.model.layout import CUPY, NUMPY, Declined
from graph_opt.model.piece import Blockwork, Member, Piece, Region
from graph_opt.model.reader import Graph, Reader
from graph_opt.passes import by_name, partition, region_of

if TYPE_CHECKING:
    from distributed import Client

MOST_WASTE = 0.5
"""Leave a piece to Dask if more than this fraction of its computed blocks is unused."""

SomeReader = TypeVar("SomeReader", bound=Reader)
ItsReader = TypeVar("ItsReader", bound=Reader, covariant=True)


@dataclass(frozen=True)
class Rewriting(Generic[ItsReader]):
    """A graph with gangs, and the decisions behind it.

    ``graph`` is of the kind that the ``reader`` has read. ``declined`` are pieces, and ``left`` are
    further layers, with the reasons why no gang computes them. ``lacks`` has the pieces that do not
    fit, by name. With ``own_left`` all of Dask's own layers are left to it, because the graph runs
    in one process.
    """

    graph: Any
    reader: ItsReader
    regions: tuple[tuple[Region, Prediction], ...]
    declined: tuple[Declined, ...]
    left: Mapping[str, str]
    lacks: Mapping[str, Lack]
    own_left: bool

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The collectives of all gangs."""
        return tuple(piece for region, _ in self.regions for piece in region.pieces)


def made_by(region: Region) -> Iterator[str]:
    """Yield the layers that a region computes."""
    for member in region.members:
        yield from member.layers if isinstance(member, Piece) else ()
        yield member.output.name
    for work in region.works:
        yield work.output.name


@dataclass(frozen=True)
class Verdicts:
    """Why there is no gang for some layers.

    ``refused`` are collectives, and ``left`` layers of regions without any, with the reasons. Of
    the former some are too large for the devices, and have an entry in ``lacks``.
    """

    refused: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    lacks: dict[str, Lack] = field(default_factory=dict)

    def refuse(self, name: str, reason: str, lack: Lack | None) -> None:
        """Add a collective, and what it lacks if it does not fit."""
        self.refused[name] = reason
        if lack is not None:
            self.lacks[name] = lack

    def leave(self, names: Iterable[str], reason: str | None) -> bool:
        """Add layers if there is a reason against them; return whether there is one."""
        if reason is not None:
            self.left.update(dict.fromkeys(names, reason))
        return reason is not None

    def add(self, others: Verdicts) -> None:
        """Add all of others."""
        self.refused.update(others.refused)
        self.left.update(others.left)
        self.lacks.update(others.lacks)

    def tried_in_passes(self, lacks: Iterable[Lack]) -> None:
        """Replace what collectives lack by what their passes do if that is less."""
        most = max(lacks, key=lambda lack: lack.peak_bytes, default=None)
        for name, own in self.lacks.items():
            if most is not None and most.peak_bytes < own.peak_bytes:
                self.lacks[name], self.refused[name] = most, most.reason


@dataclass(frozen=True)
class Planner:
    """Decides by the settings of a user and the facts about a cluster."""

    settings: Settings
    facts: ClusterFacts
    most: float | None = field(init=False)  # bytes of a device that may be used

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", usable(self.facts, self.settings))

    def calibrated(self, client: Client | None = None) -> Self:
        """Return the planner with the rates that the scheduler, here or a client's, measured."""
        return self.with_figures(figures_of(self.facts, client))

    def with_figures(self, figures: Figures) -> Self:
        """Return the planner for a cluster with these measured rates."""
        return replace(self, facts=replace(self.facts, figures=figures)) if figures else self

    def decide(self, reader: SomeReader, present: Present = NOTHING) -> Rewriting[SomeReader]:
        """Insert gangs into a graph, where rules match and the cost model agrees.

        ``present`` are the results on workers, and the memory that a gang cannot use.
        """
        pieces, declined = list(reader.matches.pieces), list(reader.matches.declined)
        verdicts, lacks, slower = Verdicts(), dict[str, Lack](), set[str]()
        gangs = list[Gang]()
        own_left = not self.facts.workers and self.settings.when != "always"
        own = self.settings.regions and not own_left and _may_meet(reader, self.facts)
        while pieces or own:
            # a gang for a part of a piece that is slower in one would be slower too
            graph = reader.with_pieces(
                pieces, left=slower if self.settings.regions else reader.dependencies
            )
            alone = _alone(graph)
            reasons = {name: hindrance_of(each, self.facts) for name, each in alone.items()}
            refused = {name: reason for name, reason in reasons.items() if reason}
            verdicts = Verdicts(refused)
            if not refused:
                gangs = self._best(graph, reader, alone, present, verdicts)
                costly = verdicts.refused.keys() - verdicts.lacks.keys()
                slower.update(*(p.layers for p in pieces if p.output.name in costly))
            if verdicts.lacks and (smaller := reader.in_passes(verdicts.lacks)):
                rewriting = self.decide(smaller, present)
                new = smaller.dependencies.keys() - reader.dependencies.keys()
                passes = verdicts.lacks.keys() | new
                if any(piece.output.name in passes for piece in rewriting.pieces):
                    return rewriting
                tried = rewriting.lacks
                verdicts.tried_in_passes(tried[name] for name in passes & tried.keys())
            lacks |= verdicts.lacks
            declined += [Declined(name, reason) for name, reason in refused.items()]
            kept = [p for p in pieces if p.output.name in alone.keys() - refused.keys()]
            if len(kept) == len(pieces):
                break
            pieces, gangs = kept, []  # the others change which blocks of these are needed
        emitted = graph.emit(self._launches(gangs, reader)) if gangs else reader.without_gangs
        predicted = tuple((gang.region, gang.prediction) for gang in gangs)
        why = tuple(declined), verdicts.left, lacks, own_left
        return Rewriting(emitted, reader, predicted, *why)

    def _best(
        self,
        graph: Graph,
        reader: Reader,
        alone: Mapping[str, Region],
        present: Present,
        verdicts: Verdicts,
    ) -> list[Gang]:
        """Return the gangs of a graph, and add the reasons against others to ``verdicts``."""

        def skipped(names: list[str]) -> bool:
            return verdicts.leave(names, foregone(names, graph, self.facts, self.settings.when))

        regions = partition(graph, skipped) if self.settings.regions else alone.values()
        each = (self._gangs(region, reader, alone, present, verdicts) for region in regions)
        gangs = list(chain.from_iterable(each))
        if len(gangs) < 2:
            return gangs
        plan = partial(self.planned, reader=reader, present=present)
        return with_joined(gangs, graph.dependencies, plan)

    def _gangs(
        self,
        region: Region,
        reader: Reader,
        alone: Mapping[str, Region],
        present: Present,
        verdicts: Verdicts,
    ) -> Iterator[Gang]:
        """Yield the gang of a region, or those of parts that fit, or of its pieces that save more.

        Add the reasons against others to ``verdicts``. A region without pieces is left to Dask if
        its blocks lie right and are not joined: tasks do it better.
        """
        if not region.pieces:
            places = present.places(blocks_of(region))
            if verdicts.leave(region.nodes, self._objection(region, places)):
                return
        gang = self.planned(region, reader, present)
        if not (region.pieces or region.joins or gang.prediction.moved_bytes):
            verdicts.leave(region.nodes, NO_MEETING)
            return
        reason = gang.refusal(self.settings.when)
        if reason is None:
            yield gang
        elif not region.pieces:
            verdicts.leave(region.nodes, reason)
        elif len(region.members) == 1:
            verdicts.refuse(region.members[0].output.name, reason, gang.lack)
        else:
            apart = (alone[piece.output.name] for piece in region.pieces)
            parts = apart if gang.fits else (part for part in region.split() if part.pieces)
            own = Verdicts()
            split = [g for part in parts for g in self._gangs(part, reader, alone, present, own)]
            if not gang.beats(split):
                verdicts.add(own)
            yield from [gang] if gang.beats(split) else split

    def _objection(self, region: Region, places: Places) -> str | None:
        """Return why a region without collectives is not even planned, if there is a reason.

        Functions may be arguments of any task, so all are looked at.
        """
        if region.in_place and not _meets(region, places):
            return NO_MEETING
        calls = self.settings.when != "always" and any(work.once for work in region.works)
        return USERS if calls else None

    def _launches(self, gangs: Iterable[Gang], reader: Reader) -> Iterator[tuple[Region, Launch]]:
        """Yield regions and launches, with what they need beside programs that are predicted.

        These are the user's words, and Dask's tasks for blocks that are not as declared.
        """
        for region, launch in chain.from_iterable(gang.launches for gang in gangs):
            made = launch.names[len(launch.program.inputs) :]
            plain = None
            if self.settings.on_error != "raise":
                plain = reader.fallback(region, travels=not is_offloaded())
            operations = tuple(map(reader.operation, made))
            yield region, replace(launch, plain=plain, operations=operations)

    def planned(self, region: Region, reader: Reader, present: Present = NOTHING) -> Gang:
        """Return the gang of a region, or of its parts if it is one collective and does not fit.

        The prediction is for this cluster, with the cost in plain Dask.
        """

        def plan(some: Region) -> Gang:
            read = blocks_of(some)
            others = present.others(read)
            launch = self.launch(some, reader, self.room(others))
            places = present.places(read)
            prediction = predict(some, launch, self.facts, reader, places)
            return Gang(some, prediction, ((some, launch),), launch.program.room, others)

        whole, ranks = plan(region), self.facts.workers or self.settings.local_ranks
        return whole if whole.fits else in_parts(whole, ranks, plan)

    def totals(self, done: Rewriting[Any]) -> tuple[Plain, Plain]:
        """Predict a graph as it will run, and in plain Dask.

        The layers of the former are those outside of gangs. With gangs, both sum the predictions
        of these that have decided for them and those of the rest. Copies to GPUs count in both.
        Without a gang, kernels still do the work of several of Dask's layers.
        """
        workers = self.facts.workers or max(self.settings.local_ranks, self.facts.cores)
        regions = [region for region, _ in done.regions]
        made = set(chain.from_iterable(map(made_by, regions)))
        left = [piece for piece in done.reader.matches.pieces if piece.output.name not in made]
        predicted = partial(plain_graph, done.reader, left, regions, self.facts, workers=workers)
        ours, plain = predicted(kernels=True), predicted(kernels=False)
        for _, each in done.regions:
            ours = ours.plus(each.tasks, each.seconds)
            plain = plain.plus(each.dask_tasks, each.dask_seconds + each.host_seconds)
        return ours, plain

    @property
    def transport(self) -> Transport:
        """The transport of blocks between ranks."""
        return self.facts.transport if self.settings.comm == "auto" else self.settings.comm

    def room(self, others: float) -> float | None:
        """Return the bytes of a device for a gang beside other results; ``None`` for no limit."""
        return room_of(self.most, others)

    def launch(self, region: Region, reader: Reader, room: float | None = None) -> Launch:
        """Return the program of a region that may use ``room`` bytes of a device, and its names."""
        inputs = {node.name: value_of(node, blocks) for node, blocks in region.inputs}
        numbers = {name: number for number, name in enumerate(inputs)}
        nodes: list[Node] = []
        known: dict[Any, Any] = {}  # equal parts of nodes are one object, which is pickled once
        for member in region.members:
            for name, node in _nodes(member, numbers):
                numbers[name] = len(numbers)
                parts = {"value": node.value, "needs": node.needs}
                nodes.append(replace(node, **{k: known.setdefault(x, x) for k, x in parts.items()}))
        program = Program(
            (*inputs.values(),),
            (*nodes,),
            tuple((numbers[name], blocks) for name, blocks in region.wanted),
            self.facts.machine,
            self.transport,
            limits_of(self.facts, self.settings),
            self.settings.local_ranks,
            room,
            Blockworks(reader.recipes(region.works, numbers)),
        )
        return Launch(program, (*numbers,), region.titles)


def _may_meet(reader: Reader, facts: ClusterFacts) -> bool:
    """Whether blocks of a graph may have to meet.

    Blocks with the same index may be on different workers, unless they depend on one array.
    """
    sources = sum(not read for read in reader.dependencies.values())
    if sources > 1 and facts.workers > 1:
        return True
    return not all(
        reader.is_map(name)
        for name, read in reader.dependencies.items()
        if read and reader.array(name) is not None
    )


def _alone(graph: Graph) -> dict[str, Region]:
    """Return the regions of single pieces and their used blocks, by the names of their results."""
    keys, names = by_name(graph.keys), graph.dependencies
    return {name: region_of([name], graph, keys) for name in names if graph.piece(name)}


def hindrance_of(region: Region, facts: ClusterFacts) -> str | None:
    """Return why the piece of a region cannot run in a gang, at any cost."""
    (piece,) = region.pieces
    wanted = dict(region.wanted).get(piece.output.name, ())
    on_device = facts.device == "cuda"
    on_host = facts.workers > 0 and not on_device
    if on_host and any(node.container == CUPY for node in piece.inputs):
        return "blocks are CuPy arrays and the workers compute on the CPU"
    if on_device and piece.only_moves and piece.inputs[0].container == NUMPY:
        return "blocks are on the host and no computation follows"
    is_waste = len(wanted) < (1 - MOST_WASTE) * len(piece.computed)
    return "most of the blocks that it makes are not wanted" if is_waste else None


def foregone(names: Sequence[str], graph: Graph, facts: ClusterFacts, when: str) -> str | None:
    """Return why no gang would compute connected layers of Dask's, if no estimate is needed.

    Gangs of CPUs transfer NumPy blocks and gangs of GPUs CuPy blocks. Annotated layers stay with
    Dask: users ask for workers, resources or retries of single tasks.
    """
    other = NUMPY if facts.device == "cuda" else CUPY
    if graph.annotations(names[0]):
        return "its layers are annotated"
    if facts.workers and any(graph.container(name) == other for name in names):
        return f"blocks are not those of a gang on {facts.device}"
    if when == "always":
        return None
    maps = all(map(graph.is_map, names))
    if not facts.workers:
        return NO_MEETING if maps else ONE_PROCESS
    return USERS if not maps and any(map(graph.calls_users, names)) else None


def _meets(region: Region, places: Places) -> bool:
    """Whether blocks with the same index are known to be on several workers."""
    counts: dict[Any, int] = {}
    return any(
        counts.setdefault(index, places[key]) != places[key]
        for node, blocks in region.inputs
        for index in blocks
        if (key := (node.name, *index)) in places
    )


def _nodes(member: Member, numbers: Mapping[str, int]) -> Iterator[tuple[str, Node]]:
    """Yield the nodes for a piece or a layer of Dask's, each with the name of its value."""
    if not isinstance(member, Blockwork):
        value = value_of(member.output, member.computed)
        reads = tuple(numbers[node.name] for node in member.inputs)
        yield member.output.name, Node(member.operation, reads, value, member.task)
        return
    for work in member.steps:
        known = (*work.inputs, *(step.output for step in work.before))
        read = {name for blocks in work.needs.values() for name, _ in blocks}
        names = [node.name for node in known if node.name in read]
        at = {name: place for place, name in enumerate(names)}
        needs = tuple(
            tuple((at[name], need) for name, need in blocks) for blocks in work.needs.values()
        )
        value, reads = value_of(work.output, work.computed), tuple(map(numbers.__getitem__, names))
        flags = {"once": work.once, "merges": work.merges}
        yield work.output.name, Node(None, reads, value, needs=needs, **flags)
