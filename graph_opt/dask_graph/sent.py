"""Graphs on their way to the scheduler: bytes without names, opened only if these are unknown.

::

    client     layers       ->  bytes with numbered tokens; tokens, arrays
    scheduler  known bytes  ->  the optimized graph gets the tokens and arrays
               other bytes  ->  layers, optimized

Equal graphs have equal bytes. Arrays stay beside the bytes. The values of blocks of an array in
memory do not count: a graph that is opened for all values has placeholders for them, so nothing
that is made of it can hold or depend on one. Other arrays count by a hash of their values.
"""

from __future__ import annotations

import io
import logging
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copyreg import __newobj__  # type: ignore[attr-defined]
from dataclasses import dataclass
from functools import partial, wraps
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import cloudpickle
import numpy as np
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.internals import (
    Alias,
    ArrayOverlapLayer,
    DataNode,
    HLGExpr,
    Task,
    TaskRef,
)
from graph_opt.dask_graph.layers import DeferredLayer
from graph_opt.model.layout import Bare
from graph_opt.model.names import as_parameter, numbered, parted, restored, varies

logger = logging.getLogger(__name__)

Key = Any
Array = Any
Function = Callable[..., Any]
Reduction = tuple[Any, ...]
"""What ``__reduce__`` returns."""
Reduce = Callable[[Any], Reduction]

NOTHING: Mapping[Any, Any] = MappingProxyType({})

COMPARABLE = (ArrayOverlapLayer, Blockwise, MaterializedLayer, DeferredLayer)
"""The kinds of layers that hold all that their tasks depend on."""

MOST_TASKS = 20_000
"""Graphs with more tasks in their layers are not compared: reading them takes too long."""

MOST_BYTES = 1 << 16
"""Graphs with a larger array, besides blocks, are not compared: they hold data."""

SENT = "_dgpu_sent"
"""The attribute of an expression with its graph as it is sent."""


class IncomparableError(Exception):
    """A graph holds what has no comparable bytes, or too much."""


class SentGraph(HighLevelGraph):
    """A graph and its requested keys in comparable form; looking at its layers opens it.

    Attributes
    ----------
    text : bytes
        Both, pickled with numbered tokens: equal for all graphs of a structure.
    tokens : bytes
        The real tokens, in the order of their numbers.
    arrays : tuple of ndarray
        The arrays that the text refers to.
    sources : list
        The keys of layers that depend on none: their blocks may be in memory.
    """

    def __init__(
        self, text: bytes, tokens: bytes, arrays: tuple[Array, ...], sources: list[Key]
    ) -> None:
        self.text = text
        self.tokens = tokens
        self.arrays = arrays
        self.sources = sources

    @classmethod
    def of(cls, graph: HighLevelGraph, keys: Iterable[Key]) -> SentGraph:
        """Return a graph in comparable form.

        Raises
        ------
        IncomparableError
            If the graph is large, holds data, layers of other kinds or classes that cannot be
            imported.
        KeyError
            If a requested key is not of one of its layers.
        """
        for name, layer in graph.layers.items():
            if type(layer) not in COMPARABLE:
                raise IncomparableError(f"expected known kinds of layers, got {name}")
        tables = {n: x for n, x in graph.layers.items() if isinstance(x, MaterializedLayer)}
        if sum(map(len, tables.values())) > MOST_TASKS:
            raise IncomparableError("expected a small graph")
        numbers = {name: i for i, name in enumerate(graph.layers)}
        needed = [sorted(map(numbers.__getitem__, graph.dependencies[name])) for name in numbers]
        arrays = Arrays()
        own = {np.ndarray: arrays.reduced, MaterializedLayer: arrays.reduced_layer}
        text = pickled((list(graph.layers.items()), needed, _ordered(keys, numbers)), own=own)
        sources = [key for n, x in tables.items() if not graph.dependencies[n] for key in x]
        return cls(*numbered(text), tuple(arrays), sources)

    def open(self, *, real: bool = False) -> tuple[HighLevelGraph, list[Key]]:
        """Return the graph and its requested keys, with numbered tokens and no data or the real."""
        text = self.restored(self.text) if real else self.text
        layers, needed, keys = opened(text, self.arrays, blank=not real)
        names = [name for name, _ in layers]
        read = ({names[at] for at in numbers} for numbers in needed)
        return HighLevelGraph(dict(layers), dict(zip(names, read, strict=True))), keys

    def restored(self, data: bytes) -> bytes:
        """Return pickled data about this graph with real tokens instead of numbered ones."""
        return restored(data, self.tokens)

    def __getattr__(self, name: str) -> Any:
        if name not in HighLevelGraph.__annotations__ or "layers" in vars(self):
            raise AttributeError(name)
        vars(self).update(vars(self.open(real=True)[0]))
        return getattr(self, name)

    def __reduce__(self) -> Any:
        return SentGraph, (self.text, self.tokens, self.arrays, self.sources)


