"""Layer of an operation of our own, expanded to tasks on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from dask.highlevelgraph import Layer

from graph_opt.dask_graph.internals import GraphNode, cull
from graph_opt.model.layout import ArrayNode
from graph_opt.pieces.piece import Piece

Key = Any
Expand = Callable[[Any], tuple[str, Mapping[Any, GraphNode]]]


class DeferredLayer(Layer):
    """An operation of our own: a piece, and its fallback to tasks of plain Dask.

    The optimizer replaces the layer by the piece. Otherwise the layer expands to tasks at first
    use, usually in the scheduler's process.

    Parameters
    ----------
    piece : Piece
        The operation, with pickle support and a deterministic ``dask.tokenize`` token.
    expand : callable
        ``expand(piece)`` returns the name of an array with the chunks of the output, and
        the tasks, the same for all types of blocks.
    wanted : frozenset of tuple of int, optional
        Blocks of the output that others read, all by default.
    annotations : mapping of str to value, optional
        Dask's annotations for all tasks.
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
        """The result."""
        return self.piece.output

    def get_output_keys(self) -> set[Key]:
        """Return the keys of the wanted blocks."""
        wanted = self.output.indices if self.wanted is None else self.wanted
        return {(self.output.name, *index) for index in wanted}

    def is_materialized(self) -> bool:
        """Whether the tasks exist."""
        return self._tasks is not None

    @property
    def has_legacy_tasks(self) -> bool:
        """Never."""
        return False

    def cull(
        self, keys: Collection[Any], all_hlg_keys: Collection[Any]
    ) -> tuple[Layer, Mapping[Any, set[Any]]]:
        """Keep the tasks that the blocks in ``keys`` need."""
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
        """Return the tasks, created at the first call."""
        if self._tasks is None:
            name, tasks = self.expand(self.piece)
            named = {}
            for key, task in tasks.items():
                new = (self.output.name, *key[1:]) if key[0] == name else key
                # an Alias only changes its key if the mapping has it
                named[new] = task if new == key else task.substitute({key: new}, new)
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
