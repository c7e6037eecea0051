"""An expression as an array of Dask: its nodes are built again by Dask's functions.

::

    expression ->  rows     kinds that Dask knows too: its layers, which the planner reads
               ->  tasks    all other kinds: their tasks, between such layers
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from dask_array._blockwise import Elemwise
from dask_array._expr import ArrayExpr, ChunksOverride
from dask_array._overlap import SlidingWindowView
from dask_array.io._from_array import FromArray
from dask_array.io._from_graph import FromGraph
from dask_array.slicing._bool_index import BooleanIndexFlattened

from graph_opt.dask_graph.internals import GraphNode, Task, convert_legacy_graph
from graph_opt.expressions.rows import ROWS, Row, first_step, is_unknown

logger = logging.getLogger(__name__)

FACTORIZATIONS = "dask_array.linalg."

KEPT = "_dgpu_array"
"""The attribute of an expression with its array, which ends with it."""


def as_dask(expr: ArrayExpr) -> Array:
    """Return an expression as an array of Dask with the same chunks and dtype.

    dask_array moves slices and rechunks of stored arrays to where these are read, and computes
    sums over sliding windows without the windows.
    """
    if KEPT not in vars(expr):
        try:
            is_simplified = any(map(_gains_by_rules, expr.walk()))
            vars(expr)[KEPT] = _in_chunks(_read(expr.simplify() if is_simplified else expr), expr)
        except Exception:
            logger.debug("dask_array's own tasks of %s", type(expr).__name__, exc_info=True)
            vars(expr)[KEPT] = _of_tasks(expr._name, expr.__dask_graph__(), expr, [])
    array: Array = vars(expr)[KEPT]
    return array


def _gains_by_rules(expr: ArrayExpr) -> bool:
    """Whether rules of dask_array know more of a node than those of Dask."""
    is_stored = isinstance(expr, FromArray) and not isinstance(expr.array, np.ndarray)
    return is_stored or isinstance(expr, SlidingWindowView)


def _read(expr: ArrayExpr) -> Array:
    for each in _inputs_first(expr):
        if KEPT not in vars(each):
            vars(each)[KEPT] = array = _array(each)
            vars(each).setdefault("_meta", array._meta)  # which it would compute to persist it
    known: Array = vars(expr)[KEPT]
    return known


def _inputs_first(expr: ArrayExpr) -> Iterator[ArrayExpr]:
    """Yield the nodes that are arrays, each after those that it reads, without recursion."""
    stack, seen = [(expr, False)], set()
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            if KEPT in vars(node):
                continue
            stack.append((node, True))
            stack += [(array, False) for array in _arrays(node)]


def _arrays(expr: ArrayExpr) -> Iterator[ArrayExpr]:
    """Yield the nearest arrays that the row of a node reads."""
    for dependency in first_step(expr).dependencies():
        if isinstance(dependency, ArrayExpr):
            if _is_array(dependency, expr):
                yield dependency
            else:
                yield from _arrays(dependency)


def _is_array(expr: ArrayExpr, reader: ArrayExpr) -> bool:
    """Whether a node that another reads is an array: its blocks are arrays, as declared.

    Those of the steps of a factorization may be tuples, and have other shapes. Parts that a mask
    selects have known sizes until the node that reads them.
    """
    if all(type(each).__module__.startswith(FACTORIZATIONS) for each in (expr, reader)):
        return False
    if isinstance(reader, ChunksOverride | BooleanIndexFlattened) and is_unknown(reader):
        return is_unknown(expr)
    declares = "_meta_provided" in expr._parameters
    several = declares and isinstance(expr._meta_provided, tuple | list)
    if _row(expr) is not None and not several:
        return True  # without its meta, which takes long to compute
    meta = expr._meta
    return hasattr(meta, "dtype") and getattr(meta, "ndim", None) == expr.ndim


def _array(expr: ArrayExpr) -> Array:
    row = _row(expr)
    if row is not None:
        try:
            array = _in_chunks(row(expr, _read), expr)
            if array.numblocks == expr.numblocks and (
                isinstance(expr, Elemwise) or array.dtype == expr.dtype  # which it infers as Dask
            ):
                return array
        except Exception:  # its own tasks say what is wrong
            logger.debug("%s is no layer of Dask", type(expr).__name__, exc_info=True)
    return _by_tasks(expr)


def _row(expr: ArrayExpr) -> Row | None:
    return next((ROWS[each] for each in type(expr).__mro__ if each in ROWS), None)


def _in_chunks(array: Array, expr: ArrayExpr) -> Array:
    """Return an array in the chunks of an expression, if those of both are known."""
    if array.chunks == expr.chunks or is_unknown(array) or is_unknown(expr):
        return array
    return array.rechunk(expr.chunks)


def _by_tasks(expr: ArrayExpr) -> Array:
    """Return the array of the tasks of an expression, which read those of its inputs."""
    inputs: dict[str, Array] = {}
    node = _on(expr, inputs).lower_completely()
    tasks = _tasks(node, inputs)
    read = {key for task in tasks.values() for key in task.dependencies} - tasks.keys()
    if any(key[0] not in inputs for key in read):  # keys of an input that are no blocks of it
        inputs, node = {}, expr.lower_completely()
        tasks = _tasks(node, inputs)
    return _in_chunks(_of_tasks(node._name, tasks, node, list(inputs.values())), expr)


def _of_tasks(name: str, tasks: Any, node: ArrayExpr, inputs: Any) -> Array:
    graph = HighLevelGraph.from_collections(name, dict(tasks), dependencies=inputs)
    return Array(graph, name, node.chunks, meta=node._meta)


def _tasks(node: ArrayExpr, inputs: Mapping[str, Array]) -> dict[Any, GraphNode]:
    """Return the tasks of a node and of those that it reads, but for ``inputs``."""
    tasks: dict[Any, Any] = {}
    for each in node.walk():
        if each._name not in inputs:
            tasks |= each._layer()
    keys = {key for each in inputs.values() for key in flatten(each.__dask_keys__())}
    graph: dict[Any, GraphNode] = convert_legacy_graph(tasks, tasks.keys() | keys)
    return {  # Dask cannot fuse containers without a key
        key: Task(key, itself, task) if task.key is None else task for key, task in graph.items()
    }


def itself(value: Any) -> Any:
    """Return a value."""
    return value


def _on(expr: ArrayExpr, inputs: dict[str, Array]) -> ArrayExpr:
    """Return an expression of stand-ins for the arrays that it reads, and collect these."""
    if not expr.dependencies() or any(map(_is_nested, expr.operands)):
        return expr
    operands: list[Any] = []
    for operand in expr.operands:
        if isinstance(operand, ArrayExpr):
            if _is_array(operand, expr):
                array = _read(operand)
                inputs[array.name] = array
                operand = FromGraph({}, array._meta, array.chunks, [], array.name)
            else:
                operand = _on(operand, inputs)
        operands.append(operand)
    return type(expr)(*operands)


def _is_nested(operand: Any) -> bool:
    if isinstance(operand, dict):
        operand = list(operand.values())
    if not isinstance(operand, list | tuple):
        return False
    return any(isinstance(each, ArrayExpr) or _is_nested(each) for each in operand)
