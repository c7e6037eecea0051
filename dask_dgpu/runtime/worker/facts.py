"""Facts about the blocks in a worker's memory, such as counts of zeros; they end with the block."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any
from weakref import ref

from dask_dgpu.operations.value import Facts

Array = Any


class BlockFacts:
    """The facts about each block, by the object: Dask's blocks are never written."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[Any], Facts]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, block: Array) -> Facts:
        """Return the facts about a block, empty for a new one; an operation may add to them.

        Those about an object without weak references are not kept.
        """
        number = id(block)
        alive, facts = self._known.get(number, (None, {}))
        if alive is None or alive() is not block:
            facts = {}
            with suppress(TypeError):
                self._known[number] = ref(block, partial(self._forget, number)), facts
        return facts

    def _forget(self, number: int, dead: ref[Any]) -> None:
        if self._known.get(number, (None,))[0] is dead:
            del self._known[number]
