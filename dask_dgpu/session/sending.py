"""Array graphs travel to the scheduler in the form in which it looks for known ones."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.planner.optimizer import GraphOptimizer
from graph_opt.dask_graph.emit import guarded
from graph_opt.dask_graph.internals import HLGExpr
from graph_opt.dask_graph.pickling import IncomparableError
from graph_opt.dask_graph.renaming import Canonical
from graph_opt.dask_graph.sent import SentGraph, expression

logger = logging.getLogger(__name__)

Function = Callable[..., Any]

SENT = "_dgpu_sent"
"""The attribute of an expression with its graph as it is sent."""


@functools.cache
def sending(original: Function) -> Function:
    """Wrap ``HLGExpr.__reduce__``: what this optimizer reads is pickled as a :class:`SentGraph`.

    Other graphs, and those that cannot be compared, are pickled as before.
    """

    @functools.wraps(original)
    def __reduce__(self: Any) -> Any:
        optimizer = self.low_level_optimizer
        if not isinstance(optimizer, GraphOptimizer):
            return original(self)
        keys, graph = self.__dask_keys__(), vars(self).get(SENT)
        try:
            if graph is None:  # Dask pickles functions of a notebook twice
                whole = self.hlg  # of compute(): a copy each time
                if isinstance(whole, SentGraph):
                    return original(self)
                graph = SentGraph(Canonical.of(guarded(whole), {*flatten(keys)}))
                vars(self)[SENT] = graph
        except IncomparableError as reason:
            logger.debug("a graph is sent with all names: %s", reason)
            return original(self)
        except Exception:  # Dask says what cannot be pickled
            logger.debug("a graph could not be pickled without names", exc_info=True)
            return original(self)
        # that of compute() adds a task to the graph of another expression
        kind = type(self) if isinstance(self.dsk, HighLevelGraph) else HLGExpr
        return expression, (kind, graph, optimizer, keys, self.deterministic_token)

    return __reduce__
