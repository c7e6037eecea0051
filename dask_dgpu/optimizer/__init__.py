"""The optimizer that Dask calls on every array graph: it inserts gangs that are quicker."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import dask.array.optimization
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.kernels.scan import FUNCTIONS as SCANS
from dask_dgpu.kinds import as_dasks
from dask_dgpu.optimizer.structures import optimized
from dask_dgpu.planner.decisions import Planner, Rewriting
from dask_dgpu.planner.fallbacks import log_verdicts, logger, report, report_elsewhere
from dask_dgpu.planner.present import (
    NOTHING,
    Present,
    is_offloaded,
    other_scheduler,
    plugin_on,
    present_on,
)
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.fused import Fused
from dask_dgpu.runtime.partials import FUNCTIONS as MERGES
from dask_dgpu.runtime.scheduler.states import at_once
from graph_opt.dask_graph.emit import TaskFunctions, answered, embedded, finish, guarded
from graph_opt.dask_graph.parse import arrays_of
from graph_opt.dask_graph.reader import LayerReader, Runtime
from graph_opt.dask_graph.sent import SentGraph
from graph_opt.model.piece import Piece

# CuPy is slow at scans
RUNTIME = Runtime(TaskFunctions(tasks.stage, tasks.gang, tasks.out), Fused, SCANS, MERGES)


class GraphOptimizer(Planner):
    """The ``array_optimize`` callable.

    Dask calls it in the scheduler's process, without the client's configuration, or in the
    client's process for other schedulers. So it is frozen, picklable and self-contained.
    """

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
        optimized = dask.array.optimization.optimize(rewriting.graph, keys, **kwargs)
        if not rewriting.regions or isinstance(optimized, HighLevelGraph):  # fusion is off
            return optimized
        wanted = _flat(keys)
        if present is not NOTHING:
            optimized = embedded(optimized, wanted, present.places)
        optimized = finish(optimized, wanted, rewriting.graph)
        return optimized if self.facts.device == "cuda" else answered(optimized, wanted, tasks.out)

    def rewrite(
        self, graph: HighLevelGraph, keys: Any, present: Present = NOTHING
    ) -> Rewriting[LayerReader]:
        """Insert gangs into a graph; see :meth:`Planner.decide`."""
        return self.decide(self.reader(graph, keys), present)

    def reader(self, graph: HighLevelGraph, keys: Any) -> LayerReader:
        """Return the reader of a graph for these keys."""
        return LayerReader(graph, frozenset(_flat(keys)), RUNTIME, self.settings.fuse)

    def pieces(self, graph: HighLevelGraph, keys: Any) -> tuple[Piece, ...]:
        """Return the collectives that gangs would run; none after an error."""
        try:
            return self.rewrite(graph, keys).pieces
        except Exception:
            if self.settings.on_error == "raise":
                raise
            return ()


def reading(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``collections_to_expr`` of Dask: arrays of dask_array are computed as Dask's."""

    @wraps(original)
    def collections_to_expr(collections: Any, *args: Any, **kwargs: Any) -> Any:
        several = isinstance(collections, tuple | list | set)
        given = collections if several else (collections,)
        if any(type(each).__module__.startswith("dask_array.") for each in given):
            arrays = list(map(as_dasks, given))
            collections = arrays if several else arrays[0]
        return original(collections, *args, **kwargs)

    return collections_to_expr


def hurry() -> None:
    """Let the current client send its next message, the graph that is pickled, at once."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return
    with suppress(ValueError):  # no client
        client = distributed.Client.current()
        if client.scheduler_comm is not None:
            client.loop.add_callback(at_once, client.scheduler_comm)


def enabled_optimizer() -> GraphOptimizer | None:
    """Return the optimizer that Dask calls, ``None`` if dask_dgpu is not enabled."""
    optimizer = dask.config.get("array_optimize", None)
    return optimizer if isinstance(optimizer, GraphOptimizer) else None


def _flat(keys: Any) -> set[Any]:
    return set(flatten(keys if isinstance(keys, list) else [keys]))
