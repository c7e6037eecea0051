"""The optimizer that Dask calls on every array graph: it inserts gangs that are quicker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import dask.array.optimization
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.environment.facts import ClusterFacts, limits_of, usable
from dask_dgpu.environment.settings import Settings
from dask_dgpu.kernels.scan import FUNCTIONS as SCANS
from dask_dgpu.operations.operation import Node, value_of
from dask_dgpu.planner.fallbacks import arrays_of, log_verdicts, logger, report, report_elsewhere
from dask_dgpu.planner.gangs import in_parts, with_joined
from dask_dgpu.planner.predict import (
    LEAST_GAIN,
    NO_MEETING,
    ONE_PROCESS,
    SLOWER,
    USERS,
    Gang,
    Lack,
    Places,
    Plain,
    Prediction,
    begins_at_once,
    blocks_of,
    plain_graph,
    plain_region,
    predict,
    rest_of,
)
from dask_dgpu.planner.present import (
    NOTHING,
    Figures,
    Present,
    figures_of,
    is_offloaded,
    left_of,
    other_scheduler,
    plugin_on,
    present_on,
)
from dask_dgpu.planner.structures import optimized
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.fused import Fused
from dask_dgpu.runtime.program import Blockworks, Launch, Program
from graph_opt.dask_graph.blockwork import LayerReader
from graph_opt.dask_graph.emit import TaskFunctions, embedded, emit, finish, guarded
from graph_opt.dask_graph.fusing import combine, with_functions
from graph_opt.dask_graph.layers import PieceLayer, check, in_passes, insert
from graph_opt.dask_graph.members import calls_others, container_of, fuse, is_map, members
from graph_opt.dask_graph.parse import ArrayGraph, Culled, cull, parse
from graph_opt.dask_graph.plain import Plain as PlainTasks
from graph_opt.dask_graph.products import with_plain
from graph_opt.dask_graph.recipes import recipe_of
from graph_opt.dask_graph.rules import find
from graph_opt.dask_graph.sent import SentGraph
from graph_opt.model.cost import Machine, gang_seconds
from graph_opt.model.layout import CUPY, NUMPY, Declined
from graph_opt.model.piece import Blockwork, Member, Piece, Region
from graph_opt.passes import partition
from graph_opt.pieces.matmul import ProductPiece

if TYPE_CHECKING:
    from distributed import Client

FUNCTIONS = TaskFunctions(tasks.stage, tasks.gang, tasks.out)


MOST_WASTE = 0.5
"""Leave a piece to Dask if more than this fraction of its computed blocks is unused."""


@dataclass(frozen=True)
class Rewriting:
    """A graph with gangs, and the decisions behind it.

    ``source`` is the graph that was read, ``arrays`` its layers, and ``found`` the pieces in them.
    ``declined`` are pieces, and ``left`` are further layers, with the reasons why no gang computes
    them. ``lacks`` has the pieces that do not fit, by name. With ``own_left`` all of Dask's own
    layers are left to it, because the graph runs in one process.
    """

    graph: HighLevelGraph
    source: HighLevelGraph
    arrays: ArrayGraph
    found: tuple[Piece, ...]
    regions: tuple[tuple[Region, Prediction], ...]
    declined: tuple[Declined, ...]
    left: Mapping[str, str]
    lacks: Mapping[str, Lack] = field(default_factory=dict)
    own_left: bool = False

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


def _may_meet(arrays: ArrayGraph, facts: ClusterFacts) -> bool:
    """Whether blocks of a graph may have to meet.

    Blocks with the same index may be on different workers, unless they depend on one array.
    """
    sources = sum(not read for read in arrays.dependencies.values())
    if sources > 1 and facts.workers > 1:
        return True
    return not all(
        is_map(layer)
        for name, layer in arrays.layers.items()
        if arrays.dependencies[name] and arrays.node(name) is not None
    )


@dataclass(frozen=True)
class GraphOptimizer:
    """The ``array_optimize`` callable.

    Dask calls it in the scheduler's process, without the client's configuration, or in the
    client's process for other schedulers. So it is frozen, picklable and self-contained.
    """

    settings: Settings
    facts: ClusterFacts
    most: float | None = field(init=False)  # bytes of a device that may be used

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", usable(self.facts, self.settings))

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        """Optimize a graph; after an error, leave it to Dask and report the error."""
        graph = dsk
        try:
            if not isinstance(graph, HighLevelGraph):
                graph = HighLevelGraph.from_collections(str(id(dsk)), dsk, dependencies=())
            wanted = _flat(keys)
            if (other := other_scheduler(self.facts.scheduler)) is not None:
                report_elsewhere(other, self.facts.scheduler, arrays_of(graph, wanted))
                return dask.array.optimization.optimize(graph, keys, **kwargs)
            present, here = present_on(self.facts.scheduler), plugin_on(self.facts.scheduler)
            if here is not None and is_offloaded():
                here.new_arrays.expect(wanted)
                if isinstance(graph, SentGraph):
                    return optimized(self, graph, wanted, present, here.structures)
            return self.calibrated().optimize(graph, keys, present, **kwargs)
        except Exception as error:
            if self.settings.on_error == "raise":
                raise
            report(error, arrays_of(graph, _flat(keys)), self.facts.scheduler)
            return dask.array.optimization.optimize(graph, keys, **kwargs)

    def optimize(self, graph: HighLevelGraph, keys: Any, present: Present, **kwargs: Any) -> Any:
        """Insert gangs into a graph, then let Dask optimize it; return its tasks or layers."""
        rewriting = self.rewrite(guarded(graph), keys, present)
        if logger.isEnabledFor(logging.INFO):
            log_verdicts(rewriting, arrays_of(graph, _flat(keys)))
        found = dask.array.optimization.optimize(rewriting.graph, keys, **kwargs)
        if not rewriting.regions or isinstance(found, HighLevelGraph):  # fusion is off
            return found
        wanted = _flat(keys)
        if present is not NOTHING:
            found = embedded(found, wanted, present.places)
        return finish(found, wanted, rewriting.graph)

    def calibrated(self, client: Client | None = None) -> GraphOptimizer:
        """Return the optimizer with the rates that the scheduler, here or a client's, measured."""
        return self.with_figures(figures_of(self.facts, client))

    def with_figures(self, figures: Figures) -> GraphOptimizer:
        """Return the optimizer for a cluster with these measured rates."""
        return replace(self, facts=replace(self.facts, figures=figures)) if figures else self

    def pieces(self, graph: HighLevelGraph, keys: Any) -> tuple[Piece, ...]:
        """Return the collectives that gangs would run; none after an error."""
        try:
            return self.rewrite(graph, keys).pieces
        except Exception:
            if self.settings.on_error == "raise":
                raise
            return ()

    def rewrite(self, graph: HighLevelGraph, keys: Any, present: Present = NOTHING) -> Rewriting:
        """Insert gangs into a graph, where rules match and the cost model agrees.

        ``present`` are the results on workers, and the memory that a gang cannot use.
        """
        wanted, source = _flat(keys), graph
        kernels = self.settings.fuse
        graph = with_functions(graph, SCANS) if kernels else graph  # CuPy computes these slowly
        arrays = parse(graph, wanted, kernels)
        matches = find(arrays)
        pieces, declined = list(matches.pieces), list(matches.declined)
        verdicts, lacks, slower = Verdicts(), dict[str, Lack](), set[str]()
        own_left = not self.facts.workers and self.settings.when != "always"
        own = self.settings.regions and not own_left and _may_meet(arrays, self.facts)
        while pieces or own:
            culled, local = self._culled(graph, arrays, pieces, wanted, slower)
            put = [each for each in culled.graph.layers.values() if isinstance(each, PieceLayer)]
            layers = {each.piece.output.name: each for each in put}
            reasons = {name: hindrance_of(layer, self.facts) for name, layer in layers.items()}
            refused = {name: reason for name, reason in reasons.items() if reason}
            gangs, verdicts = list[Gang](), Verdicts(refused)
            if not refused:
                found = [_alone(layer) for layer in layers.values()]
                if self.settings.regions:
                    skips = partial(self._skips, verdicts, culled, arrays)
                    found = partition(LayerReader(culled, arrays), local, wanted, skips)
                for region in found:
                    gangs += self._gangs(region, arrays, layers, present, verdicts)
                costly = verdicts.refused.keys() - verdicts.lacks.keys()
                slower.update(*(p.layers for p in pieces if p.output.name in costly))
                if len(gangs) > 1:
                    plan = partial(self.planned, arrays=arrays, present=present)
                    gangs = with_joined(gangs, culled.graph.dependencies, plan)
            if verdicts.lacks and (smaller := in_passes(source, verdicts.lacks)):
                rewriting = self.rewrite(smaller, keys, present)
                passes = verdicts.lacks.keys() | (smaller.layers.keys() - source.layers.keys())
                if any(piece.output.name in passes for piece in rewriting.pieces):
                    return rewriting
                tried = rewriting.lacks
                verdicts.tried_in_passes(tried[name] for name in passes & tried.keys())
            lacks |= verdicts.lacks
            declined += [Declined(name, reason) for name, reason in refused.items()]
            kept = [p for p in pieces if p.output.name in layers.keys() - refused.keys()]
            if len(kept) == len(pieces) and not gangs:
                break
            if len(kept) == len(pieces):
                launches = chain.from_iterable(gang.launches for gang in gangs)
                whole = [(part, self._with_plain(graph, part, each)) for part, each in launches]
                emitted = emit(culled.graph, whole, FUNCTIONS)
                predicted = tuple((gang.region, gang.prediction) for gang in gangs)
                decided = matches.pieces, predicted, tuple(declined), verdicts.left, lacks, own_left
                return Rewriting(emitted, source, arrays, *decided)
            pieces = kept  # the others change which blocks of these are needed
        graph = combine(graph, arrays, (), wanted, Fused)
        decided = matches.pieces, (), tuple(declined), verdicts.left, lacks, own_left
        return Rewriting(graph, source, arrays, *decided)

    def _culled(
        self,
        graph: HighLevelGraph,
        arrays: ArrayGraph,
        pieces: list[Piece],
        wanted: set[Any],
        slower: set[str],
    ) -> tuple[Culled, set[str]]:
        """Replace layers by pieces, fuse Dask's work between them, and drop unused blocks.

        Also return the names of Dask's layers that can run in a gang. Those of pieces that are
        ``slower`` in one cannot: a gang for a part of such a piece would be slower too.
        """
        replaced = check(insert(graph, pieces))
        local = members(arrays, replaced) - slower if self.settings.regions else set()
        replaced = combine(replaced, arrays, local, wanted, Fused)
        return cull(fuse(replaced, local, wanted), wanted), local

    def _gangs(
        self,
        region: Region,
        arrays: ArrayGraph,
        layers: Mapping[str, PieceLayer],
        present: Present,
        verdicts: Verdicts,
    ) -> Iterator[Gang]:
        """Yield the gang of a region, or those of parts that fit, or of its pieces that save more.

        Add the reasons against others to ``verdicts``. A region without pieces is left to Dask if
        its blocks lie right and are not joined: tasks do it better.
        """
        places = present.places(blocks_of(region))
        if not region.pieces and (reason := self._objection(region, arrays, places)) is not None:
            verdicts.left.update(dict.fromkeys(region.nodes, reason))
            return
        gang = self.planned(region, arrays, present)
        if not (region.pieces or region.joins or gang.prediction.moved_bytes):
            verdicts.left.update(dict.fromkeys(region.nodes, NO_MEETING))
            return
        reason = gang.refusal(self.settings.when)
        if reason is None:
            yield gang
        elif not region.pieces:
            verdicts.left.update(dict.fromkeys(region.nodes, reason))
        elif len(region.members) == 1:
            verdicts.refuse(region.members[0].output.name, reason, gang.lack)
        else:
            apart = (_alone(layers[piece.output.name]) for piece in region.pieces)
            parts = apart if gang.fits else (part for part in region.split() if part.pieces)
            own = Verdicts()
            split = [g for part in parts for g in self._gangs(part, arrays, layers, present, own)]
            if not gang.beats(split):
                verdicts.add(own)
            yield from [gang] if gang.beats(split) else split

    def _skips(
        self, verdicts: Verdicts, culled: Culled, arrays: ArrayGraph, names: list[str]
    ) -> bool:
        """Whether connected layers are left to Dask without an estimate; add the reason if so."""
        reason = foregone(names, culled, arrays, self.facts, self.settings.when)
        if reason is not None:
            verdicts.left.update(dict.fromkeys(names, reason))
        return reason is not None

    def _objection(self, region: Region, arrays: ArrayGraph, places: Places) -> str | None:
        """Return why a region without collectives is not even planned, if there is a reason.

        Functions may be arguments of any task, so all are looked at.
        """
        if region.in_place and not _meets(region, places):
            return NO_MEETING
        if self.settings.when == "always":
            return None
        if any(work.once for work in region.works):
            return USERS
        facts, at_once = self.facts, begins_at_once(region, places)
        plain = plain_region(region, arrays, max(facts.workers, facts.cores), facts, places)
        gang = gang_seconds(facts.machine, region.tasks, region.steps, at_once=at_once)
        return None if gang < LEAST_GAIN * plain.seconds else SLOWER

    def _with_plain(self, graph: HighLevelGraph, region: Region, launch: Launch) -> Launch:
        """Return the launch, with Dask's tasks for blocks that differ from their declaration."""
        if self.settings.on_error == "raise":
            return launch
        piece = region.members[0]
        if region.term_of is not None and isinstance(piece, ProductPiece):
            graph = with_plain(graph, piece)
        return replace(launch, plain=PlainTasks.of(graph, region, travels=not is_offloaded()))

    def planned(self, region: Region, arrays: ArrayGraph, present: Present = NOTHING) -> Gang:
        """Return the gang of a region, or of its parts if it is one collective and does not fit.

        The prediction is for this cluster, with the cost in plain Dask.
        """

        def plan(some: Region) -> Gang:
            read = blocks_of(some)
            others = present.others(read)
            launch = self.launch(some, self.room(others))
            places = present.places(read)
            prediction = predict(some, launch, self.facts, arrays, places)
            return Gang(some, prediction, ((some, launch),), launch.program.room, others)

        whole, ranks = plan(region), self.facts.workers or self.settings.local_ranks
        return whole if whole.fits else in_parts(whole, ranks, plan)

    def totals(self, keys: Any, done: Rewriting) -> tuple[Plain, Plain]:
        """Predict a graph as it will run, and in plain Dask.

        The layers of the former are those outside of gangs. With gangs, both sum the predictions
        of these that have decided for them and those of the rest. Copies to GPUs count in both.
        Without a gang, kernels still do the work of several of Dask's layers.
        """
        workers = self.facts.workers or max(self.settings.local_ranks, self.facts.cores)
        regions = [region for region, _ in done.regions]
        made = set(chain.from_iterable(map(made_by, regions)))
        left = [piece for piece in done.found if piece.output.name not in made]
        wanted = _flat(keys).union(*map(blocks_of, regions))
        source = done.source if done.found or regions else done.graph
        ours = plain_graph(rest_of(source, regions), done.arrays, left, wanted, workers, self.facts)
        unfused = replace(done.arrays, fused=False)
        plain = plain_graph(
            rest_of(done.source, regions), unfused, left, wanted, workers, self.facts
        )
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
        return None if self.most is None else left_of(self.most, others)

    def launch(self, region: Region, room: float | None = None) -> Launch:
        """Return the program of a region that may use ``room`` bytes of a device."""
        return _lowered(
            region,
            self.facts.machine,
            transport=self.transport,
            limits=limits_of(self.facts, self.settings),
            local_ranks=self.settings.local_ranks,
            room=room,
        )


