"""Dask's tasks as functions of their blocks; most are called with these as they are.

::

    Task("c", f, TaskRef("b"))           task({"b": block})     looks at each argument, each time
    bound(task, ["b"])                   call(block)            knows that it is f(block)

As in Dask, each task has its own copy of its function and arguments, unless these are proven to be
the same at each call. In one process without workers, tasks share them, as in Dask too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import cloudpickle

from graph_opt.dask_graph.functions import is_stateless
from graph_opt.dask_graph.internals import Alias, GraphNode, Task, TaskRef
from graph_opt.model.recipe import Call

Array = Any
Key = Any


def bound(node: Any, names: Sequence[Key], *, copies: bool = False) -> Call:
    """Return the call, of blocks with these names, that computes a task or any other node.

    If it ``copies``, each call has its own copies of functions and values that may change.
    """
    if copies and not is_stateless(node):
        return Call(partial(_copied, cloudpickle.dumps(node), names), copied=True)
    kwargs = getattr(node, "kwargs", {})
    if not isinstance(node, Task) or any(
        isinstance(x, GraphNode | TaskRef) for x in kwargs.values()
    ):
        return Call(partial(_evaluated, node, names))
    function, arguments = node.func, node.args
    if kwargs:
        function = partial(function, **kwargs)
    if [*map(_block, arguments)] == [*names]:
        return Call(function)
    return Call(function, arguments=partial(_given, arguments, names))


def names_of(node: GraphNode) -> tuple[Key, ...]:
    """Return the names of the blocks that a node reads, in the order of its arguments."""
    given = map(_block, getattr(node, "args", ()))
    return tuple(dict.fromkeys([*(x for x in given if x is not None), *node.dependencies]))


def _copied(pickled: bytes, names: Sequence[Key], *blocks: Array) -> Any:
    """Run a new copy of a task."""
    return bound(cloudpickle.loads(pickled), names)(*blocks)


def _evaluated(node: Any, names: Sequence[Key], *blocks: Array) -> Any:
    """Let Dask evaluate a node."""
    (found,) = _given([node], names, blocks)
    return found


def _given(arguments: Sequence[Any], names: Sequence[Key], blocks: Sequence[Array]) -> list[Any]:
    """Return the arguments of a task for these blocks."""
    known = dict(zip(names, blocks, strict=True))
    return [
        known[x.key] if isinstance(x, TaskRef) else x(known) if isinstance(x, GraphNode) else x
        for x in arguments
    ]


def _block(argument: Any) -> Any:
    """Return the name of the block that an argument is, ``None`` if it is none."""
    if isinstance(argument, TaskRef):
        return argument.key
    return argument.target if isinstance(argument, Alias) else None
