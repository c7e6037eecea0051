"""Calls that add the same layers again: Dask builds one of a kind, a template gives the others.

A call is known by its function and arguments: of arrays by their chunks and kind of blocks, and by
their values of all others, but for floats of operators: a loop has another step size each time::

    p + 0.3 * r  ->  mul, (a float, array 0: chunks, float32)
                     add, (array 0: chunks, float32; array 1: chunks, float32)

Dask builds a call that is made from this key alone, with stand-ins for arrays and floats. The
template is what it returns, as bytes with numbers in place of the names and floats of each call::

    x.sum()      stand-in     sum-<token of Dask>, reads "dgpu-input-0"
                 filled       sum-<MD5 of this token and "x-1f...">, reads "x-1f..."

Also the first call returns what the template gives: all calls of a kind have the same names, and
share no objects, so the scheduler finds the structure of a program that runs again. Calls with
functions of users or other arguments are left to Dask.
"""

from __future__ import annotations

import io
import marshal
import pickle
import re
import struct
import sys
from collections.abc import Sequence
from copyreg import __newobj__  # type: ignore[attr-defined]
from dataclasses import dataclass
from functools import cache, lru_cache, partial, wraps
from hashlib import md5
from math import isnan
from types import FunctionType
from typing import Any, NamedTuple

import dask
import numpy as np
from dask.array.core import Array
from dask.base import get_annotations
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.utils import typename

from graph_opt.dask_graph.functions import Function, is_constant
from graph_opt.dask_graph.internals import GraphNode, TaskRef
from graph_opt.dask_graph.parse import is_known
from graph_opt.dask_graph.sent import Pickler
from graph_opt.model.layout import CONTAINERS
from graph_opt.model.names import parted

STAND_IN = "dgpu-input-"
"""The prefix of the names of stand-ins."""

MARKS = [float(f"1.{i}0915965594177219e-7") for i in range(1, 5)]
"""Floats of stand-in calls, found in layers without doubt."""

MOST_TEMPLATES = 1024
"""The templates of a function that are kept."""

MOST_BYTES = 1 << 15
"""Larger layers are left to Dask, whose time they take anyway."""

NAME = re.compile(r"(.*-)([0-9a-f]{32})", re.DOTALL)
"""A name that ends in a token."""

TOKEN = re.compile("[0-9a-f]{32}")


class Input(NamedTuple):
    """What layers depend on of an array."""

    chunks: tuple[tuple[int, ...], ...]
    kind: type
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, array: Array) -> Input:
        """Return this of an array; raise if it is one of which more counts."""
        meta = array._meta
        if type(array.dask) is not HighLevelGraph or array.name not in array.dask.layers:
            raise pickle.PicklingError("expected an array with layers")
        if meta.dtype.metadata is not None:
            raise pickle.PicklingError("expected a dtype without metadata")
        return cls(array.chunks, type(meta), meta.dtype)

    def stand_in(self, number: int) -> Array:
        """Return an array of the kind without blocks.

        NaN is only equal to itself, so Dask has to build arrays with unknown chunks.
        """
        if typename(self.kind) not in CONTAINERS or isnan(sum(map(sum, self.chunks))):
            raise TypeError("expected blocks of NumPy or CuPy, and known chunks")
        meta = self.kind((0,) * len(self.chunks), self.dtype)
        return Array({}, f"{STAND_IN}{number}", self.chunks, meta=meta)