def _flat(keys: Any) -> set[Any]:
    return set(flatten(keys if isinstance(keys, list) else [keys]))


def _alone(layer: PieceLayer) -> Region:
    """Return the region of one piece and its used blocks."""
    wanted = ((layer.piece.output.name, tuple(sorted(layer.wanted))),)
    return Region((layer.piece,), wanted, layer.annotations)


def hindrance_of(layer: PieceLayer, facts: ClusterFacts) -> str | None:
    """Return why a piece cannot run in a gang, at any cost."""
    piece = layer.piece
    on_device = facts.device == "cuda"
    on_host = facts.workers > 0 and not on_device
    if on_host and any(node.container == CUPY for node in piece.inputs):
        return "blocks are CuPy arrays and the workers compute on the CPU"
    if on_device and piece.only_moves and piece.inputs[0].container == NUMPY:
        return "blocks are on the host and no computation follows"
    return "most of the blocks that it makes are not wanted" if layer.waste > MOST_WASTE else None


def foregone(
    names: Sequence[str], culled: Culled, arrays: ArrayGraph, facts: ClusterFacts, when: str
) -> str | None:
    """Return why no gang would compute connected layers of Dask's, if no estimate is needed.

    Gangs of CPUs transfer NumPy blocks and gangs of GPUs CuPy blocks. Annotated layers stay with
    Dask: users ask for workers, resources or retries of single tasks.
    """
    layers = [culled.graph.layers[name] for name in names]
    maps = all(map(is_map, layers))
    other = NUMPY if facts.device == "cuda" else CUPY
    if layers[0].annotations:
        return "its layers are annotated"
    if facts.workers and any(container_of(arrays, name) == other for name in names):
        return f"blocks are not those of a gang on {facts.device}"
    if when == "always":
        return None
    if not facts.workers:
        return NO_MEETING if maps else ONE_PROCESS
    called = (layer for layer in layers if isinstance(layer, Blockwise))
    return USERS if not maps and any(map(calls_others, called)) else None


