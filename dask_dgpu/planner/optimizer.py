"""The optimizer that Dask calls on every array graph; it inserts gangs that are quicker."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask.array.optimization
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from dask.utils import format_bytes

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import Settings
from dask_dgpu.operations import RULES
from dask_dgpu.operations.value import shared, step_of, value_of
from dask_dgpu.planner.fallbacks import arrays_of, report
from dask_dgpu.planner.predict import Held, Prediction, held_here, nothing, predict, usable
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.blockwork import Blockworks
from dask_dgpu.runtime.program import Program
from graph_opt.dask_graph.emit import GangLayer, TaskFunctions, emit, finish, guarded
from graph_opt.dask_graph.layers import PieceLayer
from graph_opt.dask_graph.members import fuse, members
from graph_opt.dask_graph.parse import ArrayGraph, Culled, cull, parse
from graph_opt.dask_graph.plain import Plain
from graph_opt.model.layout import CUPY, NUMPY, Declined
from graph_opt.model.piece import Piece, Region
from graph_opt.passes import check, find, insert, partition

MOST_WASTE = 0.5
"""Leave a piece to Dask if more than this fraction of its computed blocks is unused."""

ROOM_STEPS = 64
"""Free memory counts in such fractions of the limit, so equal programs have equal plans."""

FUNCTIONS = TaskFunctions(tasks.stage, tasks.gang, tasks.out)


@dataclass(frozen=True)
class Rewriting:
    """A graph with gangs, and the decisions behind it."""

    graph: HighLevelGraph
    regions: tuple[tuple[Region, Prediction], ...]
    declined: tuple[Declined, ...]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The collectives of all gangs."""
        return tuple(piece for region, _ in self.regions for piece in region.pieces)


@dataclass(frozen=True)
class Accepted:
    """A region that becomes a gang: its cost, and its program for the available memory."""

    region: Region
    prediction: Prediction
    program: Program


