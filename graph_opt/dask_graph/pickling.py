"""Graphs as bytes: equal graphs have equal bytes.

Of known objects and of arrays only references are pickled, so that these stay where they are.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

import cloudpickle
import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer, MaterializedLayer

from graph_opt.dask_graph.internals import Alias, DataNode, Task, TaskRef
from graph_opt.model.layout import Bare
from graph_opt.model.parameter import as_parameter, varies

Key = Any
Array = Any
T = TypeVar("T")
Reference = tuple[Any, ...]
"""The number of an array, then what of it counts."""

MOST_BYTES = 1 << 16
"""Graphs with more bytes of arrays, besides blocks, are not compared: they hold data."""


class IncomparableError(Exception):
    """A graph holds what has no comparable bytes, or too much."""


class Arrays:
    """The arrays that are ``found`` in a graph."""

    def __init__(self) -> None:
        self.found: list[Array] = []
        self._numbers: dict[int, int] = {}
        self._left = MOST_BYTES

    def refer(self, array: Array) -> Reference | None:
        """Return the reference to an array: its number, dtype and shape, and a hash."""
        self._left -= array.nbytes
        if self._left < 0:
            raise IncomparableError("expected a graph without data")
        return *self.refer_block(array), blake2b(array.tobytes(), digest_size=16).digest()

    def refer_block(self, array: Array) -> Reference:
        """Return the reference to an array where it is a block, whose values do not count."""
        number = self._numbers.setdefault(id(array), len(self.found))
        if number == len(self.found):
            self.found.append(array)
        return number, repr(array.dtype), array.shape


@dataclass(frozen=True)
class _Block:
    """Stands for an array in place of a task, pickled as the ``reference`` to it.

    So pickle still has to see the array if a function holds it too, where its values count.
    """

    reference: Reference

    def __reduce__(self) -> Any:
        return _kept, (self.reference,)


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


def opened(data: bytes, known: Mapping[str, Any], arrays: Sequence[Array] = ()) -> Any:
    """Return what :func:`pickled` has pickled, with these ``known`` objects and ``arrays``."""
    return _Unpickler(data, known, arrays).load()


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
        if isinstance(obj, Layer) and type(obj).__reduce__ is object.__reduce__:
            if isinstance(obj, MaterializedLayer) and self._refer_block is not None:
                return _reduced_layer_with_blocks(obj, self._refer_block)
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
    def __init__(self, data: bytes, known: Mapping[str, Any], arrays: Sequence[Array]) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known
        self._arrays = arrays

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_kept.__module__, _kept.__qualname__):
            return self._look_up
        return super().find_class(module, name)

    def _look_up(self, reference: str | Reference) -> Any:
        return self._known[reference] if isinstance(reference, str) else self._arrays[reference[0]]


def _is_importable(obj: type) -> bool:
    if obj.__module__ == "builtins":
        return True
    found: Any = sys.modules.get(obj.__module__)
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj and obj.__module__ != "__main__"


def _reduced_task(task: Task) -> tuple[Any, ...]:
    given = task.key, task.func, task.args, task.kwargs, task.data_producer
    return _task, (type(task), *given)


def _reduced_layer(layer: Layer) -> tuple[Any, ...]:
    return _with_state, (type(layer), _state(layer))


def _reduced_layer_with_blocks(
    layer: MaterializedLayer, refer: Callable[[Array], Reference]
) -> tuple[Any, ...]:
    """Reduce a layer, with NumPy's arrays in place of tasks as references to blocks."""
    state, tasks = _state(layer), layer.mapping
    if not {np.ndarray, DataNode}.isdisjoint(map(type, tasks.values())):
        state["mapping"] = {key: _as_block(task, refer) for key, task in tasks.items()}
    return _with_state, (type(layer), state)


_REDUCED: dict[type, Callable[[Any], Any]] = {
    Alias: Alias.__reduce__,
    Blockwise: _reduced_layer,
    Task: _reduced_task,
    TaskRef: TaskRef.__reduce__,
    slice: slice.__reduce__,
}
"""The reductions of the most frequent types."""


def _as_block(task: Any, refer: Callable[[Array], Reference]) -> Any:
    """Return what stands for an array in place of a task, other tasks as they are."""
    value = task.value if isinstance(task, DataNode) else task
    if type(value) is not np.ndarray or value.dtype.hasobject:
        return task
    block = _Block(refer(value))
    return DataNode(task.key, block) if isinstance(task, DataNode) else block


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
