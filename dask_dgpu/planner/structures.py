"""Graphs with a known structure: their optimized form is kept, and gets their names.

The next step of a training loop and the next call in a notebook have the same graph but for names
and data. Reading it as bytes takes about a tenth of optimizing it.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Collection, Iterable
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import dask
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dask_dgpu.planner.predict import Places
from dask_dgpu.planner.present import Present
from dask_dgpu.runtime.program import Launch
from dask_dgpu.runtime.scheduler.structures import Kept, Structures
from graph_opt.dask_graph.emit import is_gang
from graph_opt.dask_graph.pickling import IncomparableError, opened, pickled
from graph_opt.dask_graph.plain import Plain
from graph_opt.dask_graph.renaming import Canonical, parted
from graph_opt.dask_graph.sent import Layers, SentGraph

if TYPE_CHECKING:
    from dask_dgpu.planner.optimizer import GraphOptimizer

logger = logging.getLogger(__name__)

Key = Any

GRAPH = "graph"
"""The name of the present graph in a kept one."""


def optimized(
    optimizer: GraphOptimizer,
    graph: HighLevelGraph,
    keys: Collection[Key],
    present: Present,
    known: Structures,
) -> Any:
    """Return an optimized graph, from a kept one with the same structure if there is one."""
    try:
        form = graph.form if isinstance(graph, SentGraph) else Canonical.of(graph, keys)
        digest, new = blake2b(form.pickled).digest(), None
        if digest not in known.sources:
            new = form.open()
            known.sources[digest] = pickle.dumps(_sources(new[0]))
        sources = pickle.loads(form.restored(known.sources[digest]))
        key = (digest, *_circumstances(optimizer, sources, present))
        data = known.graphs.get(key)
        if data is not None:
            logger.info("graph of %s keys: as one of the same structure before", len(keys))
        else:
            known.graphs[key] = data = _optimized(optimizer, form, new or form.open(), present)
        if data.text:
            text = form.restored(data.text, data.stand_for)
            return opened(text, {GRAPH: graph, **data.programs}, form.arrays)
    except IncomparableError as reason:
        logger.debug("a graph is optimized without looking for its structure: %s", reason)
    except Exception:  # the graph itself says what is wrong, with its own names
        logger.debug("a graph could not be optimized by its structure", exc_info=True)
    return optimizer.optimize(graph, list(keys), present)


def _sources(graph: HighLevelGraph) -> list[Key]:
    """Return the keys of layers that depend on none: their blocks may be in memory."""
    return [
        key
        for name, layer in graph.layers.items()
        if isinstance(layer, MaterializedLayer) and not graph.dependencies[name]
        for key in layer
    ]


def _circumstances(
    optimizer: GraphOptimizer, sources: Collection[Key], present: Present
) -> tuple[Any, ...]:
    """Return all that the optimized graph depends on, besides the graph."""
    places = present.places(sources)
    return (
        optimizer,
        _alike(places.get(key) for key in sources),
        optimizer.room(present.others(sources)),
        str(dask.config.get("optimization", {})),
    )


def _alike(places: Iterable[int | None]) -> tuple[int, ...]:
    """Number workers in the order of their first block: all are alike. No worker has number 0."""
    numbers: dict[int | None, int] = {None: 0}
    return tuple(numbers.setdefault(place, len(numbers)) for place in places)


def _optimized(
    optimizer: GraphOptimizer,
    form: Canonical,
    opened_form: tuple[HighLevelGraph, list[Key]],
    present: Present,
) -> Kept:
    """Optimize the opened form of a graph; return the result with its tokens."""

    def others(keys: Collection[Key]) -> int:
        return present.others([form.key(key) for key in keys])

    def places(keys: Collection[Key]) -> Places:
        real = {form.key(key): key for key in keys}
        return {real[key]: place for key, place in present.places(list(real)).items()}

    graph, wanted = opened_form
    found = optimizer.optimize(graph, wanted, Present(others, places))
    if isinstance(found, HighLevelGraph):
        return Kept(b"")
    launches = {key[0]: task.args[0] for key, task in found.items() if is_gang(key)}
    programs = {f"program-{at}": each.program for at, each in enumerate(launches.values())}
    own = partial(_reduced_plain, graph)
    text = pickled(found, {GRAPH: graph, **programs}, _whole, own, refer=form.refer)
    stand_for = {_tokens(gang)[0]: _tokens(*each.names) for gang, each in launches.items()}
    # opened again, they hold no object of the user
    alone = {name: pickle.loads(pickle.dumps(program)) for name, program in programs.items()}
    nbytes = len(text) + sum(2 * len(program.text[0]) for program in programs.values())
    return Kept(text, stand_for, alone, nbytes)


def _tokens(*names: str) -> list[bytes]:
    return parted(" ".join(names).encode())[1]


def _whole(obj: Any) -> Any:
    """Pickle launches with Dask's own tasks for the fallback; messages omit these."""
    if not isinstance(obj, Launch):
        return NotImplemented
    return Launch, (obj.program, obj.names, obj.titles, obj.plain, obj.program.text[1])


def _reduced_plain(graph: HighLevelGraph, obj: Any) -> Any:
    """Pickle Dask's own tasks as names of layers of the graph, which stay where they are."""
    if not isinstance(obj, Plain):
        return NotImplemented
    names = [name for name, layer in obj.layers.items() if graph.layers.get(name) is layer]
    others = {name: layer for name, layer in obj.layers.items() if name not in names}
    return _plain, (graph, names, others, obj.given, obj.wanted)


def _plain(
    graph: HighLevelGraph,
    names: list[str],
    others: dict[str, Layer],
    given: tuple[Key, ...],
    wanted: tuple[Key, ...],
) -> Plain:
    return Plain(Layers(graph, names, others), given, wanted)
