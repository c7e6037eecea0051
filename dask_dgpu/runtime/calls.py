"""Dask's tasks as functions of their blocks: how a task finds its blocks is resolved once.

::

    Task("c", f, TaskRef("b"), 2.0)      task({"b": block})     looks at each argument, each time
    bound(task, {"b": 0})                call(block)            knows where the block goes

As in Dask, each task has its own copy of its function and arguments, unless these are proven to be
the same at each call. In one process without workers, tasks share them, as in Dask too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import cloudpickle

from dask_dgpu.runtime.in_place import in_place
from dask_dgpu.runtime.partials import FUNCTIONS
from graph_opt.dask_graph import internals as dask_task
from graph_opt.dask_graph.exchanging import exchanged
from graph_opt.dask_graph.functions import is_constant, is_stateless
from graph_opt.dask_graph.layers import name_of

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
    if isinstance(node, dask_task.TaskRef):
        return Ordered(first, (places[node.key],))
    if isinstance(node, dask_task.Alias):
        return Ordered(first, (places[node.target],))
    if isinstance(node, dask_task.DataNode):
        if copies and not is_constant(node.value):
            return Copied.of(node, places)
        return Bound(first, (node.value,))
    function, arguments = exchanged(node.func, FUNCTIONS) or node.func, node.args
    if node.has_subgraph():
        tasks, result, names, *arguments = node.args
        function = Chain.of(tasks, result, names, copies=copies)
    elif copies and not _is_own(function, node):
        return Copied.of(node, places)
    keys = [name for each in arguments if (name := _block(each)) is not None]
    if len(keys) < len(arguments) or node.kwargs:
        return Bound.of(function, arguments, node.kwargs, places, copies=copies)
    function = in_place(function)
    order = tuple(places[key] for key in keys)
    return function if order == tuple(range(len(places))) else Ordered(function, order)


def _is_own(function: Function, node: Any) -> bool:
    """Whether a task's function and its arguments, nodes aside, are the same at each call."""
    values = (*node.args, *node.kwargs.values())
    return is_stateless(function) and all(_is_node(each) or is_stateless(each) for each in values)


def changing(*_: Any) -> NoReturn:
    """Stand for a function that may change."""
    raise TypeError("expected a copy of the task to be called")


def first(value: Any) -> Any:
    """Return the only block, or a constant."""
    return value


def arguments_of(call: Function, blocks: Sequence[Array]) -> Sequence[Any]:
    """Return what the function within a call is called with."""
    return call.given(blocks) if isinstance(call, Ordered | Bound) else blocks


@dataclass(frozen=True)
class Copied:
    """A task that is ``pickled``, and opened for each call.

    The ``function`` of the task tells what a call returns, and is never called. It is
    :func:`changing` if that of the task may change.
    """

    pickled: bytes
    places: Places
    function: Function

    @classmethod
    def of(cls, node: Any, places: Places) -> Copied:
        """Return a task as it is now, before its first call."""
        function = getattr(node, "func", changing)
        known = is_stateless(function)
        return cls(cloudpickle.dumps(node), places, function if known else changing)

    def __call__(self, *blocks: Array) -> Array:
        """Run a new copy of the task."""
        return bound(cloudpickle.loads(self.pickled), self.places)(*blocks)


@dataclass(frozen=True)
class Ordered:
    """A function of some blocks, by their places."""

    function: Function
    order: tuple[int, ...]

    def __call__(self, *blocks: Array) -> Array:
        """Call the function."""
        return self.function(*self.given(blocks))

    def given(self, blocks: Sequence[Array]) -> list[Array]:
        """Return the arguments of the function."""
        return [blocks[at] for at in self.order]

    def once(self) -> list[int]:
        """Return the places of blocks that are one argument."""
        return [at for at in self.order if self.order.count(at) == 1]


