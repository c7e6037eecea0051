"""Graphs with the same structure: equal bytes, once the tokens in their names are numbered.

::

    add-53fa9c...        add-000...00                 add-000...00
      |                    |            optimize        |               restore
    sum-91b2d0...  --->  sum-000...01  --------->     dgpu-gang-7c...  -------->  real names

Dask ends the names of arrays with a token, which differs for the same code on other data. The
optimizer works on a graph with numbered tokens, so that its result holds for every graph with the
same structure. Tokens that it creates become functions of themselves and of the real tokens of what
they stand for: a gang has the same name in every graph with its arrays.

Numbers that layers pass to the functions of their blocks, such as step sizes, are tokens too
(:mod:`graph_opt.model.parameter`). NumPy arrays have numbers and stay where they are: the restored
graph has the arrays of the present one. Their values do not count where they are blocks of data:
the graph that is optimized has placeholders for these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from graph_opt.dask_graph.layers import DeferredLayer
from graph_opt.dask_graph.pickling import (
    KINDS,
    Arrays,
    IncomparableError,
    Reference,
    opened,
    pickled,
)

Key = Any
Array = Any
Created = Mapping[bytes, Sequence[bytes]]
"""The tokens that new tokens stand for."""

TOKEN_LENGTH = 32
"""A token has so many hexadecimal digits, and no further one beside it."""

_IS_DIGIT = bytes(byte in b"0123456789abcdef" for byte in range(256))

MOST_TASKS = 20_000
"""Graphs with more tasks in their layers are not compared: reading them takes too long."""

MOST_TEXT = 1 << 24
"""Graphs with more bytes of anything are not compared either."""

COMPARABLE = (*KINDS, DeferredLayer)
"""The kinds of layers that hold all that their tasks depend on."""


@dataclass(frozen=True)
class Canonical:
    """A graph and the requested keys, pickled with numbered ``tokens`` and ``arrays``."""

    pickled: bytes
    tokens: tuple[bytes, ...]
    arrays: tuple[Array, ...] = ()

    @classmethod
    def of(cls, graph: HighLevelGraph, keys: Iterable[Key]) -> Canonical:
        """Return the canonical form of a graph.

        Raises
        ------
        IncomparableError
            If the graph is large, holds data, layers of other kinds or classes that cannot be
            imported, or if a requested key is not of one of its layers.
        """
        for name, layer in graph.layers.items():
            if type(layer) not in COMPARABLE:
                raise IncomparableError(f"expected known kinds of layers, got {name}")
        large = (x for x in graph.layers.values() if isinstance(x, MaterializedLayer))
        if sum(map(len, large)) > MOST_TASKS:
            raise IncomparableError("expected a small graph")
        numbers = {name: at for at, name in enumerate(graph.layers)}
        needed = [sorted(map(numbers.__getitem__, graph.dependencies[name])) for name in numbers]
        arrays = Arrays()
        whole = list(graph.layers.items()), needed, _ordered(keys, numbers)
        text = pickled(whole, refer=arrays.refer, refer_block=arrays.refer_block)
        if len(text) > MOST_TEXT:
            raise IncomparableError("expected a graph with few bytes")
        if any(parted(array.tobytes("A"))[1] for array in arrays.counted):
            raise IncomparableError("expected arrays without what looks like a token")
        text, tokens = numbered(text)
        return cls(text, tuple(tokens), tuple(arrays.found))

    def open(self) -> tuple[HighLevelGraph, list[Key]]:
        """Return the graph with numbered tokens and no data, and its requested keys."""
        return self._opened(self.pickled, blank=True)

    def graph(self) -> HighLevelGraph:
        """Return the graph with real tokens."""
        return self._opened(restored(self.pickled, self.tokens))[0]

    def _opened(self, text: bytes, *, blank: bool = False) -> tuple[HighLevelGraph, list[Key]]:
        layers, needed, keys = opened(text, {}, self.arrays, blank=blank)
        names = [name for name, _ in layers]
        read = ({names[at] for at in numbers} for numbers in needed)
        return HighLevelGraph(dict(layers), dict(zip(names, read, strict=True))), keys

    def refer(self, array: Array) -> Reference | None:
        """Return the reference to one of the arrays, ``None`` for another."""
        number = self._numbers.get(id(array))
        return None if number is None else (number,)

    def restored(self, data: bytes, stand_for: Created | None = None) -> bytes:
        """Return pickled data about this graph with real tokens instead of numbered ones.

        New tokens ``stand_for`` others, by default for all of the graph.
        """
        for token, numbered in (stand_for or {}).items():
            own = [self._restored_token(each) for each in numbered]
            self._real[token] = _derived(token, b"".join(own))
        pieces, numbered = parted(data)
        return _joined(pieces, map(self._restored_token, numbered))

    def key(self, key: Key) -> Key:
        """Return the real key of a key with a numbered token."""
        name, *index = key if isinstance(key, tuple) else (key,)
        real = self.restored(name.encode()).decode() if isinstance(name, str) else name
        return (real, *index) if isinstance(key, tuple) else real

    def _restored_token(self, token: bytes) -> bytes:
        if token not in self._real:
            self._real[token] = _derived(token, self._all)
        return self._real[token]

    @cached_property
    def _real(self) -> dict[bytes, bytes]:
        return {b"%032x" % at: token for at, token in enumerate(self.tokens)}

    @cached_property
    def _all(self) -> bytes:
        return b"".join(self.tokens)

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {id(array): at for at, array in enumerate(self.arrays)}


def _derived(token: bytes, real: bytes) -> bytes:
    """Return the real form of a new token that stands for these ones."""
    return blake2b(token + real, digest_size=16).hexdigest().encode()


def numbered(text: bytes) -> tuple[bytes, list[bytes]]:
    """Return pickled data with a number in place of each token, and the tokens in order."""
    pieces, tokens = parted(text)
    numbers = {token: b"%032x" % at for at, token in enumerate(dict.fromkeys(tokens))}
    return _joined(pieces, map(numbers.__getitem__, tokens)), list(numbers)


def restored(text: bytes, tokens: Sequence[bytes]) -> bytes:
    """Return data that :func:`numbered` has returned, with these tokens."""
    pieces, numbers = parted(text)
    return _joined(pieces, (tokens[int(number, 16)] for number in numbers))


def parted(text: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the text around all tokens, and the tokens.

    A regular expression takes eight times as long to find them.
    """
    is_digit = np.frombuffer(b"\0" + text.translate(_IS_DIGIT) + b"\0", np.int8)
    edges = np.flatnonzero(is_digit[1:] != is_digit[:-1])
    starts, ends = edges[::2], edges[1::2]
    pieces, tokens, end = [], [], 0
    for start in starts[ends - starts == TOKEN_LENGTH].tolist():
        pieces.append(text[end:start])
        end = start + TOKEN_LENGTH
        tokens.append(text[start:end])
    return [*pieces, text[end:]], tokens


def _joined(pieces: list[bytes], tokens: Iterable[bytes]) -> bytes:
    """Return the text of which these are parts."""
    text = [b""] * (2 * len(pieces) - 1)
    text[::2], text[1::2] = pieces, tokens
    return b"".join(text)


def split(tokens: bytes) -> list[bytes]:
    """Return joined tokens one by one."""
    return [tokens[at : at + TOKEN_LENGTH] for at in range(0, len(tokens), TOKEN_LENGTH)]


def _ordered(keys: Iterable[Key], numbers: Mapping[str, int]) -> list[Key]:
    """Return keys in the order of their layers: Dask has them in a set."""

    def place(key: Key) -> tuple[int, tuple[int, ...]]:
        name, *index = key if isinstance(key, tuple) else (key,)
        if name not in numbers:
            raise IncomparableError(f"expected a key of a layer, got {key!r}")
        return numbers[name], tuple(index)

    return sorted(keys, key=place)
