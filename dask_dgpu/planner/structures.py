"""Graphs with a known structure: their optimized form is kept, and gets their names.

The next step of a training loop and the next call in a notebook have the same graph but for names
and data. Reading it as bytes takes about a tenth of optimizing it.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Collection, Iterable, MutableMapping
from dataclasses import fields
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import dask
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dask_dgpu.planner.present import Present
from dask_dgpu.planner.stages import Places
from dask_dgpu.runtime.program import Form, Program
from graph_opt.dask_graph.emit import is_gang
from graph_opt.dask_graph.pickling import IncomparableError, opened, pickled
from graph_opt.dask_graph.renaming import TOKEN, Canonical, numbered

if TYPE_CHECKING:
    from dask_dgpu.planner.optimizer import GraphOptimizer

logger = logging.getLogger(__name__)

Key = Any
Kept = MutableMapping[Any, bytes]
"""Optimized graphs, pickled with numbered tokens, and what new ones stand for; empty if one cannot
be kept."""


def optimized(
    optimizer: GraphOptimizer,
    graph: HighLevelGraph,
    keys: Collection[Key],
    present: Present,
    kept: Kept,
) -> Any:
    """Return an optimized graph, from a kept one with the same structure if there is one."""
    try:
        form = Canonical.of(graph, keys)
        key = _structure(optimizer, graph, form, present)
        data = kept.get(key)
        if data is not None:
            logger.info("graph of %s keys: as one of the same structure before", len(keys))
        else:
            kept[key] = data = _optimized(optimizer, form, present)
        if data:
            text, stand_for = pickle.loads(data)
            return opened(form.restored(text, stand_for), graph.layers, form.arrays)
    except IncomparableError as reason:
        logger.debug("a graph is optimized without looking for its structure: %s", reason)
    except Exception:  # the graph itself says what is wrong, with its own names
        logger.debug("a graph could not be optimized by its structure", exc_info=True)
    return optimizer.optimize(graph, list(keys), present)


def _structure(
    optimizer: GraphOptimizer, graph: HighLevelGraph, form: Canonical, present: Present
) -> tuple[Any, ...]:
    """Return all that the optimized graph depends on, besides names."""
    sources = [
        key
        for name, layer in graph.layers.items()
        if isinstance(layer, MaterializedLayer) and not graph.dependencies[name]
        for key in layer
    ]
    places = present.places(sources)
    return (
        optimizer,
        blake2b(form.pickled).digest(),
        _alike(places.get(key) for key in sources),
        optimizer.room(sources, present),
        str(dask.config.get("optimization", {})),
    )


def _alike(places: Iterable[int | None]) -> tuple[int, ...]:
    """Number workers in the order of their first block: all are alike. No worker has number 0."""
    numbers: dict[int | None, int] = {None: 0}
    return tuple(numbers.setdefault(place, len(numbers)) for place in places)


def _optimized(optimizer: GraphOptimizer, form: Canonical, present: Present) -> bytes:
    """Optimize a graph with numbered tokens; return the result with them, pickled."""

    def others(keys: Collection[Key]) -> int:
        return present.others([form.key(key) for key in keys])

    def places(keys: Collection[Key]) -> Places:
        real = {form.key(key): key for key in keys}
        return {real[key]: place for key, place in present.places(list(real)).items()}

    graph, wanted = form.open()
    found = optimizer.optimize(graph, wanted, Present(others, places))
    if isinstance(found, HighLevelGraph):
        return b""
    text = pickled(found, graph.layers, _whole, refer=form.refer)
    gangs = [(key[0], task.args[0].names) for key, task in found.items() if is_gang(key)]
    return pickle.dumps((text, {_tokens(gang)[0]: _tokens(*arrays) for gang, arrays in gangs}))


def _tokens(*names: str) -> list[bytes]:
    return TOKEN.findall(" ".join(names).encode())


def _whole(obj: Any) -> Any:
    """Pickle programs with Dask's own tasks for the fallback; messages omit these."""
    if not isinstance(obj, Program):
        return NotImplemented
    state = {each.name: getattr(obj, each.name) for each in fields(obj)}
    return partial(Program, **state | {"form": _form(obj)}), ()


def _form(program: Program) -> Form:
    text, tokens = numbered(program.payload)
    return Form(blake2b(text).digest(), tuple(token.decode() for token in tokens))
