"""How functions compute the blocks of arrays that have numbers: all that programs know of tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from graph_opt.model.layout import Index

Array = Any
Block = tuple[int, Index]
"""The number of an array, and the place of its block."""

Kinds = Mapping[int, tuple[str, int]]
"""The dtypes of arrays, and their numbers of axes."""


class TaskCall(NamedTuple):
    """A function, and the blocks that it is called with, or what ``arguments`` returns for these.

    A function that is ``copied`` for each call may be a user's.
    """

    function: Callable[..., Any]
    reads: tuple[Block, ...] = ()
    arguments: Callable[[Sequence[Array]], Sequence[Any]] = list
    copied: bool = False

    def __call__(self, *blocks: Array) -> Any:
        """Return the result for these blocks."""
        return self.function(*self.arguments(blocks))


class Returned(NamedTuple):
    """What a function returns: the array as declared, or the part of a reduction with ``fields``.

    These are arrays of its shape, by their keys: their dtypes, and the lengths of further axes. A
    part is a dictionary, or if it is ``summed`` the partial sums of a compensated sum.
    """

    fields: Mapping[str, tuple[Any, tuple[int, ...]]] = MappingProxyType({})
    summed: bool = False


class Recipe(Protocol):
    """How the blocks of an array are computed."""

    def calls(self, blocks: Collection[Index], *, copies: bool) -> dict[Index, TaskCall]:
        """Return what computes each of these blocks.

        If it ``copies``, each call has its own copies of functions and values that may change.
        """

    def returned(self, index: Index, kinds: Kinds) -> Returned | Block | None:
        """Return what the call for a block returns: like another block, ``None`` if not known."""
