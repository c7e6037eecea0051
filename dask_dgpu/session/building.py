"""Calls that add the same layers again: Dask builds one of a kind, a template gives the others.

A call is known by its function and arguments: of arrays by their chunks and kind of blocks, and by
their values of all others, but for floats of operators: a loop has another step size each time::

    p + 0.3 * r  ->  mul, (a float, array 0: chunks, float32)
                     add, (array 0: chunks, float32; array 1: chunks, float32)

Dask builds the call of stand-ins: arrays of the same chunks and kinds, without blocks. So a
template holds nothing that the key does not hold. It is filled in with other names and numbers::

    x.sum()      stand-ins    sum-<token of Dask>, reads "dgpu-input-0"
                 filled       sum-<MD5 of this token and "x-1f...">, reads "x-1f..."

Also the first call returns what the template gives: all calls of a kind have the same names, and
share no objects, so the scheduler finds the structure of a program that runs again. Calls with
functions of users or other arguments are left to Dask.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial, wraps
from hashlib import md5
from itertools import chain
from math import isnan
from types import FunctionType
from typing import Any

import dask
import numpy as np
from dask.array.core import Array
from dask.base import get_annotations
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.utils import typename

from graph_opt.dask_graph.functions import LASTING, Function, is_of_module
from graph_opt.dask_graph.internals import Alias, DataNode, GraphNode, Task
from graph_opt.dask_graph.parse import is_known
from graph_opt.model.layout import CONTAINERS

MARKS = [float(f"1.{i}0915965594177219e-7") for i in range(1, 5)]
"""Numbers of stand-in calls, found among the arguments of layers without doubt."""

MOST_BYTES = 1 << 25
"""Memory for the templates of a function, about."""

LAYER_BYTES, TASK_BYTES = 8000, 800
"""Memory that a layer of a template takes, and a task in it, about."""

MOST_TASKS = 256
"""Layers with more tasks are left to Dask, whose time they take anyway."""

CACHED = ("shape", "numblocks", "ndim", "npartitions")
"""Properties of an array that Dask computes once, and that depend on its chunks alone."""

VALUES = {bool, int, float, complex, str, bytes, type(None)}
"""Types of arguments that are compared by their values, besides NumPy's own."""

STAND_IN = "dgpu-input-"
"""The prefix of the names of stand-ins."""

NAME = re.compile(r"(.*-)([0-9a-f]{32})$", re.DOTALL)
"""A name that ends in a token."""

_is_recording: ContextVar[bool] = ContextVar("dask_dgpu_is_recording", default=False)


class UnknownError(Exception):
    """The answer may not be the same again."""


@cache
def replaying(function: Function) -> Function:
    """Wrap a function of Dask that returns an array, so that Dask builds one call of a kind."""
    templates: dict[Hashable, Template | None] = {}  # None for kinds that have none
    nbytes = 0

    @wraps(function)
    def build(*args: Any, **kwargs: Any) -> Any:
        nonlocal nbytes
        try:
            call = _Call(args, kwargs)
            found = templates[call.key]
        except (UnknownError, TypeError):  # or an argument cannot be hashed
            return function(*args, **kwargs)
        except KeyError:
            found = _recorded(function, call, kwargs)
            nbytes += LAYER_BYTES if found is None else found.nbytes
            if nbytes > MOST_BYTES:
                templates.clear()
                nbytes = 0
            templates[call.key] = found
        return function(*args, **kwargs) if found is None else found.filled(call)

    return build


@cache
def joining(blockwise: Function) -> Function:
    """Wrap Dask's ``blockwise`` so that it declares as many blocks as it makes.

    Dask joins the blocks of an axis of length 1, as a selection leaves them, to broadcast it. It
    still declares all: results have the block twice, or lack it.
    """

    @wraps(blockwise)
    def build(*args: Any, **kwargs: Any) -> Any:
        pairs = list(zip(args[2::2], args[3::2], strict=False))
        kinds = [(ind, getattr(x, "chunks", None)) for x, ind in pairs]
        if kwargs.get("align_arrays", True) and any(each != kinds[0] for each in kinds):
            pairs = [(_joined(x) if ind is not None else x, ind) for x, ind in pairs]
        return blockwise(*args[:2], *chain.from_iterable(pairs), **kwargs)

    return build


def _joined(array: Any) -> Any:
    """Return an array with one block along each axis of length 1."""
    if not isinstance(array, Array):
        return array
    sizes = enumerate(array.chunks)
    axes = {axis: 1 for axis, each in sizes if len(each) > 1 and sum(each) == 1}
    return array.rechunk(axes) if axes else array


