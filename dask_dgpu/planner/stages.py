"""Layers as plain Dask runs them, and the workers that it chooses for their tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from graph_opt.dask_graph.layers import name_of
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.work import array, block_nbytes
from graph_opt.model.layout import ArrayNode
from graph_opt.model.piece import Piece

Key = Any
Places = Mapping[Key, int]
"""The numbers of the workers with blocks that are known to exist."""


@dataclass(frozen=True)
class Stage:
    """A layer after Dask's fusion, or a piece.

    ``read`` are the blocks that it reads, and ``needs`` those that each task reads. ``seconds``
    are the work of one task, and ``aliases`` the tasks that only rename a block.
    """

    name: str
    read: AbstractSet[Key]
    needs: Mapping[Key, Collection[Key]]
    seconds: float = 0.0
    piece: Piece | None = None
    aliases: AbstractSet[Key] = frozenset()

    @property
    def layers(self) -> set[str]:
        """The names of the layers that it reads."""
        return set(map(name_of, self.read))

    @property
    def made(self) -> set[Key]:
        """The blocks that it computes, without aliases."""
        if self.piece is not None:
            return {(self.name, *index) for index in self.piece.computed}
        return self.needs.keys() - self.aliases

    @property
    def is_data(self) -> bool:
        """Whether it has blocks in place of tasks."""
        return self.piece is None and not self.needs

    def heads(self, readers: Mapping[Key, int], made: AbstractSet[Key]) -> int:
        """Return the number of tasks that Dask does not fuse with the task before them.

        ``readers`` are the numbers of readers of the blocks ``made``. Dask removes aliases.
        """
        return sum(
            not follows(needs, readers, made)
            for key, needs in self.needs.items()
            if key not in self.aliases
        )


def follows(needs: Collection[Key], readers: Mapping[Key, int], made: AbstractSet[Key]) -> bool:
    """Whether a task reads one block that another task makes for it alone."""
    return len(needs) == 1 and all(each in made and readers[each] == 1 for each in needs)


@dataclass
class Workers:
    """The places of blocks. A task runs on the worker with most of the bytes that it reads.

    Tasks that read nothing, and blocks that exist, are spread evenly in their order.
    """

    arrays: ArrayGraph
    count: int
    places: dict[Key, int] = field(default_factory=dict)
    copies: set[tuple[Key, int]] = field(default_factory=set)
    sizes: dict[str, float] = field(default_factory=dict)
    started: int = 0

    def run(self, stage: Stage) -> tuple[float, int]:
        """Place all tasks; return the bytes that the busiest worker receives, and its tasks."""
        moved: defaultdict[int, float] = defaultdict(float)
        tasks: Counter[int] = Counter()
        for at, (key, needs) in enumerate(stage.needs.items()):
            held: defaultdict[int, float] = defaultdict(float)
            sizes = {each: self.nbytes(each) for each in _ordered(needs)}
            for each, nbytes in sizes.items():
                held[self.place(each)] += nbytes
            worker = max(held, key=lambda w: (held[w], -tasks[w]), default=None)
            if worker is None:
                worker = (self.started + at * self.count // len(stage.needs)) % self.count
            self.places[key] = worker
            tasks[worker] += 1
            for each, nbytes in sizes.items():
                if self.place(each) != worker and (each, worker) not in self.copies:
                    self.copies.add((each, worker))
                    moved[worker] += nbytes
        self.started += 0 if stage.read else len(stage.needs)
        return max(moved.values(), default=0.0), max(tasks.values(), default=0)

    def place(self, key: Key) -> int:
        """Return the worker with a block."""
        if key not in self.places:
            node, index, at = self.node(key), _index(key), 0
            if node is not None and len(index) == node.ndim:
                for block, blocks in zip(index, node.grid, strict=True):
                    at = at * blocks + block
                at = at * self.count // max(1, node.blocks)
            self.places[key] = at
        return self.places[key]

    def nbytes(self, key: Key) -> float:
        """Return the bytes of a block, on average.

        0 if unknown, and for values between Dask's tasks of a layer, such as totals before blocks.
        """
        name, node = name_of(key), self.node(key)
        if node is not None and len(_index(key)) != node.ndim:
            return 0.0
        if name not in self.sizes:
            self.sizes[name] = block_nbytes(node)
        return self.sizes[name]

    def node(self, key: Key) -> ArrayNode | None:
        """Return the array of a block."""
        return array(self.arrays, name_of(key))


def _ordered(needs: Collection[Key]) -> Collection[Key]:
    """Return blocks in an order that is the same in each process."""
    return sorted(needs, key=str) if isinstance(needs, AbstractSet) else needs


def _index(key: Key) -> tuple[int, ...]:
    """Return the index of a block, nothing for other keys."""
    index = key[1:] if isinstance(key, tuple) else ()
    return index if all(isinstance(each, int) for each in index) else ()