def sending(original: Function, optimizers: type, hurry: Callable[[], None]) -> Function:
    """Wrap ``HLGExpr.__reduce__``: what these optimizers read is pickled as a :class:`SentGraph`.

    Before that call ``hurry``. Other graphs, and those that cannot be compared, are pickled as
    before.
    """

    @wraps(original)
    def __reduce__(self: Any) -> Any:
        if not isinstance(self.low_level_optimizer, optimizers):
            return original(self)
        hurry()
        keys, graph = self.__dask_keys__(), vars(self).get(SENT)
        if graph is None:  # Dask pickles functions of a notebook twice
            try:
                graph = vars(self)[SENT] = SentGraph.of(self.hlg, {*flatten(keys)})
            except Exception:  # Dask says what cannot be pickled
                logger.debug("a graph is sent with all names", exc_info=True)
                return original(self)
        # that of compute() adds a task to the graph of another expression
        kind: Any = type(self) if isinstance(self.dsk, HighLevelGraph) else HLGExpr
        given = graph, self.low_level_optimizer, keys
        return partial(kind, _determ_token=self.deterministic_token), given

    return __reduce__


def pickled(
    value: Any, known: Mapping[Any, Any] = NOTHING, own: Mapping[type, Reduce] = NOTHING
) -> bytes:
    """Pickle a graph, or what is made of it, so that equal graphs have equal bytes.

    Objects that are ``known`` are pickled as their names. ``own`` are further reductions by type.
    """
    pickler = Pickler(known, own)
    pickler.dump(value)
    return pickler.file.getvalue()


def opened(data: bytes, known: Mapping[Any, Any] | Sequence[Any], *, blank: bool = False) -> Any:
    """Return what :func:`pickled` has pickled, with these ``known`` objects by their names.

    If ``blank``, blocks of data are :class:`Block`, the same for all values.
    """
    return _Unpickler(data, known, blank).load()


@dataclass(frozen=True)
class Block:
    """Stands for a block of data, pickled as the ``reference`` to it.

    Pickle still has to see the array if a function holds it too: there its values count.
    """

    reference: tuple[int, str, tuple[int, ...]]

    def __reduce__(self) -> Any:
        raise IncomparableError("expected blocks of data to be inputs of gangs")