class _Call:
    """A call, as far as it decides what layers Dask builds.

    Attributes
    ----------
    key : hashable
        The same for all calls whose layers differ in names and numbers only.
    arrays : list of Array
        The arrays it reads, each once.
    numbers : list of float
        Floats that count by nothing but being floats.
    marked : list
        Its positional arguments, with marks instead of these numbers.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _is_recording.get() or get_annotations() or dask.config.get("array_plugins", ()):
            raise UnknownError
        self.arrays: list[Array] = []
        self.numbers: list[float] = []
        self.marked = list(args)
        self._places: dict[str, int] = {}
        # the values of floats do not count for their dtypes (NEP 50)
        first = args[0] if args else None
        any_number = type(first) is np.ufunc or getattr(first, "__module__", "") == "_operator"
        parts: list[Hashable] = []
        for at, value in enumerate(args):
            kind = type(value)
            if kind is Array:
                parts.append(self._array(at, value))
            elif kind is float and any_number and len(self.numbers) < len(MARKS):
                self.marked[at] = MARKS[len(self.numbers)]
                self.numbers.append(value)
                parts.append("number")
            else:
                parts.append(_part(value))
        parts += [(name, _part(value)) for name, value in kwargs.items()]
        self.key = tuple(parts), dask.config.get("split_every", None)

    def _array(self, at: int, array: Array) -> Hashable:
        name = array.name
        place = self._places.setdefault(name, len(self.arrays))
        if place == len(self.arrays):
            if type(array.dask) is not HighLevelGraph or name not in array.dask.layers:
                raise UnknownError
            if not _is_of_known_shape(array):
                raise UnknownError
            self.arrays.append(array)
        return place, array.chunks, _kind_of(array._meta)

    def stand_ins(self) -> list[Any]:
        """Return the arguments, with arrays of the same kinds but without blocks."""
        made = [
            Array({}, f"{STAND_IN}{at}", array.chunks, meta=array._meta)
            for at, array in enumerate(self.arrays)
        ]
        return [made[self._places[x.name]] if type(x) is Array else x for x in self.marked]


def _part(value: Any) -> Hashable:
    """Return the part of the key for an argument that is no array."""
    kind = type(value)
    if kind is float or kind is complex:
        return kind, repr(value)  # zeros have signs
    if kind is str and NAME.match(value):
        raise UnknownError  # it is another one each time
    if kind in VALUES:
        return kind, value
    lasts = kind in LASTING or (kind is FunctionType and "<" not in value.__qualname__)
    if lasts and is_of_module(value):
        return kind, value
    if kind is FunctionType and is_known(value) and _is_code_alone(value):
        return kind, value.__code__
    if kind is tuple or kind is list:
        return kind, *map(_part, value)
    if kind is slice:
        return kind, *map(_part, (value.start, value.stop, value.step))
    if kind is partial:
        return kind, *map(_part, (value.func, value.args, value.keywords))
    if kind is dict:
        return kind, *((name, _part(each)) for name, each in value.items())
    if isinstance(value, np.dtype) and value.metadata is None:
        return value
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if isinstance(value, type) or value is Ellipsis:
        return value
    if getattr(value, "size", None) == 0:
        return _kind_of(value), value.shape
    raise UnknownError


def _kind_of(block: Any) -> Hashable:
    """Return type, dtype and number of axes of a block of NumPy or CuPy."""
    if typename(type(block)) not in CONTAINERS or block.dtype.metadata is not None:
        raise UnknownError
    return type(block), block.dtype, block.ndim


def _is_code_alone(function: FunctionType) -> bool:
    """Whether a function is its code: Dask gives ``blockwise`` a new ``lambda c: 1`` each time."""
    return not (function.__closure__ or function.__defaults__ or function.__kwdefaults__)


@dataclass(frozen=True)
class Template:
    """The layers of a call of stand-ins.

    Parameters
    ----------
    inputs : list of str
        Names of the stand-ins.
    names : dict of str to (str, str)
        The names of the layers, in two parts: the second one is Dask's token.
    layers : dict of str to Layer
        Layers by these names, dependencies first.
    dependencies : dict of str to set of str
        Layers and stand-ins that each layer reads.
    name, chunks, meta, cached : object
        Of the result.
    """

    inputs: list[str]
    names: dict[str, tuple[str, ...]]
    layers: dict[str, Layer]
    dependencies: dict[str, set[str]]
    name: str
    chunks: tuple[tuple[int, ...], ...]
    meta: Any
    cached: dict[str, Any]

    def filled(self, call: _Call) -> Array:
        """Return the array that Dask would return for a call of the kind, under another name."""
        given = [array.name for array in call.arrays]
        own = repr((given, call.numbers))
        names = dict(zip(self.inputs, given, strict=True))
        for name, (prefix, token) in self.names.items():
            text = (token + own).encode()
            names[name] = prefix + md5(text, usedforsecurity=False).hexdigest()
        numbers = dict(zip(MARKS, call.numbers, strict=False))
        layers: dict[str, Layer] = {}
        dependencies: dict[str, set[str]] = {}
        for array in call.arrays:
            layers.update(array.dask.layers)
            dependencies.update(array.dask.dependencies)
        for name, layer in self.layers.items():
            layers[names[name]] = _renamed_layer(layer, names, numbers)
            dependencies[names[name]] = {names[each] for each in self.dependencies[name]}
        graph = HighLevelGraph({}, dependencies)
        graph.layers = layers
        found: Array = object.__new__(Array)
        found.dask = graph
        found._name = names[self.name]
        found._chunks = self.chunks
        found._meta = self.meta
        found.__dict__.update(self.cached)
        return found

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        mappings = [x.mapping for x in self.layers.values() if isinstance(x, MaterializedLayer)]
        return LAYER_BYTES * len(self.layers) + TASK_BYTES * sum(map(len, mappings))


def _recorded(function: Function, call: _Call, kwargs: Any) -> Template | None:
    """Return the template of a call, ``None`` if its layers cannot be renamed."""
    before = _is_recording.set(True)
    try:
        return _template(function(*call.stand_ins(), **kwargs), call)
    except Exception:  # the call itself raises it again, with its own numbers
        return None
    finally:
        _is_recording.reset(before)


def _template(found: Any, call: _Call) -> Template | None:
    inputs = [f"{STAND_IN}{at}" for at in range(len(call.arrays))]
    if type(found) is not Array or found.name in inputs or not _is_of_known_shape(found):
        return None
    layers = {name: _bare(x) for name, x in found.dask.layers.items() if name not in inputs}
    parts = {name: match.groups() for name in layers if (match := NAME.match(name))}
    if parts.keys() != layers.keys() or any(name.startswith("rechunk") for name in layers):
        return None  # a rechunk depends on settings, and may warn
    if not all(_is_renamable(layer, MARKS[: len(call.numbers)]) for layer in layers.values()):
        return None
    cached = {name: getattr(found, name) for name in CACHED}
    read = {name: set(found.dask.dependencies[name]) for name in layers}
    # It shares no objects with the arrays of the first call, as it shares none with later ones.
    layers, chunks, cached = pickle.loads(pickle.dumps((layers, found.chunks, cached)))
    return Template(inputs, parts, layers, read, found.name, chunks, found._meta, cached)


def _is_of_known_shape(array: Array) -> bool:
    """Whether an array has no unknown chunks: their NaN counts as equal to itself alone."""
    return not isnan(sum(array.shape))


def _is_renamable(layer: Layer, marks: Sequence[float]) -> bool:
    """Whether all names in a layer are found, and these numbers among what it passes on."""
    if layer.annotations is not None:
        return False
    if type(layer) is Blockwise:
        literals: list[Any] = [value for value, ind in layer.indices if ind is None]
        floats = {value for value in literals if type(value) is float}
        plain = type(layer.task) is Task and not (layer.io_deps or layer.output_blocks)
        return plain and floats.issuperset(marks)
    if type(layer) is not MaterializedLayer or marks or len(layer.mapping) > MOST_TASKS:
        return False
    return all(map(_is_plain, layer.mapping.values()))


def _is_plain(value: Any) -> bool:
    """Whether the keys in a task are found: in tuples and lists, and in Dask's nodes."""
    if isinstance(value, GraphNode):
        return type(value) in (Task, Alias, DataNode)
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return not isinstance(value, dict | set | frozenset)


