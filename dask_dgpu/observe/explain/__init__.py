"""What runs as gangs, and why the rest does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask.base import is_dask_collection
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.arguments import check_flag, expected
from dask_dgpu.environment.facts import current_client
from dask_dgpu.kinds import of_either_kind
from dask_dgpu.observe.explain.advice import advised
from dask_dgpu.observe.explain.explanation import Explanation
from dask_dgpu.observe.explain.memory import memory_of
from dask_dgpu.observe.explain.operations import GANG, Finder, Operation
from dask_dgpu.observe.explain.runs import last_runs, runs_of
from dask_dgpu.observe.explain.table import Totals
from dask_dgpu.optimizer import GraphOptimizer, enabled_optimizer
from dask_dgpu.planner.fallbacks import fallbacks_of, reason_of
from dask_dgpu.planner.predict import blocks_of
from dask_dgpu.planner.present import present_on
from graph_opt.model.piece import Region

__all__ = ["Explanation", "explain"]


@of_either_kind
def explain(array: Any, *arrays: Any, measured: bool = False) -> Explanation:
    """Show how dask_dgpu would compute an array, or several together.

    Parameters
    ----------
    array : dask.array.Array
        The array, or any collection with a high-level graph.
    *arrays : dask.array.Array
        Further ones, that ``dask.compute`` would compute together with it.
    measured : bool, optional
        Whether to add the measured seconds of each operation, and of its transfers, from the
        last time that gangs on the current client's cluster computed these arrays, also as a
        part of a larger computation. Persisted arrays show the gangs that made them.

    Returns
    -------
    Explanation
        Prints as text, displays as HTML, and has :meth:`Explanation.to_dict`. It also says
        whether dask_dgpu is enabled.

    Raises
    ------
    TypeError
        If an array is no Dask collection.
    ValueError
        If ``measured`` is true and there is no client.

    Notes
    -----
    Nothing is computed. Bytes, memory and times are predictions for blocks in even shares,
    in their order, on the workers that :func:`enable` found.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x = da.ones((4, 6), chunks=2)
    >>> print(dgpu.explain(x @ x.T))
    dask_dgpu is not enabled: everything is left to Dask
    """
    arrays = (array, *arrays)
    for each in arrays:
        if not is_dask_collection(each):
            expected("array", "a Dask collection", each, TypeError)
    check_flag("measured", measured)
    optimizer = enabled_optimizer()
    if optimizer is None:
        return Explanation(enabled=False)
    graphs = [array.__dask_graph__() for array in arrays]
    if not all(isinstance(graph, HighLevelGraph) for graph in graphs):
        return Explanation(enabled=True)
    keys = list(flatten([array.__dask_keys__() for array in arrays]))
    return _explained(optimizer, HighLevelGraph.merge(*graphs), keys, measured)


def _explained(
    optimizer: GraphOptimizer, graph: HighLevelGraph, keys: Sequence[Any], measured: bool
) -> Explanation:
    client = current_client()
    names = optimizer.reader(graph, keys).requested
    reported = fallbacks_of(client, names) if optimizer.facts.scheduler else ()
    present = present_on(optimizer.facts.scheduler, client)
    optimizer = optimizer.calibrated(client)
    try:
        rewriting = optimizer.rewrite(graph, keys, present)
        lacks, advice = advised(
            optimizer,
            rewriting.lacks,
            lambda other: other.rewrite(graph, keys, present).lacks,
        )
    except Exception as error:
        if optimizer.settings.on_error == "raise":
            raise
        failures = dict.fromkeys([reason_of(error), *reported])
        return Explanation(enabled=True, failures=tuple(failures))
    rewritten = tuple(
        (piece, optimizer.planned(Region.of(piece), rewriting.reader, present).prediction)
        for piece in rewriting.pieces
    )
    regions = rewriting.regions
    runs = last_runs(region for region, _ in regions) if measured else ((),) * len(regions)
    ours, plain = optimizer.totals(rewriting)
    operations = Finder(rewriting, ours, runs).operations()
    if measured and not operations:
        operations = _made(names)
    read = [key for region, _ in regions for key in blocks_of(region)]
    room, passes = optimizer.room(present.others(read)), rewriting.reader.in_passes_of(graph)
    return Explanation(
        True,
        rewritten,
        regions,
        runs,
        rewriting.declined,
        reported,
        optimizer.facts.machine.measured,
        ours.seconds,
        plain.seconds,
        tuple(operations),
        Totals(ours.tasks, ours.seconds, plain.tasks, plain.seconds),
        room,
        bool(measured),
        memory_of(rewriting, operations, passes, lacks, advice, room, ours.seconds),
    )


def _made(names: Sequence[str]) -> list[Operation]:
    """Return the operations of the gangs that made arrays which exist."""
    return [
        Operation(steps[-1].name, word, GANG, "", gang=i).with_run(steps)
        for i, run in enumerate(runs_of(names))
        for word, steps in run
    ]
