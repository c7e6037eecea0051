"""Predict the seconds of plain Dask for any graph of arrays.

Layers run one after another. The scheduler handles each task, the busiest worker sets the time
of transfers and of work, and each layer that depends on another adds a round trip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.planner.stages import Places, Stage, Workers, follows
from graph_opt.dask_graph.blockwork import in_levels
from graph_opt.dask_graph.internals import Alias, DataNode, GraphNode
from graph_opt.dask_graph.layers import PieceLayer, name_of
from graph_opt.dask_graph.members import fuse
from graph_opt.dask_graph.parse import ArrayGraph, cull, depth_first
from graph_opt.dask_graph.temporaries import Beside, memory_beside
from graph_opt.dask_graph.work import block_nbytes, task_seconds
from graph_opt.model.blockwork import Blockwork
from graph_opt.model.cost import Machine
from graph_opt.model.piece import Piece, Region
from graph_opt.passes import insert

Key = Any


class LayerCost(NamedTuple):
    """The tasks of a layer, their seconds, and the bytes that the busiest worker receives."""

    tasks: int
    seconds: float
    moved_bytes: int

    def plus(self, other: LayerCost) -> LayerCost:
        """Return the sum."""
        return LayerCost(
            self.tasks + other.tasks,
            self.seconds + other.seconds,
            self.moved_bytes + other.moved_bytes,
        )


class Plain(NamedTuple):
    """The number of Dask's tasks, their seconds, and the cost of each layer after Dask's fusion."""

    tasks: int
    seconds: float
    layers: Mapping[str, LayerCost] = MappingProxyType({})

    def plus(self, tasks: int, seconds: float) -> Plain:
        """Return the cost with further tasks and seconds, of the same layers."""
        return self._replace(tasks=self.tasks + tasks, seconds=self.seconds + seconds)


def plain_graph(
    graph: HighLevelGraph,
    arrays: ArrayGraph,
    pieces: Iterable[Piece],
    wanted: Collection[Key],
    workers: int,
    facts: ClusterFacts,
) -> Plain:
    """Predict plain Dask's time for the blocks ``wanted`` of a graph with these pieces."""
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
    found = _seconds(stages, arrays, set(wanted), workers, facts)
    ends = 2 * facts.machine.round_trip_seconds  # submit and report
    return found._replace(seconds=found.seconds + ends)


def plain_region(
    region: Region,
    arrays: ArrayGraph,
    workers: int,
    facts: ClusterFacts,
    places: Places,
    known: Mapping[str, float] = MappingProxyType({}),
) -> Plain:
    """Predict plain Dask's time for a region; its inputs exist, some at known places.

    ``known`` are the seconds of a block of each of its steps, if they have been predicted.
    """
    works = [step for work in region.blockworks for step in work.plain or work.steps]
    own = [step for work in region.blockworks for step in work.plain] if known else works
    seconds_of = {**known, **block_seconds(region, own, arrays, facts.machine)}
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


def block_memory(
    region: Region, works: Iterable[Blockwork], arrays: ArrayGraph
) -> dict[str, Beside]:
    """Predict what tasks need beside operands and results in each step of a region."""
    given = {node.name for node, _ in region.inputs} | region.nodes.keys()
    names = (work.output.name for work in works if not work.works)
    return {name: memory_beside(arrays, name, given) for name in names}


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


def in_memory(layer: Layer | None) -> bool:
    """Whether the first block of a layer is data, or a future: so are the others."""
    if not isinstance(layer, MaterializedLayer):
        return False
    key = next(iter(layer.mapping), None)
    return key is not None and _is_data(layer, key)


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
        made |= {key for key in stage.aliases if follows(stage.needs[key], readers, made)}
    levels: dict[str, int] = {}
    layers: dict[str, LayerCost] = {}
    for stage in stages:
        heads = stage.heads(readers, made)
        waits = heads > 0 or stage.piece is not None
        below = (levels[name] for name in stage.layers if name in levels)
        level = max((level + waits for level in below), default=0)
        levels.update(dict.fromkeys({stage.name, *map(name_of, stage.needs)}, level))
        if stage.piece is not None:
            heads, work = stage.piece.dask_cost(workers, machine)
            cost = LayerCost(heads, work, 0)
        else:
            moved, busiest = places.run(stage)
            work = moved / machine.dask_rate + busiest * stage.seconds
            cost = LayerCost(heads, work + heads * machine.task_seconds, int(moved))
        layers[stage.name] = layers.get(stage.name, LayerCost(0, 0.0, 0)).plus(cost)
    seconds = sum(cost.seconds for cost in layers.values())
    seconds += max(levels.values(), default=0) * machine.round_trip_seconds
    return Plain(sum(cost.tasks for cost in layers.values()), seconds, layers)
