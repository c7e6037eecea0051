"""The hook: Dask calls it on every array graph, and it puts gangs where they pay."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import dask.array.optimization
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.comm.bootstrap import Transport
from dask_dgpu.facts import ClusterFacts
from dask_dgpu.lower import lower
from dask_dgpu.predict import Prediction, predict, room
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.program import Program
from dask_dgpu.settings import Settings
from graph_opt.emit import GangLayer, TaskFunctions
from graph_opt.finish import finish
from graph_opt.node import Declined
from graph_opt.parse import parse
from graph_opt.piece import Piece
from graph_opt.redistribution import Redistribution
from graph_opt.rewrite import find, replace
from graph_opt.spec import check

MOST_WASTE = 0.5
"""A piece of whose computed blocks more than this share is not read is left to Dask."""

FUNCTIONS = TaskFunctions(tasks.stage, tasks.gang, tasks.out)


@dataclass(frozen=True)
class Rewriting:
    """A graph with gangs in it, and why it is as it is."""

    graph: HighLevelGraph
    rewritten: tuple[tuple[Piece, Prediction], ...]
    declined: tuple[Declined, ...]


@dataclass(frozen=True)
class GraphOptimizer:
    """The ``array_optimize`` callable.

    Dask calls it in the scheduler's process, without the client's configuration,
    or in the client's for other schedulers; so it is frozen, picklable, and
    carries all it needs.
    """

    settings: Settings
    facts: ClusterFacts

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        """Optimize a graph; whatever goes wrong leaves it to Dask, with one warning."""
        try:
            graph = dsk
            if not isinstance(graph, HighLevelGraph):
                graph = HighLevelGraph.from_collections(str(id(dsk)), dsk, dependencies=())
            rewriting = self.rewrite(graph, keys)
            if not rewriting.rewritten:
                return dask.array.optimization.optimize(dsk, keys, **kwargs)
            optimized = dask.array.optimization.optimize(rewriting.graph, keys, **kwargs)
            if isinstance(optimized, HighLevelGraph):  # fusion is switched off
                return optimized
            return finish(optimized, _flat(keys), _gangs(rewriting.graph))
        except Exception as error:
            if self.settings.on_error == "raise":
                raise
            warnings.warn(
                f"dask_dgpu left a graph to Dask: {type(error).__name__}: {error}", stacklevel=2
            )
            return dask.array.optimization.optimize(dsk, keys, **kwargs)

    def rewrite(self, graph: HighLevelGraph, keys: Any) -> Rewriting:
        """Put gangs into a graph, where rules match and the cost model agrees."""
        wanted = _flat(keys)
        matches = find(parse(graph, wanted))
        declined = list(matches.declined)
        pieces = list(matches.pieces)
        predicted = cache(lambda piece: predict(piece, self.program(piece), self.facts))
        while True:
            rewritten = self._replace(graph, pieces)
            gangs = [(gang, predicted(gang.piece)) for gang in _needed(rewritten, wanted)]
            refused = {
                gang.piece.output.name: reason
                for gang, prediction in gangs
                if (reason := self._refusal(gang, prediction)) is not None
            }
            declined += [Declined(name, reason) for name, reason in refused.items()]
            needed = {gang.piece.output.name for gang, _ in gangs} - refused.keys()
            kept = [piece for piece in pieces if piece.output.name in needed]
            if len(kept) == len(pieces):
                break
            pieces = kept  # without the others, more or less of these may be needed
        accepted = tuple((gang.piece, prediction) for gang, prediction in gangs)
        return Rewriting(rewritten, accepted, tuple(declined))

    def _replace(self, graph: HighLevelGraph, pieces: Sequence[Piece]) -> HighLevelGraph:
        if not pieces:
            return graph

        def layer(piece: Piece) -> GangLayer:
            return GangLayer(piece, FUNCTIONS, self.program)

        return check(replace(graph, pieces, layer))

    def _refusal(self, gang: GangLayer, prediction: Prediction) -> str | None:
        on_host = self.facts.workers > 0 and self.facts.device == "cpu"
        if on_host and any(node.container == "cupy.ndarray" for node in gang.piece.inputs):
            return "blocks are CuPy arrays and the workers compute on the CPU"
        if (
            self.facts.device == "cuda"
            and isinstance(gang.piece, Redistribution)
            and gang.piece.source.container == "numpy.ndarray"
        ):
            return "blocks are on the host and no computation follows"
        if gang.waste > MOST_WASTE:
            return "most of the blocks that it makes are not wanted"
        room = self.room
        if room is not None and prediction.peak_bytes > room:
            return (
                f"it needs {prediction.peak_bytes / 2**30:.1f} GiB on a rank "
                f"and {room / 2**30:.1f} GiB may be used"
            )
        if self.settings.when == "cheaper" and prediction.seconds >= prediction.dask_seconds:
            return (
                f"plain Dask is predicted to be quicker ({prediction.dask_seconds:.3g} s "
                f"against {prediction.seconds:.3g} s)"
            )
        return None

    @property
    def transport(self) -> Transport:
        """What carries blocks between ranks."""
        return self.facts.transport if self.settings.comm == "auto" else self.settings.comm

    @property
    def room(self) -> float | None:
        """Bytes of a device that a gang may use, ``None`` for no limit."""
        return room(self.facts, self.settings)

    def program(self, piece: Piece) -> Program:
        """Make the program of a piece."""
        lowered = lower(piece, self.facts.device)
        return Program(
            name=piece.label,
            inputs=lowered.inputs,
            steps=lowered.steps,
            output=lowered.output,
            kept=lowered.kept,
            machine=self.facts.machine,
            transport=self.transport,
            limits=self.settings.limits,
            local_ranks=self.settings.local_ranks,
            room=self.room,
        )


def _needed(graph: HighLevelGraph, wanted: set[Any]) -> list[GangLayer]:
    """Return the gangs as far as somebody reads what they make."""
    gangs = _gangs(graph)
    if all(gang.get_output_keys() <= wanted for gang in gangs):
        return gangs
    return _gangs(graph.cull(wanted))


def _gangs(graph: HighLevelGraph) -> list[GangLayer]:
    return [layer for layer in graph.layers.values() if isinstance(layer, GangLayer)]


def _flat(keys: Any) -> set[Any]:
    return set(flatten(keys if isinstance(keys, list) else [keys]))