@dataclass(frozen=True)
class Bound:
    """A function of constants, blocks, and containers of blocks.

    ``arguments`` and ``options`` have the constants. ``blocks`` are numbers of arguments that are
    blocks, and their places; ``values`` and ``named`` arguments and options that are functions of
    the blocks. ``whole`` are the places of arguments and in lists of arguments, as often as they
    are there, ``parts`` those that other functions read.
    """

    function: Function
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] | None = None
    blocks: tuple[tuple[int, int], ...] = ()
    values: tuple[tuple[int, Function], ...] = ()
    named: tuple[tuple[str, Function], ...] = ()
    whole: tuple[int, ...] = ()
    parts: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        function: Function,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        places: Places,
        *,
        copies: bool = False,
    ) -> Bound:
        """Bind the arguments of a task."""
        blocks, values, constants = [], [], list(arguments)
        for at, each in enumerate(arguments):
            if (name := _block(each)) is not None:
                blocks.append((at, places[name]))
            elif isinstance(each, dask_task.GraphNode):
                values.append((at, bound(each, places, copies=copies)))
            else:
                continue
            constants[at] = None
        nodes = {key: each for key, each in options.items() if _is_node(each)}
        named = tuple((key, bound(x, places, copies=copies)) for key, x in nodes.items())
        plain = {key: each for key, each in options.items() if key not in nodes}
        if not (options or any(isinstance(each, dask_task.List) for each in arguments)):
            function = in_place(function)
        whole, parts = _uses(arguments, nodes.values(), places)
        facts = tuple(constants), plain, tuple(blocks), tuple(values), named
        return cls(function, *facts, whole, parts)

    def once(self) -> Collection[int]:
        """Return the places of blocks that are one argument, or in one list."""
        return {at for at in self.whole if self.whole.count(at) == 1} - self.parts

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
        arguments = self.given(blocks)
        if not self.options and not self.named:
            return self.function(*arguments)
        named = {key: value(*blocks) for key, value in self.named}
        return self.function(*arguments, **(self.options or {}), **named)


def _block(argument: Any) -> Any:
    """Return the name of the block that an argument is, ``None`` if it is none."""
    if isinstance(argument, dask_task.TaskRef):
        return argument.key
    return argument.target if isinstance(argument, dask_task.Alias) else None


def _uses(
    arguments: Iterable[Any], options: Iterable[Any], places: Places
) -> tuple[tuple[int, ...], frozenset[int]]:
    """Return the places of blocks that a function gets as they are, and of those in nodes."""
    whole: list[Any] = []
    parts: list[Any] = []
    for each in arguments:
        within = each if isinstance(each, dask_task.List) else [each]
        names = [_block(inner) for inner in within]
        if None not in names:
            whole += names
        elif isinstance(each, dask_task.GraphNode):
            parts += each.dependencies
    for each in options:
        parts += each.dependencies if isinstance(each, dask_task.GraphNode) else [each.key]
    return tuple(places[name] for name in whole), frozenset(places[name] for name in parts)


def _is_node(argument: Any) -> bool:
    return isinstance(argument, dask_task.GraphNode | dask_task.TaskRef)


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
        order = list(_ordered(tasks, result, names))
        places = {name: at for at, name in enumerate([*names, *order])}
        needed, links = {places[result]}, []
        for key in reversed(order):
            needs = list(tasks[key].dependencies)
            call = bound(tasks[key], {name: at for at, name in enumerate(needs)}, copies=copies)
            read = tuple(places[name] for name in needs)
            links.append((name_of(key), call, read, tuple({*read} - needed)))
            needed.update(read)
        return cls(tuple(reversed(links)), places[result])

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


def _ordered(tasks: Mapping[Any, Any], result: Any, names: Sequence[Any]) -> Iterator[Any]:
    """Yield the keys of the tasks that a result needs, each after those that it needs itself."""
    known, waiting = {*names}, [result]
    while waiting:
        key = waiting[-1]
        missing = [] if key in known else [n for n in tasks[key].dependencies if n not in known]
        waiting += missing
        if not missing:
            waiting.pop()
            if key not in known:
                known.add(key)
                yield key
