"""Dask's tasks as functions of their blocks: how a task finds its blocks is resolved once.

::

    Task("c", f, TaskRef("b"), 2.0)      task({"b": block})     looks at each argument, each time
    bound(task, {"b": 0})                call(block)            knows where the block goes

As in Dask, each task has its own copy of its function and arguments, unless these are proven to be
the same at each call. In one process without workers, tasks share them, as in Dask too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from graphlib import TopologicalSorter
from typing import Any

import cloudpickle

from dask_dgpu.runtime.partials import FUNCTIONS
from graph_opt.dask_graph.functions import is_constant, is_stateless
from graph_opt.dask_graph.fusing import exchanged
from graph_opt.dask_graph.internals import (
    Alias,
    DataNode,
    GraphNode,
    TaskRef,
)
from graph_opt.passes import name_of

Array = Any
Function = Callable[..., Array]
Together = Callable[[Sequence[Sequence[Any]]], list[Array]]
"""A function of the arguments of many calls."""

Places = Mapping[Any, int]
"""The place of each block among the arguments of a function, by its name."""


def bound(node: Any, places: Places, *, copies: bool = False) -> Function:
    """Return a function of the blocks at these places that computes a task, or any other node.

    If it ``copies``, each call has its own copies of functions and values that may change.
    """
    if copies and not _is_own(node):
        return Copied.of(node, places)
    if isinstance(node, DataNode):
        return Bound(first, (node.value,))
    if isinstance(node, TaskRef | Alias):
        return Bound.of(first, [node], {}, places)
    if any(map(_is_node, node.kwargs.values())):
        return _evaluated(node, places)
    function, arguments = exchanged(node.func, FUNCTIONS) or node.func, node.args
    if node.has_subgraph():
        tasks, result, names, *arguments = node.args
        function = Chain.of(tasks, result, names, copies=copies)
    return Bound.of(function, arguments, node.kwargs, places)


def _is_own(node: Any) -> bool:
    """Whether a node, apart from the blocks that it reads, is the same at each call."""
    if isinstance(node, TaskRef | Alias):
        return True
    if isinstance(node, DataNode):
        return is_constant(node.value)
    if not isinstance(node, GraphNode):
        return is_stateless(node)
    arguments = node.args[3:] if node.has_subgraph() else node.args
    return is_stateless(node.func) and all(map(_is_own, (*arguments, *node.kwargs.values())))


def _is_node(argument: Any) -> bool:
    return isinstance(argument, GraphNode | TaskRef)


def first(value: Any) -> Any:
    """Return the only block, or a constant."""
    return value


@dataclass(frozen=True)
class Copied:
    """A task that is ``pickled``, and opened for each call.

    The ``function`` of the task tells what a call returns, and is never called; ``None`` if it may
    change.
    """

    pickled: bytes
    places: Places
    function: Function | None

    @classmethod
    def of(cls, node: Any, places: Places) -> Copied:
        """Return a task as it is now, before its first call."""
        function = getattr(node, "func", None)
        return cls(cloudpickle.dumps(node), places, function if is_stateless(function) else None)

    def __call__(self, *blocks: Array) -> Array:
        """Run a new copy of the task."""
        return bound(cloudpickle.loads(self.pickled), self.places)(*blocks)


def _evaluated(node: Any, places: Places) -> Function:
    """Return a function of the blocks at these places that lets Dask evaluate a node."""
    return partial(_evaluate, node, {name: places[name] for name in node.dependencies})


def _evaluate(node: Any, places: Places, *blocks: Array) -> Any:
    return node({name: blocks[at] for name, at in places.items()})


@dataclass(frozen=True)
class Bound:
    """A function of constants, blocks, and containers of blocks.

    ``arguments`` and ``options`` have the constants. ``blocks`` are numbers of arguments that are
    blocks, and their places, ``values`` numbers of arguments that are functions of the blocks.
    """

    function: Function
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    blocks: tuple[tuple[int, int], ...] = ()
    values: tuple[tuple[int, Function], ...] = ()

    @classmethod
    def of(
        cls,
        function: Function,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        places: Places,
    ) -> Function:
        """Bind the arguments of a task; those that are all blocks need no more than its options."""
        names = enumerate(map(_block, arguments))
        blocks = tuple((at, places[name]) for at, name in names if name is not None)
        others = [
            (at, each)
            for at, each in enumerate(arguments)
            if isinstance(each, GraphNode) and _block(each) is None
        ]
        in_order = tuple((at, at) for at in range(len(places)))
        if blocks == in_order and len(blocks) == len(arguments):
            return partial(function, **options) if options else function
        constants = (None if _is_node(each) else each for each in arguments)
        values = tuple((at, _evaluated(each, places)) for at, each in others)
        return cls(function, tuple(constants), options, blocks, values)

    def given(self, blocks: Sequence[Array]) -> list[Any]:
        """Return the arguments of the function, without options."""
        arguments = list(self.arguments)
        for at, place in self.blocks:
            arguments[at] = blocks[place]
        for at, value in self.values:
            arguments[at] = value(*blocks)
        return arguments

    def __call__(self, *blocks: Array) -> Array:
        """Call the function with all its arguments."""
        return self.function(*self.given(blocks), **self.options)


def _block(argument: Any) -> Any:
    """Return the name of the block that an argument is, ``None`` if it is none."""
    if isinstance(argument, TaskRef):
        return argument.key
    return argument.target if isinstance(argument, Alias) else None


@dataclass(frozen=True)
class Chain:
    """Tasks that Dask has fused: each value is freed after its last use.

    Values have places: first those of the blocks, then those of ``links``, each with the operation
    of its task, its function, the places of its arguments, and those that are free afterwards.
    """

    links: tuple[tuple[str, Function, tuple[int, ...], tuple[int, ...]], ...]
    result: int

    @classmethod
    def of(
        cls, tasks: Mapping[Any, Any], result: Any, names: Sequence[Any], *, copies: bool = False
    ) -> Chain:
        """Return the tasks that a result needs, in order; ``names`` are those of the blocks."""
        sorter = TopologicalSorter({key: task.dependencies for key, task in tasks.items()})
        needed, order = {result}, list[Any]()
        for key in reversed([*sorter.static_order()]):
            if key in needed and key not in names:
                needed |= tasks[key].dependencies
                order.append(key)
        order.reverse()
        places = {name: at for at, name in enumerate([*names, *order])}
        last = {name: key for key in order for name in tasks[key].dependencies}
        links = []
        for key in order:
            needs = list(tasks[key].dependencies)
            call = bound(tasks[key], {name: at for at, name in enumerate(needs)}, copies=copies)
            ends = [name for name in needs if last[name] == key and name != result]
            read, freed = (tuple(places[name] for name in each) for each in (needs, ends))
            links.append((name_of(key), call, read, freed))
        return cls(tuple(links), places[result])

    def __call__(self, *blocks: Array) -> Array:
        """Compute the result.

        An error has a note with the operation of its task: users do not know the fused task.
        """
        values: list[Any] = [*blocks]
        for name, call, needs, ends in self.links:
            try:
                values.append(call(*[values[at] for at in needs]))
            except Exception as error:
                error.add_note(f"in {name}")
                raise
            for at in ends:
                values[at] = None
        return values[self.result]


# what is known of a call before it


def arguments_of(call: Function, blocks: Sequence[Array]) -> Sequence[Any]:
    """Return what the function within a call is called with."""
    return call.given(blocks) if isinstance(call, Bound) else blocks


def together(calls: Sequence[Function]) -> Together | None:
    """Return what computes blocks by one call of a function that all of these ``calls`` share.

    That is its method ``together``; ``None`` if it has no such.
    """
    functions = [_within(call) for call in calls]
    if len({*map(id, functions)}) != 1:
        return None
    if any(isinstance(call, Bound) and call.options for call in calls):
        return None
    found: Together | None = getattr(functions[0], "together", None)
    return found


def has_copies(call: Function) -> bool:
    """Whether a call, or one within it, has its own copies of functions or values."""
    if isinstance(call, Chain):
        return any(has_copies(each) for _, each, _, _ in call.links)
    return isinstance(call, Copied) or (isinstance(call, Bound) and has_copies(call.function))


def last_function(call: Function) -> Function:
    """Return the function that returns the result of a call, the last one of fused tasks."""
    while True:
        if isinstance(call, Chain):
            *_, (_, call, _, _) = call.links or (("", first, (), ()),)
        elif isinstance(call, Copied | Bound) and call.function is not None:
            call = call.function
        else:
            return call


def of_one_block(call: Function) -> tuple[Function, Mapping[str, Any]] | None:
    """Return the function that a call calls with its only block, and its options."""
    if isinstance(call, Bound):
        return (
            (call.function, call.options) if len(call.arguments) == len(call.blocks) == 1 else None
        )
    return None if isinstance(call, Chain | Copied) else (call, {})


def _within(call: Function) -> Function:
    """Return the function that a call calls with its blocks."""
    return call.function if isinstance(call, Bound) else call
