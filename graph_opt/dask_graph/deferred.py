"""One operation on arrays, kept whole until somebody needs its tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import product
from typing import Any

from dask.highlevelgraph import Layer

from graph_opt.dask_graph.internals import Alias, GraphNode, cull
from graph_opt.model.node import ArrayNode
from graph_opt.pieces.piece import Piece

Key = Any
Expand = Callable[[Any], tuple[str, Mapping[Any, GraphNode]]]


class DeferredLayer(Layer):
    """An operation of our own: a piece, and plain Dask's tasks for it.

    The optimizer takes the piece. Without it the layer expands to the tasks of the
    plain-Dask fallback at first use, as a rule in the scheduler's process.

    Parameters
    ----------
    piece : Piece
        The operation; it can be pickled and has a stable ``dask.tokenize`` token.
    expand : callable
        ``expand(piece)`` returns the name of an array with the chunks of the output, and
        the tasks. They are the same for every type of blocks.
    wanted : frozenset of tuple of int, optional
        Blocks of the output that somebody reads, all by default.
    annotations : mapping of str to value, optional
        Those of Dask, for all tasks.
    """

    def __init__(
        self,
        piece: Piece,
        expand: Expand,
        wanted: frozenset[tuple[int, ...]] | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(annotations=annotations)
        self.piece = piece
        self.expand = expand
        self.wanted = wanted
        self._tasks: dict[Key, GraphNode] | None = None

    @property
    def output(self) -> ArrayNode:
        """The array that is computed."""
        return self.piece.output

    def get_output_keys(self) -> set[Key]:
        """Keys that other layers may read."""
        wanted: Collection[tuple[int, ...]] | None = self.wanted
        if wanted is None:
            wanted = set(product(*(range(len(sizes)) for sizes in self.output.chunks)))
        return {(self.output.name, *index) for index in wanted}

    def is_materialized(self) -> bool:
        """Whether the tasks exist already."""
        return self._tasks is not None

    @property
    def has_legacy_tasks(self) -> bool:
        """Never."""
        return False

    def cull(
        self, keys: Collection[Any], all_hlg_keys: Collection[Any]
    ) -> tuple[Layer, Mapping[Any, set[Any]]]:
        """Keep what the wanted blocks need."""
        outputs = self.get_output_keys()
        kept = outputs & set(keys)
        if not kept:
            return self, {}
        layer = self
        if kept != outputs:
            wanted = frozenset(key[1:] for key in kept)
            layer = DeferredLayer(self.piece, self.expand, wanted, self.annotations)
            layer.collection_annotations = self.collection_annotations
            layer._tasks = cull(self.tasks(), kept)
        return layer, {key: set(task.dependencies) for key, task in layer.items()}

    def tasks(self) -> dict[Key, GraphNode]:
        """Make the tasks, once."""
        if self._tasks is None:
            name, tasks = self.expand(self.piece)
            named = {}
            for key, task in tasks.items():
                mine = (self.output.name, *key[1:]) if key[0] == name else key
                named[mine] = _renamed(task, mine)
            self._tasks = named if self.wanted is None else cull(named, self.get_output_keys())
        return self._tasks

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tasks": None}

    def __getitem__(self, key: Any) -> GraphNode:
        return self.tasks()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tasks())

    def __len__(self) -> int:
        return len(self.tasks())


def _renamed(task: GraphNode, key: Key) -> GraphNode:
    if key == task.key:
        return task
    if isinstance(task, Alias):  # Dask leaves its key when it substitutes nothing
        return Alias(key, task.target)
    return task.substitute({}, key=key)
