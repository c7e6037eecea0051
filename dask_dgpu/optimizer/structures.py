"""Graphs with a known structure: their optimized form is kept, and gets their names.

The next step of a training loop and the next call in a notebook have the same graph but for names
and data. Reading it as bytes takes about a tenth of optimizing it.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import dask
from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.planner.predict import Places
from dask_dgpu.planner.present import Present, figures_of, room_of
from dask_dgpu.runtime.program import Launch, Program
from graph_opt.dask_graph.plain import Plain
from graph_opt.dask_graph.sent import SentGraph, opened, pickled
from graph_opt.model.names import is_gang

if TYPE_CHECKING:
    from dask_dgpu.optimizer import GraphOptimizer

logger = logging.getLogger(__name__)

Key = Any

GRAPH = "graph"
"""The name of the present graph in a kept one; arrays have numbers."""


@dataclass(frozen=True)
class Kept:
    """An optimized graph, pickled with numbered tokens, of so many bytes with its programs.

    The text is empty if it cannot be kept. It has references to the ``programs``, by name.
    """

    text: bytes
    programs: Mapping[str, Program] = field(default_factory=dict)
    nbytes: int = 0


def optimized(
    optimizer: GraphOptimizer,
    graph: SentGraph,
    keys: Collection[Key],
    present: Present,
    known: MutableMapping[Any, Kept],
) -> Any:
    """Return an optimized graph, from a kept one with the same structure if there is one."""
    figures = figures_of(optimizer.facts)
    try:
        places = present.places(graph.sources)
        key = (
            blake2b(graph.text).digest(),
            optimizer,
            figures,
            _alike(map(places.get, graph.sources)),
            room_of(optimizer.most, present.others(graph.sources)),
            str(dask.config.get("optimization", {})),
        )
        kept = known.get(key)
        if kept is not None:
            logger.info("graph of %s keys: as one of the same structure before", len(keys))
        else:
            known[key] = kept = _optimized(optimizer.with_figures(figures), graph, present)
        if kept.text:
            text = graph.restored(kept.text)
            return opened(text, {GRAPH: graph, **kept.programs, **dict(enumerate(graph.arrays))})
    except Exception:  # the graph itself says what is wrong, with its own names
        logger.debug("a graph could not be optimized by its structure", exc_info=True)
    return optimizer.with_figures(figures).optimize(graph, list(keys), present)


def _alike(places: Iterable[int | None]) -> tuple[int, ...]:
    """Number workers in the order of their first block: all are alike. No worker has number 0."""
    numbers: dict[int | None, int] = {None: 0}
    return tuple(numbers.setdefault(place, len(numbers)) for place in places)


def _optimized(optimizer: GraphOptimizer, sent: SentGraph, present: Present) -> Kept:
    """Optimize a graph without names and data; return the result with its tokens."""

    def real(keys: Collection[Key]) -> list[Key]:
        restored: list[Key] = pickle.loads(sent.restored(pickle.dumps(list(keys))))
        return restored

    def places(keys: Collection[Key]) -> Places:
        own = dict(zip(real(keys), keys, strict=True))
        known = [key for key in sent.sources if key in own]  # the others are not in the kept key
        return {own[key]: place for key, place in present.places(known).items()}

    graph, wanted = sent.open()
    optimized = optimizer.optimize(
        graph, wanted, Present(lambda k: present.others(real(k)), places)
    )
    if isinstance(optimized, HighLevelGraph):
        return Kept(b"")
    launches = [task.args[0] for key, task in optimized.items() if is_gang(key)]
    programs = {f"program-{i}": launch.program for i, launch in enumerate(launches)}
    known: dict[Any, Any] = {GRAPH: graph, **programs, **dict(enumerate(sent.arrays))}
    text = pickled(optimized, known, {Launch: _reduced, Plain: partial(_reduced_plain, graph)})
    # opened again, they hold no object of the user
    alone = {name: pickle.loads(pickle.dumps(program)) for name, program in programs.items()}
    nbytes = len(text) + sum(2 * len(program.text[0]) for program in programs.values())
    return Kept(text, alone, nbytes)


def _reduced(launch: Launch) -> Any:
    """Reduce a launch with what messages omit: Dask's own tasks, and the tokens of its program."""
    given = launch.program, launch.names, launch.titles, launch.plain, launch.program.text[1]
    return Launch, (*given, launch.operations)


def _reduced_plain(graph: HighLevelGraph, plain: Plain) -> Any:
    """Reduce Dask's own tasks in the graph itself: they are looked up if they are needed."""
    if plain.graph is not graph:
        return NotImplemented
    return Plain, (graph, plain.given, plain.wanted)
