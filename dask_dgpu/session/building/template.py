"""The layers that Dask adds for a call, kept to be filled with other names.

Dask derives the name of a layer from a token, the MD5 of a text with the names of what it reads::

    x.sum()      text          "(b'...', ('x-1f...',), ...)"
                 name          "sum-" + MD5 of it
                 layer         Blockwise: "sum-..." reads "x-1f..."

So a call with other arrays of the same kind has the same layers, with other names: texts and names
have gaps, for the names of arrays, for numbers, and for tokens.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from math import isnan
from typing import Any

from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dask_dgpu.session.building.layers import (
    bare_layer,
    is_renamable,
    new_layers,
    reads_several,
    renamed_layer,
)

CACHED = ("shape", "numblocks", "ndim", "npartitions")
"""Properties of an array that Dask computes once, and that depend on its chunks alone."""

LAYER_BYTES, TASK_BYTES = 8000, 800
"""Memory that a layer of a template takes, and a task in it, about."""

NAME = re.compile(r"[\w-]*-[0-9a-f]{32}$")
"""A name that ends in a token."""

Gaps = dict[str, int]
"""The number of each gap, by what filled it when the template was recorded."""


@dataclass(frozen=True)
class Text:
    """A text with gaps.

    Parameters
    ----------
    parts : list of str or int
        Strings, and the numbers of gaps.
    """

    parts: list[Any]

    @classmethod
    def of(cls, text: str, gaps: Gaps) -> Text:
        """Return a text with gaps where it has the keys of ``gaps``."""
        parts: list[Any] = [text]
        for gap, number in gaps.items():
            if gap in text:
                parts = [piece for part in parts for piece in _split(part, gap, number)]
        return cls(parts)

    def filled(self, values: Sequence[str]) -> str:
        """Return the text with a value in each gap."""
        return "".join([values[part] if type(part) is int else part for part in self.parts])

    @property
    def gaps(self) -> set[int]:
        """Numbers of the gaps."""
        return {part for part in self.parts if isinstance(part, int)}


def _split(part: str | int, gap: str, number: int) -> Iterator[str | int]:
    """Yield the pieces of a part, with a number in place of each gap."""
    if isinstance(part, int):
        yield part
        return
    for i, piece in enumerate(part.split(gap)):
        if i:
            yield number
        yield piece


@dataclass(frozen=True)
class Template:
    """The layers of a call.

    Parameters
    ----------
    inputs : list of str
        Names of the arrays it was recorded with.
    numbers : list of float
        Numbers it was recorded with.
    tokens : list of Text
        What tokens are computed from, each after those it has a gap for.
    names : dict of str to Text
        Name of each layer, with gaps.
    layers : dict of str to Layer
        Layers by the names they were recorded with.
    first : list of str
        Those of several arrays; Dask puts them before the layers of these, others after.
    dependencies : dict of str to set of str
        Layers and arrays that each layer reads.
    name : str
        Name of the result when it was recorded.
    chunks, meta, cached : object
        Of the result.
    """

    inputs: list[str]
    numbers: list[float]
    tokens: list[Text]
    names: dict[str, Text]
    layers: dict[str, Layer]
    first: list[str]
    dependencies: dict[str, set[str]]
    name: str
    chunks: tuple[tuple[int, ...], ...]
    meta: Any
    cached: dict[str, Any]

    def filled(self, arrays: Sequence[Array], numbers: Sequence[float]) -> Array:
        """Return the array that Dask would return for other arrays and numbers of the same kind."""
        given = [array.name for array in arrays]
        values = given + [repr(number) for number in numbers]
        for text in self.tokens:
            values.append(md5(text.filled(values).encode(), usedforsecurity=False).hexdigest())
        names = dict(zip(self.inputs, given, strict=True))
        names |= {old: text.filled(values) for old, text in self.names.items()}
        replaced = dict(zip(self.numbers, numbers, strict=True))
        new = {names[old]: renamed_layer(x, names, replaced) for old, x in self.layers.items()}
        layers = {names[old]: new.pop(names[old]) for old in self.first}
        dependencies = {
            names[old]: {names[each] for each in read} for old, read in self.dependencies.items()
        }
        for array in arrays:
            layers.update(array.dask.layers)
            dependencies.update(array.dask.dependencies)
        layers |= new
        graph = HighLevelGraph({}, dependencies)
        graph.layers = layers
        return self._array(graph, names[self.name])

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        mappings = [x.mapping for x in self.layers.values() if isinstance(x, MaterializedLayer)]
        return LAYER_BYTES * len(self.layers) + TASK_BYTES * sum(map(len, mappings))

    def _array(self, graph: HighLevelGraph, name: str) -> Array:
        found: Array = object.__new__(Array)
        found.dask = graph
        found._name = name
        found._chunks = self.chunks
        found._meta = self.meta
        found.__dict__.update(self.cached)
        return found


class NoTemplateError(Exception):
    """A call has layers that cannot be renamed."""


def template_of(
    found: Any, arrays: Sequence[Array], numbers: Sequence[float], texts: Mapping[str, str]
) -> Template:
    """Return the template of a call.

    Parameters
    ----------
    found : object
        What Dask returned.
    arrays, numbers : sequence
        What the call was given; each array and number once.
    texts : mapping of str to str
        Tokens that Dask computed, in order, and the texts that they are computed from.

    Raises
    ------
    NoTemplateError
        If Dask returned no new array, or if its layers cannot be renamed.
    """
    inputs = [array.name for array in arrays]
    if type(found) is not Array or found.name in inputs or not is_of_known_shape(found):
        raise NoTemplateError
    layers = new_layers(found, inputs)
    gaps = {name: i for i, name in enumerate([*inputs, *map(repr, numbers)])}
    given = len(gaps)
    tokens = []
    for token, text in texts.items():
        gapped = Text.of(text, gaps)
        if gapped.gaps:
            gaps[token] = len(gaps)
            tokens.append(gapped)
    names = {name: Text.of(name, gaps) for name in layers}
    filled = set().union(*(text.gaps for text in tokens))
    if not (filled.issuperset(range(given)) and all(name.gaps for name in names.values())):
        raise NoTemplateError  # names would be the same for other arrays or numbers
    if not all(is_renamable(layer, numbers) for layer in layers.values()):
        raise NoTemplateError
    if any(name.startswith("rechunk") for name in layers):  # depends on settings, and may warn
        raise NoTemplateError
    places = {name: f"template-{i}" for i, name in enumerate([*inputs, *layers])}
    bare = [renamed_layer(bare_layer(layer), places, {}) for layer in layers.values()]
    cached = {name: getattr(found, name) for name in CACHED}
    # It shares no objects with the arrays of the first call, as it shares none with later ones.
    bare, chunks, cached = pickle.loads(pickle.dumps((bare, found.chunks, cached)))
    return Template(
        [places[name] for name in inputs],
        list(numbers),
        tokens,
        {places[name]: text for name, text in names.items()},
        dict(zip([places[name] for name in layers], bare, strict=True)),
        [places[name] for name, layer in reversed(layers.items()) if reads_several(layer)],
        {places[name]: {places[each] for each in found.dask.dependencies[name]} for name in layers},
        places[found.name],
        chunks,
        found._meta,
        cached,
    )


def is_of_known_shape(array: Array) -> bool:
    """Whether an array has no unknown chunks: their NaN counts as equal to itself alone."""
    return not isnan(sum(array.shape))


def is_token_name(name: str) -> bool:
    """Whether a name ends in a token, so that it is found in texts without doubt."""
    return NAME.match(name) is not None