class Arrays(list[Array]):
    """The arrays of a graph: blocks, and others, whose values count."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[int, int] = {}

    def reduced(self, array: Array) -> Reduction:
        """Reduce an array to its number, dtype and shape, and a hash."""
        if array.dtype.hasobject:
            return NotImplemented
        _check_size(array)
        if parted(array.tobytes("A"))[1]:  # programs have it in their bytes
            raise IncomparableError("expected arrays without what looks like a token")
        digest = blake2b(array.tobytes(), digest_size=16).digest()
        return _kept, (*self._block(array).reference, digest)

    def reduced_layer(self, layer: MaterializedLayer) -> Reduction:
        """Reduce a layer; the values of blocks do not count if each of its tasks is one."""
        # others have arrays beside their tasks, such as what ``setitem`` assigns
        if any(_data(task) is None for task in layer.mapping.values()):
            return _reduced_layer(layer)
        blocks = {key: self._as_block(task) for key, task in layer.mapping.items()}
        return _reduced_layer(layer, mapping=blocks)

    def _as_block(self, task: Any) -> Any:
        """Return the placeholder of an array in place of a task."""
        block = self._block(_data(task))
        return DataNode(task.key, block) if type(task) is DataNode else block

    def _block(self, array: Array) -> Block:
        number = self._numbers.setdefault(id(array), len(self))
        if number == len(self):
            self.append(array)
        return Block((number, repr(array.dtype), array.shape))


class Pickler(cloudpickle.CloudPickler):
    """Writes what :func:`pickled` returns."""

    def __init__(
        self, known: Mapping[Any, Any] = NOTHING, own: Mapping[type, Reduce] = NOTHING
    ) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=5)
        self._names = {id(each): name for name, each in known.items()}
        self._reduced = {**_REDUCED, **own}

    def reducer_override(self, obj: Any) -> Any:
        """Reduce an object to what its copies have in common."""
        reduce = self._reduced.get(type(obj))
        if reduce is not None and (reduced := reduce(obj)) is not NotImplemented:
            return reduced
        if id(obj) in self._names:
            return _kept, (self._names[id(obj)],)
        if isinstance(obj, Task):
            return _reduced_task(obj)
        if isinstance(obj, Bare):  # even if it is one text for others: that hides arrays
            return __newobj__, (type(obj),), obj.__getstate__()
        if isinstance(obj, np.ndarray) or hasattr(obj, "__cuda_array_interface__"):
            _check_size(obj)
        if isinstance(obj, type) and not _is_importable(obj):
            raise IncomparableError(f"expected a class that can be imported, got {obj!r}")
        return super().reducer_override(obj)


def _kept(name: Any, *facts: Any) -> Any:
    """Stand for the method of :class:`_Unpickler`.

    A persistent ID would do too, but pickle asks for that of every string and number.
    """
    raise pickle.UnpicklingError(f"expected opened() to look up {name!r}")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, known: Any, blank: bool) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known
        self._blank = blank

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_kept.__module__, _kept.__qualname__):
            return self._look_up
        return super().find_class(module, name)

    def _look_up(self, name: Any, *facts: Any) -> Any:
        if self._blank and len(facts) == 2:  # of a counted array also a hash
            return Block((name, *facts))
        return self._known[name]


def _check_size(array: Array) -> None:
    if array.nbytes > MOST_BYTES:
        raise IncomparableError("expected a graph without data")


def _ordered(keys: Iterable[Key], numbers: Mapping[str, int]) -> list[Key]:
    """Return keys in the order of their layers: Dask has them in a set."""

    def place(key: Key) -> tuple[int, tuple[int, ...]]:
        name, *index = key if isinstance(key, tuple) else (key,)
        return numbers[name], tuple(index)

    return sorted(keys, key=place)


def _is_importable(obj: type) -> bool:
    return obj.__module__ == "builtins" or (named(obj) is obj and obj.__module__ != "__main__")


def named(value: Any) -> Any:
    """Return what the module of a function or class has under its name, ``None`` if nothing."""
    current: Any = sys.modules.get(value.__module__)
    for name in (getattr(value, "__qualname__", None) or value.__name__).split("."):  # of a ufunc
        current = getattr(current, name, None)
    return current


def _data(task: Any) -> Array | None:
    """Return the array that is in place of a task, ``None`` for other tasks."""
    value = task.value if type(task) is DataNode else task
    return value if type(value) is np.ndarray and not value.dtype.hasobject else None


def _reduced_task(task: Task) -> Reduction:
    if type(task) is Task and not (task.kwargs or task.data_producer):
        return Task, (task.key, task.func, *task.args)
    return _task, (type(task), task.key, task.func, task.args, task.kwargs, task.data_producer)


def _task(cls: type[Task], key: Key, func: Any, args: Any, kwargs: Any, producer: bool) -> Task:
    task: Task = object.__new__(cls)
    Task.__init__(task, key, func, *args, _data_producer=producer, **kwargs)
    return task


def _reduced_layer(layer: Layer, **changes: Any) -> Reduction:
    """Reduce a layer to its attributes, without those that depend on who has looked at it.

    Numbers among the operands become parameters.
    """
    state = vars(layer) | changes
    state.pop("_cached_dict", None)
    if type(layer) is ArrayOverlapLayer:
        state["_cached_keys"] = None
    elif any(index is None and varies(x) for x, index in state.get("indices", ())):
        state["indices"] = tuple(
            (as_parameter(x) if index is None and varies(x) else x, index)
            for x, index in state["indices"]
        )
    return __newobj__, (type(layer),), state


_REDUCED: dict[type, Reduce] = {
    Alias: Alias.__reduce__,
    ArrayOverlapLayer: _reduced_layer,
    Block: lambda block: (_kept, block.reference),
    Blockwise: _reduced_layer,
    MaterializedLayer: _reduced_layer,
    Task: _reduced_task,
    TaskRef: TaskRef.__reduce__,
    slice: lambda each: (slice, (each.start, each.stop, each.step)),
}
"""Reductions by type. What Dask derives, such as hashes, is computed again."""
