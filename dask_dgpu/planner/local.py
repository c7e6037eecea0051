"""Whether a gang may compute a piece, or a region of Dask's own layers only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import MaterializedLayer

from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.planner.parts import Lack
from dask_dgpu.planner.plain import plain_region
from dask_dgpu.planner.predict import begins_at_once
from dask_dgpu.planner.stages import Places
from graph_opt.dask_graph.internals import GraphNode
from graph_opt.dask_graph.layers import PieceLayer
from graph_opt.dask_graph.members import calls_others, container_of, is_map, is_member
from graph_opt.dask_graph.parse import ArrayGraph, Culled, array_operands, only_reader
from graph_opt.model.cost import gang_seconds
from graph_opt.model.layout import CUPY, NUMPY, Declined
from graph_opt.model.piece import Piece, Region

MOST_WASTE = 0.5
"""Leave a piece to Dask if more than this fraction of its computed blocks is unused."""

NO_MEETING = "no blocks meet"
"""Why work on blocks with the same index is left to Dask."""

ONE_PROCESS = "blocks of one process need no gang"
"""Why Dask's own layers are left to it without a cluster: its threads are as quick."""

SLOWER = "a gang would be slower"
"""Why work is left to Dask if the tasks of a gang alone take too long."""

USERS = "functions of users take unknown time"
"""Why work with such functions is left to Dask: it gives them to workers that are free."""


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

    def skips(
        self, culled: Culled, arrays: ArrayGraph, facts: ClusterFacts, when: str, names: list[str]
    ) -> bool:
        """Whether connected layers are left to Dask without an estimate; add the reason if so."""
        reason = foregone(names, culled, arrays, facts, when)
        if reason is not None:
            self.left.update(dict.fromkeys(names, reason))
        return reason is not None

    def tried_in_passes(self, lacks: Iterable[Lack]) -> None:
        """Replace what collectives lack by what their passes do if that is less."""
        most = max(lacks, key=lambda lack: lack.peak_bytes, default=None)
        for name, own in self.lacks.items():
            if most is not None and most.peak_bytes < own.peak_bytes:
                self.lacks[name], self.refused[name] = most, most.reason


def may_meet(arrays: ArrayGraph, facts: ClusterFacts) -> bool:
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


def hopeless(
    pieces: Sequence[Piece], arrays: ArrayGraph, facts: ClusterFacts, share: float
) -> list[Declined]:
    """Return the only piece of a graph in one process if no gang can be quick enough.

    That is less than this share of plain Dask's time. Tasks alone count: a gang has one for each
    block that it reads or returns, at least as many as the array with the fewest blocks before, and
    after, the piece. Dask's work around the piece takes a gang as long, but for its tasks.
    """
    if len(pieces) != 1 or pieces[0].forced:
        return []
    (piece,), machine = pieces, facts.machine
    around = (name for name in arrays.layers.keys() - set(piece.layers) if _has_own(name, arrays))
    others = sum(len(arrays.layers[name]) for name in around)
    _, plain = piece.dask_cost(facts.cores, machine)
    read = max(_fewest(node.name, arrays, before=True) for node in piece.inputs)
    returned = _fewest(piece.output.name, arrays, before=False)
    gang = gang_seconds(machine, read + returned + 1, 1)
    quick = gang < share * (plain + others * machine.task_seconds)
    return [] if quick else [Declined(piece.output.name, SLOWER)]


def _has_own(name: str, arrays: ArrayGraph) -> bool:
    """Whether a gang may save tasks of a layer: Dask does not fuse them with those before."""
    if not is_member(arrays, name):
        return False
    layer, needed = arrays.layers[name], arrays.dependencies[name]
    other = next(iter(needed), "")
    node = arrays.node(other)
    single = len(needed) == 1 and only_reader(arrays, other) == name
    if not single or node is None or node.blocks != len(layer):
        return True
    if isinstance(layer, Blockwise):
        return len(array_operands(arrays, name)) > 1
    tasks = layer.mapping.values() if isinstance(layer, MaterializedLayer) else (None,)
    return any(not isinstance(t, GraphNode) or len(t.dependencies) > 1 for t in tasks)


def _fewest(name: str, arrays: ArrayGraph, *, before: bool) -> int:
    """Return the fewest blocks that a gang reads for an array, or else returns of its results.

    A gang that creates blocks reads none.
    """
    found, seen, stack = list[int](), {name}, [name]
    while stack:
        each = stack.pop()
        node = arrays.node(each)
        inside = before and is_member(arrays, each)
        creates = inside and not arrays.dependencies[each]
        found.append(0 if node is None or creates else node.blocks)
        edges = arrays.dependencies[each] if inside else set()
        if not before:
            edges = {other for other in arrays.dependents[each] if is_member(arrays, other)}
        stack += edges - seen
        seen |= edges
    return min(found)


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


def hindrance(region: Region, places: Places) -> str | None:
    """Return why no gang would compute a region with a purpose: to bring blocks together."""
    return None if not region.in_place or _meets(region, places) else NO_MEETING


def refusal(
    region: Region, arrays: ArrayGraph, facts: ClusterFacts, places: Places, share: float
) -> str | None:
    """Return why a gang would not take less than this share of plain Dask's time, if it is known.

    Functions may be arguments of any task, so all are looked at.
    """
    if any(work.once for work in region.works):
        return USERS
    plain = plain_region(region, arrays, max(facts.workers, facts.cores), facts, places)
    at_once = begins_at_once(region, places)
    gang = gang_seconds(facts.machine, region.tasks, region.steps, at_once=at_once)
    return None if gang < share * plain.seconds else SLOWER


def _meets(region: Region, places: Places) -> bool:
    """Whether blocks with the same index are known to be on several workers."""
    found: dict[Any, int] = {}
    return any(
        found.setdefault(index, places[key]) != places[key]
        for node, blocks in region.inputs
        for index in blocks
        if (key := (node.name, *index)) in places
    )