@dataclass(frozen=True)
class GraphOptimizer:
    """The ``array_optimize`` callable.

    Dask calls it in the scheduler's process, without the client's configuration, or in the
    client's process for other schedulers. So it is frozen, picklable and self-contained.
    """

    settings: Settings
    facts: ClusterFacts

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        """Optimize a graph; after an error, leave it to Dask and report the error."""
        graph = dsk
        try:
            if not isinstance(graph, HighLevelGraph):
                graph = HighLevelGraph.from_collections(str(id(dsk)), dsk, dependencies=())
            graph = guarded(graph)
            held = held_here(self.facts.scheduler) or nothing
            rewriting = self.rewrite(graph, keys, held)
            if not rewriting.regions:
                return dask.array.optimization.optimize(graph, keys, **kwargs)
            optimized = dask.array.optimization.optimize(rewriting.graph, keys, **kwargs)
            if isinstance(optimized, HighLevelGraph):  # fusion is switched off
                return optimized
            return finish(optimized, _flat(keys), _gangs(rewriting.graph))
        except Exception as error:
            if self.settings.on_error == "raise":
                raise
            report(error, arrays_of(graph, _flat(keys)), self.facts.scheduler)
            return dask.array.optimization.optimize(graph, keys, **kwargs)

    def pieces(self, graph: HighLevelGraph, keys: Any) -> tuple[Piece, ...]:
        """Return the collectives that gangs would run; none after an error."""
        try:
            return self.rewrite(graph, keys).pieces
        except Exception:
            if self.settings.on_error == "raise":
                raise
            return ()

    def rewrite(self, graph: HighLevelGraph, keys: Any, held: Held = nothing) -> Rewriting:
        """Insert gangs into a graph, where rules match and the cost model agrees.

        ``held`` returns the memory of workers that a gang cannot use.
        """
        wanted = _flat(keys)
        arrays = parse(graph, wanted)
        matches = find(arrays, RULES)
        pieces, declined = list(matches.pieces), list(matches.declined)
        while pieces:
            culled, local = self._culled(graph, arrays, pieces, wanted)
            layers = [each for each in culled.graph.layers.values() if isinstance(each, PieceLayer)]
            accepted, refused = self._decided(culled, arrays, local, layers, wanted, held)
            declined += [Declined(name, reason) for name, reason in refused.items()]
            needed = {layer.piece.output.name for layer in layers} - refused.keys()
            kept = [piece for piece in pieces if piece.output.name in needed]
            if len(kept) == len(pieces):
                gangs = [(each.region, self._with_plain(graph, each)) for each in accepted]
                put = emit(culled.graph, gangs, FUNCTIONS)
                predicted = tuple((each.region, each.prediction) for each in accepted)
                return Rewriting(put, predicted, tuple(declined))
            pieces = kept  # the others change which blocks of these are needed
        return Rewriting(graph, (), tuple(declined))

    def _with_plain(self, graph: HighLevelGraph, accepted: Accepted) -> Program:
        """Return the program, with Dask's tasks for blocks that differ from their declaration."""
        if self.settings.on_error == "raise":
            return accepted.program
        return replace(accepted.program, plain=Plain.of(graph, accepted.region))

    def _culled(
        self, graph: HighLevelGraph, arrays: ArrayGraph, pieces: list[Piece], wanted: set[Any]
    ) -> tuple[Culled, set[str]]:
        """Replace layers by pieces, fuse Dask's work between them, and drop unused blocks.

        Also return the names of Dask's layers that can run in a gang.
        """
        replaced = check(insert(graph, pieces))
        local: set[str] = set()
        if self.settings.regions:
            local = members(arrays, replaced)
            replaced = fuse(replaced, local, wanted)
        return cull(replaced, wanted), local

    def _decided(
        self,
        culled: Culled,
        arrays: ArrayGraph,
        local: set[str],
        layers: list[PieceLayer],
        wanted: set[Any],
        held: Held,
    ) -> tuple[list[Accepted], dict[str, str]]:
        """Return the regions that become gangs, and the reasons against other pieces."""
        refused = {
            layer.piece.output.name: reason
            for layer in layers
            if (reason := self._hindrance(layer)) is not None
        }
        if refused:
            return [], refused
        named = {layer.piece.output.name: layer for layer in layers}
        accepted: list[Accepted] = []
        if self.settings.regions:
            found = partition(culled, arrays, local, wanted)
        else:
            found = [_alone(layer) for layer in layers]
        for region in found:
            parts, reasons = self._parts(region, named, held)
            accepted += parts
            refused |= reasons
        return accepted, refused

    def _parts(
        self, region: Region, layers: Mapping[str, PieceLayer], held: Held
    ) -> tuple[list[Accepted], dict[str, str]]:
        """Accept a region, or the parts of it that fit, or its pieces without Dask's layers."""
        room = self.room(region, held)
        program = self.program(region, room)
        prediction = predict(region, program, self.facts)
        reason = self._refusal(prediction, room)
        if reason is None:
            return [Accepted(region, prediction, program)], {}
        if len(region.members) == 1:
            return [], {region.members[0].output.name: reason}
        if _fits(prediction, room):
            smaller: Iterable[Region] = (_alone(layers[p.output.name]) for p in region.pieces)
        else:
            smaller = region.split()
        accepted: list[Accepted] = []
        refused: dict[str, str] = {}
        for part in smaller:
            if part.pieces:
                parts, reasons = self._parts(part, layers, held)
                accepted += parts
                refused |= reasons
        return accepted, refused

    def _hindrance(self, layer: PieceLayer) -> str | None:
        """Return why a piece cannot run in a gang, at any cost."""
        piece = layer.piece
        on_host = self.facts.workers > 0 and self.facts.device == "cpu"
        if on_host and any(node.container == CUPY for node in piece.inputs):
            return "blocks are CuPy arrays and the workers compute on the CPU"
        on_device = self.facts.device == "cuda"
        if on_device and piece.only_moves and piece.inputs[0].container == NUMPY:
            return "blocks are on the host and no computation follows"
        if layer.waste > MOST_WASTE:
            return "most of the blocks that it makes are not wanted"
        return None

    def _refusal(self, prediction: Prediction, room: float | None) -> str | None:
        """Return the reason against a gang by its cost, if there is one."""
        if room is not None and not _fits(prediction, room):
            return (
                f"it needs {format_bytes(prediction.peak_bytes)} on a rank "
                f"and {format_bytes(int(room))} may be used"
            )
        if self.settings.when == "cheaper" and prediction.seconds >= prediction.dask_seconds:
            return (
                f"plain Dask is predicted to be quicker ({prediction.dask_seconds:.3g} s "
                f"against {prediction.seconds:.3g} s)"
            )
        return None

    def predict(self, region: Region, room: float | None = None) -> Prediction:
        """Predict the cost of a region on this cluster, by a gang and by plain Dask."""
        return predict(region, self.program(region, room), self.facts)

    @property
    def transport(self) -> Transport:
        """The transport of blocks between ranks."""
        return self.facts.transport if self.settings.comm == "auto" else self.settings.comm

    def room(self, region: Region, held: Held) -> float | None:
        """Return the bytes of a device that a gang may use, ``None`` for no limit."""
        most = usable(self.facts, self.settings)
        if most is None:
            return None
        read = [(node.name, *index) for node, blocks in region.inputs for index in blocks]
        step = max(1.0, most / ROOM_STEPS)
        return max(0.0, most - math.ceil(held(read) / step) * step)

    def program(self, region: Region, room: float | None = None) -> Program:
        """Return the program of a region that may use ``room`` bytes of a device."""
        return Program(
            name=region.label,
            inputs=tuple((node.name, value_of(node, blocks)) for node, blocks in region.inputs),
            steps=shared(map(step_of, region.members)),
            outputs=region.wanted,
            machine=self.facts.machine,
            transport=self.transport,
            limits=self.settings.limits,
            local_ranks=self.settings.local_ranks,
            room=room,
            blockworks=Blockworks({work.output.name: work.layer for work in region.blockworks}),
        )


def _fits(prediction: Prediction, room: float | None) -> bool:
    return room is None or prediction.peak_bytes <= room


def _alone(layer: PieceLayer) -> Region:
    """Return the region of one piece and its used blocks."""
    wanted = ((layer.piece.output.name, tuple(sorted(layer.wanted))),)
    return Region((layer.piece,), wanted, layer.annotations)


def _gangs(graph: HighLevelGraph) -> list[GangLayer]:
    return [layer for layer in graph.layers.values() if isinstance(layer, GangLayer)]


def _flat(keys: Any) -> set[Any]:
    return set(flatten(keys if isinstance(keys, list) else [keys]))
