"""Predict the seconds of plain Dask for any graph of arrays.

Layers run one after another. The scheduler handles each task, the busiest worker sets the time
of transfers and of work, and each layer that depends on another adds a round trip.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dask_dgpu.environment.facts import ClusterFacts
from graph_opt.dask_graph.blockwork import in_levels
from graph_opt.dask_graph.internals import Alias, DataNode, GraphNode
from graph_opt.dask_graph.layers import PieceLayer
from graph_opt.dask_graph.members import fuse
from graph_opt.dask_graph.parse import ArrayGraph, cull, depth_first
from graph_opt.dask_graph.work import array, block_nbytes, task_seconds
from graph_opt.model.cost import Machine
from graph_opt.model.layout import ArrayNode
from graph_opt.model.piece import Blockwork, Piece, Region
from graph_opt.passes import insert

Key = Any
Places = Mapping[Key, int]
"""The numbers of the workers with blocks that are known to exist."""


class Plain(NamedTuple):
    """The number of Dask's tasks, and their seconds."""

    tasks: int
    seconds: float


@dataclass(frozen=True)
class Stage:
    """A layer after Dask's fusion, or a piece.

    ``read`` are the blocks that it reads, and ``needs`` those that each task reads. ``seconds``
    are the work of one task, and ``aliases`` the tasks that only rename a block.
    """

    name: str
    read: AbstractSet[Key]
    needs: Mapping[Key, Collection[Key]]
    seconds: float = 0.0
    piece: Piece | None = None
    aliases: AbstractSet[Key] = frozenset()

    @property
    def layers(self) -> set[str]:
        """The names of the layers that it reads."""
        return set(map(_name, self.read))

    @property
    def made(self) -> set[Key]:
        """The blocks that it computes, without aliases."""
        if self.piece is not None:
            return {(self.name, *index) for index in self.piece.computed}
        return self.needs.keys() - self.aliases

    @property
    def is_data(self) -> bool:
        """Whether it has blocks in place of tasks."""
        return self.piece is None and not self.needs

    def heads(self, readers: Mapping[Key, int], made: AbstractSet[Key]) -> int:
        """Return the number of tasks that Dask does not fuse with the task before them.

        ``readers`` are the numbers of readers of the blocks ``made``. Dask removes aliases.
        """
        return sum(
            not _follows(needs, readers, made)
            for key, needs in self.needs.items()
            if key not in self.aliases
        )


def _follows(needs: Collection[Key], readers: Mapping[Key, int], made: AbstractSet[Key]) -> bool:
    """Whether a task reads one block that another task makes for it alone."""
    return len(needs) == 1 and all(each in made and readers[each] == 1 for each in needs)


