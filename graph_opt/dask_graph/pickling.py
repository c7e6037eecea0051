"""Graphs as bytes: equal graphs have equal bytes.

Of known objects and of arrays only references are pickled, so that these stay where they are. The
blocks of an array in memory are data, whose values do not count. A graph that is opened for all
values has placeholders for them, so nothing that is made of it can hold or depend on a value.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

import cloudpickle
import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer, MaterializedLayer

from graph_opt.dask_graph.functions import named
from graph_opt.dask_graph.internals import Alias, ArrayOverlapLayer, DataNode, Task, TaskRef
from graph_opt.model.layout import Bare
from graph_opt.model.parameter import as_parameter, varies

Key = Any
Array = Any
T = TypeVar("T")
Reference = tuple[Any, ...]
"""The number of an array, then what of it counts."""

ARRAY = "dask.array.core.Array"
"""The type of the collection that declares blocks."""

KINDS = (ArrayOverlapLayer, Blockwise, MaterializedLayer)
"""Layers whose attributes are all that their tasks depend on. Caches among these are left out."""

MOST_BYTES = 1 << 16
"""Graphs with more bytes of arrays, besides blocks, are not compared: they hold data."""


class IncomparableError(Exception):
    """A graph holds what has no comparable bytes, or too much."""


class Arrays:
    """The arrays that are ``found`` in a graph; the values of some are ``counted``."""

    def __init__(self) -> None:
        self.found: list[Array] = []
        self.counted: list[Array] = []
        self._numbers: dict[int, int] = {}
        self._left = MOST_BYTES

    def refer(self, array: Array) -> Reference | None:
        """Return the reference to an array: its number, dtype and shape, and a hash."""
        self._left -= array.nbytes
        if self._left < 0:
            raise IncomparableError("expected a graph without data")
        self.counted.append(array)
        return *self.refer_block(array), blake2b(array.tobytes(), digest_size=16).digest()

    def refer_block(self, array: Array) -> Reference:
        """Return the reference to an array where it is a block, whose values do not count."""
        number = self._numbers.setdefault(id(array), len(self.found))
        if number == len(self.found):
            self.found.append(array)
        return number, repr(array.dtype), array.shape


@dataclass(frozen=True)
class Block:
    """Stands for a block of data, pickled as the ``reference`` to it.

    Pickle still has to see the array if a function holds it too: there its values count.
    """

    reference: Reference

    def __reduce__(self) -> Any:
        raise IncomparableError("expected blocks of data to be inputs of gangs")


def pickled(
    value: Any,
    known: Mapping[str, Any] | None = None,
    *own: Any,
    refer: Callable[[Array], Reference | None] | None = None,
    refer_block: Callable[[Array], Reference] | None = None,
) -> bytes:
    """Pickle a graph, or a part of it, so that equal graphs have equal bytes.

    Objects that are ``known`` are pickled as their names. ``own`` are further reductions, functions
    that return what ``__reduce__`` returns, or ``NotImplemented``. Of arrays for which ``refer``
    returns a reference, this is pickled, and that of ``refer_block`` where they are blocks.
    """
    file = io.BytesIO()
    _Pickler(file, known or {}, own, refer, refer_block).dump(value)
    return file.getvalue()


def opened(
    data: bytes, known: Mapping[str, Any], arrays: Sequence[Array] = (), *, blank: bool = False
) -> Any:
    """Return what :func:`pickled` has pickled, with these ``known`` objects and ``arrays``.

    If ``blank``, blocks of data are :class:`Block`, the same for all values.
    """
    return _Unpickler(data, known, arrays, blank).load()


class _Pickler(cloudpickle.CloudPickler):
    def __init__(
        self,
        file: io.BytesIO,
        known: Mapping[str, Any],
        own: tuple[Callable[[Any], Any], ...],
        refer: Callable[[Array], Reference | None] | None,
        refer_block: Callable[[Array], Reference] | None,
    ) -> None:
        super().__init__(file, protocol=5)
        self._names = {id(each): name for name, each in known.items()}
        self._own = own
        self._refer = refer
        self._refer_block = refer_block
        self._left = MOST_BYTES

    def reducer_override(self, obj: Any) -> Any:
        for reduce in self._own:
            if (found := reduce(obj)) is not NotImplemented:
                return found
        frequent = _REDUCED.get(type(obj))
        if frequent is not None and id(obj) not in self._names:
            return frequent(obj)
        reference = self._reference(obj)
        if reference is not None:
            return _kept, (reference,)
        if isinstance(obj, Task):
            return _reduced_task(obj)
        if isinstance(obj, Bare):  # even if it is one text for others: that hides arrays
            return _with_state, (type(obj), obj.__getstate__())
        if type(obj) is MaterializedLayer and self._refer_block is not None:
            return _reduced_layer_with_blocks(obj, self._refer_block)
        if type(obj) in KINDS:
            return _reduced_layer(obj)
        if isinstance(obj, np.ndarray) or hasattr(obj, "__cuda_array_interface__"):
            self._left -= obj.nbytes
            if self._left < 0:
                raise IncomparableError("expected a graph without data")
        if isinstance(obj, type) and not _is_importable(obj):
            raise IncomparableError(f"expected a class that can be imported, got {obj!r}")
        return super().reducer_override(obj)

    def _reference(self, obj: Any) -> str | Reference | None:
        """Return the reference to an object that stays where it is."""
        if type(obj) is np.ndarray and self._refer is not None and not obj.dtype.hasobject:
            return self._refer(obj)
        return self._names.get(id(obj))


def _kept(reference: str | Reference) -> Any:
    """Stand for the method of :class:`_Unpickler`.

    A persistent ID would do too, but pickle asks for that of every string and number.
    """
    raise pickle.UnpicklingError(f"expected opened() to look up {reference!r}")


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, data: bytes, known: Mapping[str, Any], arrays: Sequence[Array], blank: bool
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known
        self._arrays = arrays
        self._blank = blank

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_kept.__module__, _kept.__qualname__):
            return self._look_up
        return super().find_class(module, name)

    def _look_up(self, reference: str | Reference) -> Any:
        if isinstance(reference, str):
            return self._known[reference]
        if self._blank and len(reference) == _OF_BLOCK:
            return Block(reference)
        return self._arrays[reference[0]]


def _is_importable(obj: type) -> bool:
    return obj.__module__ == "builtins" or (named(obj) is obj and obj.__module__ != "__main__")


def _reduced_task(task: Task) -> tuple[Any, ...]:
    given = task.key, task.func, task.args, task.kwargs, task.data_producer
    return _task, (type(task), *given)


def _reduced_layer(layer: Layer) -> tuple[Any, ...]:
    return _with_state, (type(layer), _state(layer))


def _reduced_layer_with_blocks(
    layer: MaterializedLayer, refer: Callable[[Array], Reference]
) -> tuple[Any, ...]:
    """Reduce a layer, with arrays that it declares as its blocks as references to these."""
    state = _state(layer)
    if _is_data(layer):
        state["mapping"] = {key: _as_block(task, refer) for key, task in layer.mapping.items()}
    return _with_state, (type(layer), state)


def _is_data(layer: MaterializedLayer) -> bool:
    """Whether a layer is an array in memory: each of its tasks is a block of it.

    Other layers have arrays beside their tasks, such as the values and indices that ``setitem``
    assigns.
    """
    facts = layer.collection_annotations or {}
    if facts.get("type") != ARRAY:
        return False
    length = 1 + len(facts["chunks"])
    return all(
        type(key) is tuple and len(key) == length and _data(task) is not None
        for key, task in layer.mapping.items()
    )


def _data(task: Any) -> Array | None:
    """Return the array that is in place of a task, ``None`` for other tasks."""
    value = task.value if type(task) is DataNode else task
    is_array = type(value) is Block or (type(value) is np.ndarray and not value.dtype.hasobject)
    return value if is_array else None


def _as_block(task: Any, refer: Callable[[Array], Reference]) -> Any:
    """Return the placeholder of an array in place of a task."""
    value = _data(task)
    block = value if type(value) is Block else Block(refer(value))
    return DataNode(task.key, block) if type(task) is DataNode else block


def _reduced_block(block: Block) -> tuple[Any, ...]:
    return _kept, (block.reference,)


_OF_BLOCK = 3
"""Length of the reference to a block: those to counted arrays are longer, restored ones shorter."""

_REDUCED: dict[type, Callable[[Any], Any]] = {
    Alias: Alias.__reduce__,
    Block: _reduced_block,
    Blockwise: _reduced_layer,
    Task: _reduced_task,
    TaskRef: TaskRef.__reduce__,
    slice: slice.__reduce__,
}
"""The reductions of the most frequent types."""


def _task(cls: type[Task], key: Key, func: Any, args: Any, kwargs: Any, producer: bool) -> Task:
    task: Task = object.__new__(cls)
    Task.__init__(task, key, func, *args, _data_producer=producer, **kwargs)
    return task


def _state(layer: Layer) -> dict[str, Any]:
    """Return a layer's attributes, without those that depend on who has looked at it.

    Numbers among the operands become parameters.
    """
    state = {name: value for name, value in vars(layer).items() if name != "_cached_dict"}
    if type(layer) is Blockwise and any(index is None and varies(x) for x, index in layer.indices):
        state["indices"] = tuple(
            (as_parameter(x) if index is None and varies(x) else x, index)
            for x, index in layer.indices
        )
    return state | {"_cached_keys": None} if "_cached_keys" in state else state


def _with_state(cls: type[T], state: dict[str, Any]) -> T:
    """Return an object of a class with these attributes."""
    found = cls.__new__(cls)
    vars(found).update(state)
    return found