def _bare(layer: Any) -> Any:
    """Return a copy of a layer without what Dask has derived from it."""
    bare = object.__new__(type(layer))
    bare.__dict__ = {name: each for name, each in vars(layer).items() if name[0] != "_"}
    return bare


def _renamed_layer(layer: Any, names: Mapping[str, str], numbers: Mapping[float, float]) -> Any:
    """Return a copy of a layer with other names, and other numbers as literals."""
    new = object.__new__(type(layer))
    new.__dict__ = changed = vars(layer).copy()
    if layer.collection_annotations is not None:
        changed["collection_annotations"] = dict(layer.collection_annotations)
    if isinstance(layer, MaterializedLayer):
        changed["mapping"] = {
            _renamed(key, names): _renamed(task, names) for key, task in layer.mapping.items()
        }
        return new
    task = layer.task
    changed["output"] = name = names[layer.output]
    changed["task"] = Task(name, task.func, *task.args, **task.kwargs)
    changed["numblocks"] = {names[old]: each for old, each in layer.numblocks.items()}
    changed["indices"] = tuple(
        [(_operand(x, ind, names, numbers), ind) for x, ind in layer.indices]
    )
    return new


def _operand(x: Any, ind: Any, names: Mapping[str, str], numbers: Mapping[float, float]) -> Any:
    if ind is not None:
        return names[x]
    return numbers.get(x, x) if type(x) is float else x


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    kind = type(value)
    if kind is tuple:
        if value and type(value[0]) is str and value[0] in names:  # a key
            return names[value[0]], *value[1:]
        return tuple([_renamed(each, names) for each in value])
    if kind is list:
        return [_renamed(each, names) for each in value]
    if kind is str:
        return names.get(value, value)
    if isinstance(value, GraphNode):
        keys = {key: _renamed(key, names) for key in value.dependencies}
        return value.substitute(keys, key=_renamed(value.key, names))
    return value
