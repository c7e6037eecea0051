"""Block functions of Dask's own, as a program carries them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import cached_property
from typing import Any

import cloudpickle
from dask.highlevelgraph import Layer

from graph_opt.layout import Index

Array = Any
Task = Callable[[Mapping[Any, Array]], Array]


class Blockworks:
    """Dask's layers whose tasks make blocks, by the name of the array that each makes.

    Their functions may be whatever a user wrote. The scheduler hands programs on and has no
    use for them, so they are unpickled only where they are run; all at once, so that what
    many steps share travels once.

    Parameters
    ----------
    layers : mapping of str to Layer, optional
        Tasks are called with a mapping from keys to the blocks that they need.
    pickled : bytes, optional
        The same, pickled.
    """

    def __init__(self, layers: Mapping[str, Layer] | None = None, pickled: bytes = b"") -> None:
        if layers is not None:
            self._layers = {name: _bare(layer) for name, layer in layers.items()}
        self._pickled = pickled

    @cached_property
    def _layers(self) -> dict[str, Layer]:
        layers: dict[str, Layer] = cloudpickle.loads(self._pickled)
        return layers

    def tasks(self, name: str, blocks: Collection[Index]) -> dict[Index, Task]:
        """Return the tasks that make these blocks."""
        if not blocks:
            return {}
        layer, _ = self._layers[name].cull({(name, *index) for index in blocks}, ())
        return {index: layer[name, *index] for index in blocks}

    def __reduce__(self) -> Any:
        if not self._pickled:
            self._pickled = cloudpickle.dumps(self._layers)
        return type(self), (None, self._pickled)


def _bare(layer: Layer) -> Layer:
    """Return a layer without what only a client needs of it, nor tasks that it can make again."""
    bare = copy(layer)
    bare.annotations = bare.collection_annotations = None
    bare.__dict__.pop("_cached_dict", None)
    return bare