@dataclass
class Workers:
    """The places of blocks. A task runs on the worker with most of the bytes that it reads.

    Tasks that read nothing, and blocks that exist, are spread evenly in their order.
    """

    arrays: ArrayGraph
    count: int
    places: dict[Key, int] = field(default_factory=dict)
    copies: set[tuple[Key, int]] = field(default_factory=set)
    sizes: dict[str, float] = field(default_factory=dict)
    started: int = 0

    def run(self, stage: Stage) -> tuple[float, int]:
        """Place all tasks; return the bytes that the busiest worker receives, and its tasks."""
        moved: defaultdict[int, float] = defaultdict(float)
        tasks: Counter[int] = Counter()
        for at, (key, needs) in enumerate(stage.needs.items()):
            held: defaultdict[int, float] = defaultdict(float)
            sizes = {each: self.nbytes(each) for each in needs}
            for each, nbytes in sizes.items():
                held[self.place(each)] += nbytes
            worker = max(held, key=lambda w: (held[w], -tasks[w]), default=None)
            if worker is None:
                worker = (self.started + at * self.count // len(stage.needs)) % self.count
            self.places[key] = worker
            tasks[worker] += 1
            for each, nbytes in sizes.items():
                if self.place(each) != worker and (each, worker) not in self.copies:
                    self.copies.add((each, worker))
                    moved[worker] += nbytes
        self.started += 0 if stage.read else len(stage.needs)
        return max(moved.values(), default=0.0), max(tasks.values(), default=0)

    def place(self, key: Key) -> int:
        """Return the worker with a block."""
        if key not in self.places:
            node, index, at = self.node(key), _index(key), 0
            if node is not None and len(index) == node.ndim:
                for block, blocks in zip(index, node.grid, strict=True):
                    at = at * blocks + block
                at = at * self.count // max(1, node.blocks)
            self.places[key] = at
        return self.places[key]

    def nbytes(self, key: Key) -> float:
        """Return the bytes of a block, on average, 0 if unknown."""
        name = _name(key)
        if name not in self.sizes:
            self.sizes[name] = block_nbytes(self.node(key))
        return self.sizes[name]

    def node(self, key: Key) -> ArrayNode | None:
        """Return the array of a block."""
        return array(self.arrays, _name(key))


def _name(key: Key) -> str:
    return str(key[0] if isinstance(key, tuple) else key)


def _index(key: Key) -> tuple[int, ...]:
    """Return the index of a block, nothing for other keys."""
    index = key[1:] if isinstance(key, tuple) else ()
    return index if all(isinstance(each, int) for each in index) else ()


def plain_graph(
    graph: HighLevelGraph,
    arrays: ArrayGraph,
    pieces: Iterable[Piece],
    wanted: Collection[Key],
    workers: int,
    facts: ClusterFacts,
    places: Places = MappingProxyType({}),
) -> Plain:
    """Predict plain Dask's time for the blocks ``wanted`` of a graph with these pieces.

    Blocks that exist are at their known ``places``.
    """
    culled = cull(fuse(insert(graph, pieces), (), wanted), wanted)
    layers, stages = culled.graph.layers, []
    for name in depth_first(culled.graph.dependencies):
        layer, needs = layers[name], culled.needs[name]
        if isinstance(layer, PieceLayer):
            stages.append(Stage(name, culled.reads[name], {}, piece=layer.piece))
        else:
            work = task_seconds(arrays, name, layers.keys(), facts.machine)
            made = {key: each for key, each in needs.items() if not _is_data(layer, key)}
            aliases = {key for key in made if _is_alias(layer, key)}
            stages += _in_levels(
                Stage(name, culled.reads[name], made, work, aliases=aliases), arrays
            )
    tasks, seconds = _seconds(stages, arrays, set(wanted), workers, facts, places)
    ends = 2 * facts.machine.round_trip_seconds if facts.workers else 0.0  # submit and report
    return Plain(tasks, seconds + ends)


def plain_region(
    region: Region, arrays: ArrayGraph, workers: int, facts: ClusterFacts, places: Places
) -> Plain:
    """Predict plain Dask's time for a region; its inputs exist, some at known places."""
    works = [step for work in region.blockworks for step in work.plain or work.steps]
    seconds_of = block_seconds(region, works, arrays, facts.machine)
    stages = []
    for member in region.members:
        if isinstance(member, Piece):
            reads = {(name, *index) for name, index in member.reads()}
            stages.append(Stage(member.output.name, reads, {}, piece=member))
            continue
        for work in member.plain or member.steps:
            name = work.output.name
            needs = {
                (name, *index): [(other, *block) for other, block in blocks]
                for index, blocks in work.needs.items()
            }
            read = set(chain.from_iterable(needs.values()))
            stages.append(Stage(name, read, needs, seconds_of[name]))
    wanted = {(name, *index) for name, blocks in region.wanted for index in blocks}
    sizes = {work.output.name: block_nbytes(work.output) for work in works}
    return _seconds(stages, arrays, wanted, workers, facts, places, sizes)


def block_seconds(
    region: Region, works: Iterable[Blockwork], arrays: ArrayGraph, machine: Machine
) -> dict[str, float]:
    """Predict the work of a block, on average, in each of these steps of a region."""
    given = {node.name for node, _ in region.inputs} | region.nodes.keys()
    found = {}
    for work in works:
        name = work.output.name
        if work.works:
            found[name] = sum(each.seconds(machine) for each in work.works) / len(work.works)
        else:
            found[name] = task_seconds(arrays, name, given, machine)
    return found


def rest_of(graph: HighLevelGraph, regions: Iterable[Region]) -> HighLevelGraph:
    """Return the graph with data in place of the blocks that gangs compute."""
    layers: dict[str, Layer] = dict(graph.layers)
    dependencies = {name: set(needed) for name, needed in graph.dependencies.items()}
    for region in regions:
        for name, blocks in region.wanted:
            keys = [(name, *index) for index in blocks]
            layers[name] = MaterializedLayer({key: DataNode(key, None) for key in keys})
            dependencies[name] = set()
    return HighLevelGraph(layers, dependencies)


def _in_levels(stage: Stage, arrays: ArrayGraph) -> list[Stage]:
    """Return a layer whose tasks depend on each other as one stage after the other."""
    node = arrays.node(stage.name)
    levels = [] if node is None else in_levels(stage.needs, node)
    inner = set(chain.from_iterable(levels))
    levels.append([key for key in stage.needs if key not in inner])
    parts = []
    for keys in levels:
        needs = {key: stage.needs[key] for key in keys}
        read = set(chain.from_iterable(needs.values()))
        parts.append(replace(stage, read=read, needs=needs, aliases=stage.aliases & needs.keys()))
    return parts


def _is_data(layer: Layer, key: Key) -> bool:
    """Whether a layer has a block, or the future of one, in place of a task."""
    if not isinstance(layer, MaterializedLayer):
        return False
    task = layer[key]
    return isinstance(task, DataNode) or not isinstance(task, GraphNode | tuple | list)


def _is_alias(layer: Layer, key: Key) -> bool:
    """Whether a task only renames a block; in the old form it is the other key itself."""
    if not isinstance(layer, MaterializedLayer):
        return False
    task = layer[key]
    return isinstance(task, Alias) or (isinstance(task, tuple) and not callable(task[0]))


def _seconds(
    stages: Iterable[Stage],
    arrays: ArrayGraph,
    wanted: AbstractSet[Key],
    workers: int,
    facts: ClusterFacts,
    known: Places = MappingProxyType({}),
    sizes: Mapping[str, float] = MappingProxyType({}),
) -> Plain:
    there = {key: at for key, at in known.items() if at < workers}
    machine, places = facts.machine, Workers(arrays, workers, there, sizes={**sizes})
    stages = [stage for stage in stages if not stage.is_data]
    needs = chain.from_iterable(stage.needs.values() for stage in stages)
    readers = Counter(chain.from_iterable(needs))
    readers.update(chain.from_iterable(stage.read for stage in stages if stage.piece is not None))
    made: set[Key] = set()
    for stage in stages:
        made |= stage.made - wanted
        made |= {key for key in stage.aliases if _follows(stage.needs[key], readers, made)}
    levels: dict[str, int] = {}
    tasks, seconds = 0, 0.0
    for stage in stages:
        heads = stage.heads(readers, made)
        waits = heads > 0 or stage.piece is not None
        below = (levels[name] for name in stage.layers if name in levels)
        level = max((level + waits for level in below), default=0)
        levels.update(dict.fromkeys({stage.name, *map(_name, stage.needs)}, level))
        if stage.piece is not None:
            heads, work = stage.piece.dask_cost(workers, machine)
            seconds += work
        else:
            moved, busiest = places.run(stage)
            seconds += moved / machine.dask_rate + busiest * stage.seconds
            seconds += heads * machine.task_seconds
        tasks += heads
    if facts.workers:
        seconds += max(levels.values(), default=0) * machine.round_trip_seconds
    return Plain(tasks, seconds)