class CallKey(NamedTuple):
    """A call, as far as it decides what layers Dask builds.

    ``text`` are its pickled arguments, without arrays and floats of operators. ``places`` says
    which of the ``inputs`` is at a place, ``floats`` where the latter are.
    """

    text: bytes
    inputs: tuple[Input, ...]
    places: tuple[tuple[int, int], ...]
    floats: tuple[int, ...]

    @classmethod
    def of(
        cls, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[CallKey, dict[str, Array], list[float]]:
        """Return a call, its arrays by name, and its floats.

        Raises
        ------
        PicklingError, TypeError, AttributeError
            If it is not known by its key.
        """
        config = dask.config.config
        is_named = NAME.fullmatch(kwargs.get("name") or "") is not None
        if is_named or get_annotations() or config.get("array_plugins"):
            raise pickle.PicklingError("expected no annotations, plugins or name")
        given = [(i, value) for i, value in enumerate(args) if type(value) is Array]
        arrays = {array.name: array for _, array in given}
        order = list(arrays)
        places = [(at, order.index(array.name)) for at, array in given]
        # the values of floats do not count for their dtypes (NEP 50)
        first = args[0] if args else None
        any_number = type(first) is np.ufunc or getattr(first, "__module__", "") == "_operator"
        floats = [i for i, value in enumerate(args) if any_number and type(value) is float]
        del floats[len(MARKS) :]
        left = {*floats, *dict(given)}
        others = [None if i in left else value for i, value in enumerate(args)]
        file, settings = io.BytesIO(), (config.get("split_every"), config.get("array"))
        _Pickler(file, protocol=5).dump((others, kwargs, settings))
        inputs = tuple(map(Input.of, arrays.values()))
        call = cls(file.getvalue(), inputs, tuple(places), tuple(floats))
        return call, arrays, [args[at] for at in floats]

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments, with stand-ins for arrays and floats."""
        args, kwargs, _ = pickle.loads(self.text)
        arrays = [each.stand_in(number) for number, each in enumerate(self.inputs)]
        for at, number in self.places:
            args[at] = arrays[number]
        for at, mark in zip(self.floats, MARKS, strict=False):
            args[at] = mark
        return args, kwargs


class _Pickler(pickle.Pickler):
    """Writes values that nobody can change, and functions of known packages by their names."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        # the parts of a partial come here too
        if kind is partial or obj is partial or is_constant(obj):
            return NotImplemented
        is_known_function = kind is FunctionType and is_known(obj)
        # Dask gives ``blockwise`` a new ``lambda c: 1`` each time: code alone
        if is_known_function and not (obj.__closure__ or obj.__defaults__ or obj.__kwdefaults__):
            return _function, (marshal.dumps(obj.__code__), obj.__module__)
        raise pickle.PicklingError(f"expected a constant, got a {type(obj).__name__}")


def _function(code: bytes, module: str) -> FunctionType:
    return FunctionType(marshal.loads(code), vars(sys.modules[module]))


@cache
def replaying(function: Function) -> Function:
    """Wrap a function of Dask that returns an array, so that Dask builds one call of a kind."""
    template = lru_cache(MOST_TEMPLATES)(partial(_template, function))

    @wraps(function)
    def build(*args: Any, **kwargs: Any) -> Any:
        try:
            call, arrays, floats = CallKey.of(args, kwargs)
            known = template(call)
        except (pickle.PicklingError, TypeError, AttributeError):
            return function(*args, **kwargs)
        return function(*args, **kwargs) if known is None else known.filled(arrays, floats)

    return build


@dataclass(frozen=True)
class Template:
    """The layers of a call of stand-ins: pickled with the result's name, and what each reads.

    Beside the ``text``, which has their numbers, is what differs in each call: names of inputs,
    ``names`` of new layers, in two parts, and floats. What follows is ``shared`` by all calls of
    the kind: functions, chunks and other constants.
    """

    text: bytes
    names: tuple[tuple[str, str], ...]
    shared: list[Any]
    chunks: tuple[tuple[int, ...], ...]
    meta: Any

    def filled(self, arrays: dict[str, Array], floats: Sequence[float]) -> Array:
        """Return the array that Dask would return for a call of the kind, under another name."""
        own = repr((list(arrays), floats))
        names = [
            prefix + md5((token + own).encode(), usedforsecurity=False).hexdigest()
            for prefix, token in self.names
        ]
        opener = pickle.Unpickler(io.BytesIO(self.text))
        beside = [*arrays, *names, *floats, *self.shared]
        opener.persistent_load = beside.__getitem__  # type: ignore[method-assign]
        name, new, read = opener.load()
        layers: dict[str, Any] = {}
        dependencies: dict[str, set[str]] = {}
        for array in arrays.values():
            layers.update(array.dask.layers)
            dependencies.update(array.dask.dependencies)
        graph = HighLevelGraph({}, dependencies | read)
        graph.layers = layers | new
        result: Array = object.__new__(Array)
        result.dask, result._name, result._chunks, result._meta = (
            graph,
            name,
            self.chunks,
            self.meta,
        )
        return result


def _template(function: Function, call: CallKey) -> Template | None:
    """Return the template of a call, ``None`` if it has none."""
    try:
        args, kwargs = call.arguments()
        array = function(*args, **kwargs)
        inputs = [f"{STAND_IN}{i}" for i in range(len(call.inputs))]
        new = {name: layer for name, layer in array.dask.layers.items() if name not in inputs}
        marks = MARKS[: len(call.floats)]
        pickler = _LayersPickler([*inputs, *new, *marks])
        pickler.dump((array.name, new, {name: {*array.dask.dependencies[name]} for name in new}))
        text = pickler.file.getvalue()
        beside = pickle.dumps((pickler.shared, array.chunks))
        shared, chunks = pickle.loads(beside)  # no objects of this call
    except Exception:  # the call itself raises it again, with its own numbers
        return None
    parts = [(match[1], match[2]) for match in map(NAME.fullmatch, new) if match is not None]
    varying = [STAND_IN.encode(), *(struct.pack(order, m) for m in marks for order in ("<d", ">d"))]
    is_whole = (
        type(array) is Array
        and array.name in new
        and not isnan(sum(array.shape))
        and len(text) <= MOST_BYTES
        and len(parts) == len(new)
        and pickler.found.issuperset(marks)
        and not any(each in data for each in varying for data in (text, beside))
        and not (parted(text)[1] or parted(beside)[1])
        and not any(map(_is_special, new, new.values()))
    )
    return Template(text, (*parts,), shared, chunks, array._meta) if is_whole else None


class _LayersPickler(Pickler):
    """Pickles layers without what is ``varying``, or ``shared`` by all calls of a kind.

    ``found`` is what varies and occurs.
    """

    def __init__(self, varying: Sequence[str | float]) -> None:
        super().__init__(own={Blockwise: _state_of})
        self.varying = {each: i for i, each in enumerate(varying)}
        self.found: set[Any] = set()
        self.shared: list[Any] = []
        self.numbers: dict[Any, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        kind = type(obj)
        if (kind is str or kind is float) and obj in self.varying:
            self.found.add(obj)
            return self.varying[obj]
        if not _is_shared(obj):
            return None
        number = len(self.varying) + len(self.shared)
        at = self.numbers.setdefault(obj if kind is str else id(obj), number)
        if at == number:
            self.shared.append(obj)
        return at


def _state_of(layer: Blockwise) -> Any:
    """Reduce a layer to its attributes, without what Dask has derived; floats stay floats."""
    state = {name: each for name, each in vars(layer).items() if not name.startswith("_cached")}
    return __newobj__, (Blockwise,), state


def _is_shared(obj: Any) -> bool:
    """Whether it is text without a token, a function, a dtype, a slice, chunks, or an operand."""
    if type(obj) is str:
        return STAND_IN not in obj and TOKEN.search(obj) is None
    if type(obj) is tuple:
        return bool(obj) and all(type(each) is int or _is_shared(each) for each in obj)
    if type(obj) is TaskRef:
        return str(obj.key).startswith("__dask_blockwise__")
    is_constant = isinstance(obj, np.dtype | slice) or callable(obj)
    return is_constant and not isinstance(obj, GraphNode)


def _is_special(name: str, layer: Any) -> bool:
    """Whether a layer has annotations or caches, or depends on settings and may warn: a rechunk."""
    plain = type(layer) in (Blockwise, MaterializedLayer) and layer.annotations is None
    return not plain or name.startswith("rechunk")
