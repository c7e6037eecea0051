"""The steps of one rank: what it computes, sends and receives, with all places looked up.

Values have numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.operations.value import Blocks, Value
from dask_dgpu.runtime.calls import Together
from dask_dgpu.runtime.placement import Block
from dask_dgpu.runtime.plans import Plans
from dask_dgpu.runtime.ship import Shipping
from graph_opt.model.layout import CUPY, NUMPY, Index, dtype_named

Array = Any


class Making(NamedTuple):
    """A block that a rank computes: the function, and the blocks that it is called with.

    ``last`` are the numbers of those that nothing reads afterwards, if the function may overwrite
    blocks.
    """

    place: Index
    function: Callable[..., Array]
    reads: tuple[Block, ...]
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Functions:
    """Calls of block functions, after the transfers of what they read.

    ``needs`` is the number of blocks of all ranks, ``on_host`` whether functions expect blocks of
    NumPy, and ``once`` whether they may be a user's. ``together`` computes many blocks at once.
    """

    needs: int
    shipping: Shipping | None
    makings: tuple[Making, ...]
    on_host: bool
    once: bool = False
    together: Together | None = None

    def batches(self, most: int) -> list[tuple[Making, ...]]:
        """Return the blocks in batches that are computed at once, of up to ``most`` blocks."""
        most = 1 if self.together is None else most
        return [self.makings[at : at + most] for at in range(0, len(self.makings), most)]


class Declared(NamedTuple):
    """An input of a collective: its number, and its blocks as the graph declares them.

    ``owned`` are this rank's: a block that several ranks have computed belongs to the first of
    them. ``spent`` blocks are the operation's own.
    """

    number: int
    value: Value
    dtype: np.dtype[Any]
    shapes: Mapping[Index, tuple[int, ...]]
    owned: tuple[Index, ...]
    spent: bool

    @classmethod
    def of(cls, plans: Plans, number: int, value: Value, rank: int, spent: bool) -> Declared:
        """Return an input, by its number."""
        placed = plans.values[number].layout
        shapes = {index: value.block_shape(index) for index in value.indices()}
        owned, dtype = placed.owned(rank), dtype_named(value.dtype)
        return cls(number, value, dtype, shapes, owned, spent)


@dataclass(frozen=True)
class Operating:
    """A collective: ``run`` it by its plan on these inputs; it may keep facts about blocks.

    If it ``repeats``, it has the same launches each time.
    """

    run: Callable[..., Blocks | tuple[Blocks, Any]]
    plan: Any
    inputs: tuple[Declared, ...]
    finds_facts: bool
    repeats: bool


class Step(NamedTuple):
    """A step of one rank: what is moved before it, and the values that end with it.

    ``number`` is that of its result, ``action`` that of its span.
    """

    number: int
    action: str
    moves: Shipping | None
    work: Functions | Operating
    ending: tuple[int, ...]

    @property
    def reads(self) -> set[int]:
        """The values whose blocks this rank reads or sends."""
        if isinstance(self.work, Operating):
            return {each.number for each in self.work.inputs}
        read = {number for making in self.work.makings for number, _ in making.reads}
        sent = () if self.work.shipping is None else self.work.shipping.out
        return read | {each.value for each in sent}

    @property
    def spent(self) -> set[int]:
        """The values that a collective may overwrite, or free before its end."""
        inputs = self.work.inputs if isinstance(self.work, Operating) else ()
        return {each.number for each in inputs if each.spent}

    @property
    def brings(self) -> set[int]:
        """The values of which this rank gets new blocks: from others, or copied to the device."""
        moved = () if self.moves is None else self.moves.expected
        inputs = self.work.inputs if isinstance(self.work, Operating) else ()
        copied = {each.number for each in inputs if each.value.container == NUMPY}
        return {each.value for each in moved} | copied

    @property
    def exchanges(self) -> bool:
        """Whether ranks may exchange blocks."""
        work = self.work
        return isinstance(work, Operating) or work.shipping is not None or self.moves is not None

    def is_recordable(self, container: str) -> bool:
        """Whether its launches can be the same at each run, on blocks of a container.

        Those of users' functions may differ. Facts about blocks, and headers, are read by the host.
        """
        if self.moves is not None:
            return False
        if isinstance(self.work, Operating):
            return self.work.repeats and not self.work.finds_facts
        on_cuda, shipping, headers = container == CUPY, self.work.shipping, False
        if shipping is not None:
            _, others = shipping.on_cuda if on_cuda else shipping.on_host
            headers = bool(others.out or others.expected)
        return not (self.work.once or headers or (self.work.on_host and on_cuda))
