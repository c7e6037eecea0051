"""The optimizer that Dask calls on every array graph: it inserts gangs that are quicker."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import dask.array.optimization
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import Settings
from dask_dgpu.operations import RULES
from dask_dgpu.planner.fallbacks import arrays_of, log_verdicts, logger, report, report_elsewhere
from dask_dgpu.planner.gangs import with_joined
from dask_dgpu.planner.local import (
    NO_MEETING,
    Verdicts,
    hindrance,
    hindrance_of,
    hopeless,
    may_meet,
    refusal,
)
from dask_dgpu.planner.lowering import lowered
from dask_dgpu.planner.parts import LEAST_GAIN, Gang, Lack, alone, in_parts
from dask_dgpu.planner.plain import Plain as PlainCost
from dask_dgpu.planner.predict import blocks_of, left_of, limits_of, predict, usable
from dask_dgpu.planner.present import (
    NOTHING,
    Figures,
    Present,
    figures_of,
    is_offloaded,
    other_scheduler,
    plugin_on,
    present_on,
)
from dask_dgpu.planner.rewriting import Rewriting, read
from dask_dgpu.planner.stages import Places
from dask_dgpu.planner.structures import optimized
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.fused import Fused
from dask_dgpu.runtime.program import Launch
from graph_opt.dask_graph.embedding import embedded
from graph_opt.dask_graph.emit import TaskFunctions, emit, finish, guarded
from graph_opt.dask_graph.layers import PieceLayer, in_passes
from graph_opt.dask_graph.members import fuse, members
from graph_opt.dask_graph.parse import ArrayGraph, Culled, cull
from graph_opt.dask_graph.plain import Plain
from graph_opt.model.layout import Declined
from graph_opt.model.piece import Piece, Region
from graph_opt.passes import check, combine, find, insert, partition
from graph_opt.pieces.matmul import ProductPiece

if TYPE_CHECKING:
    from distributed import Client

FUNCTIONS = TaskFunctions(tasks.stage, tasks.gang, tasks.out)


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
            optimizer, wanted = self.calibrated(), _flat(keys)
            if (other := other_scheduler(self.facts.scheduler)) is not None:
                report_elsewhere(other, self.facts.scheduler, arrays_of(graph, wanted))
                return dask.array.optimization.optimize(graph, keys, **kwargs)
            present, here = present_on(self.facts.scheduler), plugin_on(self.facts.scheduler)
            if here is None or kwargs or not is_offloaded():
                return optimizer.optimize(graph, keys, present, **kwargs)
            here.new_arrays.expect(wanted)
            return optimized(optimizer, graph, wanted, present, here.structures)
        except Exception as error:
            if self.settings.on_error == "raise":
                raise
            report(error, arrays_of(graph, _flat(keys)), self.facts.scheduler)
            return dask.array.optimization.optimize(graph, keys, **kwargs)

    def optimize(self, graph: HighLevelGraph, keys: Any, present: Present, **kwargs: Any) -> Any:
        """Insert gangs into a graph, then let Dask optimize it; return its tasks or layers."""
        rewriting = self.rewrite(graph, keys, present)
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
        graph, arrays = read(graph, wanted, self.settings.fuse)
        matches = find(arrays, RULES)
        pieces, declined = list(matches.pieces), list(matches.declined)
        verdicts, lacks, slower = Verdicts(), dict[str, Lack](), set[str]()
        own_left = not self.facts.workers and self.settings.when != "always"
        own = self.settings.regions and not own_left and may_meet(arrays, self.facts)
        if own_left and (lost := hopeless(pieces, arrays, self.facts, LEAST_GAIN)):
            pieces, declined = [], [*declined, *lost]
        while pieces or own:
            culled, local = self._culled(graph, arrays, pieces, wanted, slower)
            put = [each for each in culled.graph.layers.values() if isinstance(each, PieceLayer)]
            layers = {each.piece.output.name: each for each in put}
            reasons = {name: hindrance_of(layer, self.facts) for name, layer in layers.items()}
            refused = {name: reason for name, reason in reasons.items() if reason}
            gangs, verdicts = list[Gang](), Verdicts(refused)
            if not refused:
                found = [alone(layer) for layer in layers.values()]
                if self.settings.regions:
                    skips = partial(verdicts.skips, culled, arrays, self.facts, self.settings.when)
                    found = partition(culled, arrays, local, wanted, skips)
                for region in found:
                    gangs += self._gangs(region, arrays, layers, present, verdicts)
                costly = verdicts.refused.keys() - verdicts.lacks.keys()
                slower.update(*(p.layers for p in pieces if p.output.name in costly))
                if len(gangs) > 1:
                    plan = partial(self.planned, arrays=arrays, present=present)
                    gangs = with_joined(gangs, culled.graph, plan)
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
            apart = (alone(layers[piece.output.name]) for piece in region.pieces)
            parts = apart if gang.fits else (part for part in region.split() if part.pieces)
            own = Verdicts()
            split = [g for part in parts for g in self._gangs(part, arrays, layers, present, own)]
            if not gang.beats(split):
                verdicts.add(own)
            yield from [gang] if gang.beats(split) else split

    def _objection(self, region: Region, arrays: ArrayGraph, places: Places) -> str | None:
        """Return why a region without collectives is not even planned, if there is a reason."""
        if (reason := hindrance(region, places)) is not None or self.settings.when == "always":
            return reason
        return refusal(region, arrays, self.facts, places, LEAST_GAIN)

    def _with_plain(self, graph: HighLevelGraph, region: Region, launch: Launch) -> Launch:
        """Return the launch, with Dask's tasks for blocks that differ from their declaration."""
        if self.settings.on_error == "raise":
            return launch
        piece = region.members[0]
        if region.term_of is not None and isinstance(piece, ProductPiece):
            graph = piece.with_plain(graph)
        return replace(launch, plain=Plain.of(graph, region, travels=not is_offloaded()))

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

    def totals(self, keys: Any, done: Rewriting) -> tuple[PlainCost, PlainCost]:
        """Predict a graph as it will run, with the layers outside of gangs, and in plain Dask."""
        workers = self.facts.workers or max(self.settings.local_ranks, self.facts.cores)
        return done.totals(_flat(keys), workers, self.facts)

    @property
    def transport(self) -> Transport:
        """The transport of blocks between ranks."""
        return self.facts.transport if self.settings.comm == "auto" else self.settings.comm

    def room(self, others: float) -> float | None:
        """Return the bytes of a device for a gang beside other results; ``None`` for no limit."""
        most = usable(self.facts, self.settings)
        return None if most is None else left_of(most, others)

    def launch(self, region: Region, room: float | None = None) -> Launch:
        """Return the program of a region that may use ``room`` bytes of a device."""
        return lowered(
            region,
            self.facts.machine,
            transport=self.transport,
            limits=limits_of(self.facts, self.settings),
            local_ranks=self.settings.local_ranks,
            room=room,
        )


def _flat(keys: Any) -> set[Any]:
    return set(flatten(keys if isinstance(keys, list) else [keys]))