def _meets(region: Region, places: Places) -> bool:
    """Whether blocks with the same index are known to be on several workers."""
    found: dict[Any, int] = {}
    return any(
        found.setdefault(index, places[key]) != places[key]
        for node, blocks in region.inputs
        for index in blocks
        if (key := (node.name, *index)) in places
    )


def _lowered(region: Region, machine: Machine, **facts: Any) -> Launch:
    """Return the program of a region, with other ``facts`` of it, and the names of its values."""
    inputs = {node.name: value_of(node, blocks) for node, blocks in region.inputs}
    numbers = {name: number for number, name in enumerate(inputs)}
    nodes: list[Node] = []
    known: dict[Any, Any] = {}  # equal parts of nodes are one object, which is pickled once
    for member in region.members:
        for name, node in _nodes(member, numbers):
            numbers[name] = len(numbers)
            parts = {"value": node.value, "needs": node.needs}
            nodes.append(replace(node, **{k: known.setdefault(x, x) for k, x in parts.items()}))
    block_facts: dict[str, Any] = {}
    recipes = {
        numbers[work.output.name]: recipe_of(
            work.output.name, work.layer, work.computed, numbers, block_facts
        )
        for work in region.works
    }
    outputs = tuple((numbers[name], blocks) for name, blocks in region.wanted)
    program = Program(
        (*inputs.values(),), (*nodes,), outputs, machine, blockworks=Blockworks(recipes), **facts
    )
    return Launch(program, (*numbers,), region.titles)


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
        yield work.output.name, Node(None, reads, value, needs=needs, once=work.once)
