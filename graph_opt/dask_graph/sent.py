"""Graphs on their way to the scheduler: bytes without names, opened only if these are unknown.

::

    client     layers  ->  bytes with numbered tokens, tokens, arrays
    scheduler  known bytes:  the optimized graph gets the tokens
               other bytes:  layers, optimized

So the graph of a loop's next step is pickled once, and no layer of it exists on the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dask.highlevelgraph import HighLevelGraph, Layer

from graph_opt.dask_graph.renaming import Canonical, split

Key = Any
Array = Any


class SentGraph(HighLevelGraph):
    """A graph in the ``form`` in which it was sent; looking at its layers opens it."""

    def __init__(self, form: Canonical) -> None:
        self.form = form

    def __getattr__(self, name: str) -> Any:
        if name not in HighLevelGraph.__annotations__ or "layers" in vars(self):
            raise AttributeError(name)
        vars(self).update(vars(self.form.graph()))
        return getattr(self, name)

    def __reduce__(self) -> Any:
        form = self.form
        return _received, (form.pickled, b"".join(form.tokens), form.arrays)


def _received(text: bytes, tokens: bytes, arrays: tuple[Array, ...]) -> SentGraph:
    return SentGraph(Canonical(text, tuple(split(tokens)), arrays))


def expression(
    kind: type[Any], graph: SentGraph, optimizer: Any, keys: Sequence[Any], token: str
) -> Any:
    """Return the expression of Dask, of one ``kind``, that computes these keys of a graph."""
    return kind(graph, optimizer, keys, _determ_token=token)


class Layers(Mapping[str, Layer]):
    """Some layers of a graph, which is opened if someone looks one up, and others."""

    def __init__(
        self, graph: HighLevelGraph, names: Collection[str], others: Mapping[str, Layer]
    ) -> None:
        self._graph = graph
        self._names = names
        self._others = others

    def __getitem__(self, name: str) -> Layer:
        return self._others[name] if name in self._others else self._graph.layers[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._names
        yield from self._others

    def __len__(self) -> int:
        return len(self._names) + len(self._others)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)
