"""Dask's tasks as functions of their blocks: how a task finds its blocks is resolved once.

::

    Task("c", f, TaskRef("b"), 2.0)      task({"b": block})     looks at each argument, each time
    bound(task, ["b"])                   call(block)            knows where the block goes

As in Dask, each task has its own copy of its function and arguments, unless these are proven to be
the same at each call. In one process without workers, tasks share them, as in Dask too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle

from graph_opt.dask_graph.functions import is_stateless
from graph_opt.dask_graph.internals import Alias, DataNode, GraphNode, Task, TaskRef
from graph_opt.model.recipe import Call

Array = Any
Key = Any


def bound(node: Any, names: Sequence[Key], *, copies: bool = False) -> Call:
    """Return the call, of blocks with these names, that computes a task or any other node.

    If it ``copies``, each call has its own copies of functions and values that may change.
    """
    if copies and not is_stateless(node):
        return Call(partial(_copied, cloudpickle.dumps(node), names), copied=True)
    if not isinstance(node, Task) or any(map(_is_node, node.kwargs.values())):
        return Call(partial(_evaluated, node, names))
    function, arguments = node.func, node.args
    if node.kwargs:
        function = partial(function, **node.kwargs)
    if [*map(_block, arguments)] == [*names]:
        return Call(function)
    return Call(function, arguments=Arguments.of(arguments, names))


def names_of(node: GraphNode) -> tuple[Key, ...]:
    """Return the names of the blocks that a node reads, in the order of its arguments."""
    given = map(_block, getattr(node, "args", ()))
    return tuple(dict.fromkeys([*(x for x in given if x is not None), *node.dependencies]))


def _copied(pickled: bytes, names: Sequence[Key], *blocks: Array) -> Any:
    """Run a new copy of a task."""
    return bound(cloudpickle.loads(pickled), names)(*blocks)


def _evaluated(node: Any, names: Sequence[Key], *blocks: Array) -> Any:
    """Let Dask evaluate a node."""
    known = dict(zip(names, blocks, strict=True))
    return known[node.key] if isinstance(node, TaskRef) else node(known)


def _is_node(argument: Any) -> bool:
    return isinstance(argument, GraphNode | TaskRef)


def _block(argument: Any) -> Any:
    """Return the name of the block that an argument is, ``None`` if it is none."""
    if isinstance(argument, TaskRef):
        return argument.key
    return argument.target if isinstance(argument, Alias) else None


@dataclass(frozen=True)
class Arguments:
    """The arguments of a task, from blocks with these ``names``.

    Some are ``fixed``. ``blocks`` are the numbers of arguments that are blocks, and the numbers of
    these; ``nodes`` are the numbers of arguments that Dask evaluates.
    """

    names: Sequence[Key]
    fixed: tuple[Any, ...]
    blocks: tuple[tuple[int, int], ...]
    nodes: tuple[tuple[int, GraphNode], ...]

    @classmethod
    def of(cls, arguments: Sequence[Any], names: Sequence[Key]) -> Arguments:
        """Return the arguments of a task."""
        places = {name: at for at, name in enumerate(names)}
        blocks, nodes, fixed = list[tuple[int, int]](), list[tuple[int, GraphNode]](), [*arguments]
        for at, each in enumerate(arguments):
            if isinstance(each, DataNode):
                fixed[at] = each.value
            elif (name := _block(each)) is not None:
                blocks.append((at, places[name]))
            elif isinstance(each, GraphNode):
                nodes.append((at, each))
        return cls(names, tuple(fixed), tuple(blocks), tuple(nodes))

    def __call__(self, blocks: Sequence[Array]) -> list[Any]:
        """Return the arguments for these blocks."""
        found = [*self.fixed]
        for at, block in self.blocks:
            found[at] = blocks[block]
        if self.nodes:
            known = dict(zip(self.names, blocks, strict=True))
            for at, node in self.nodes:
                found[at] = node(known)
        return found
