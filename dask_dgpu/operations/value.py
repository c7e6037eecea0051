"""The named values of a program, arrays in blocks, and its steps: collectives and local work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from itertools import product as cartesian
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.errors import UndeclaredShapeError, UndeclaredTypeError
from graph_opt.model.layout import ArrayNode, Bare, Cuts, Index, Layout, cuts_of, dtype_named
from graph_opt.model.piece import Blockwork, Member

Array = Any
Blocks = dict[Index, Array]
Need = tuple[int, Index]
"""An input of a step, and the index of one of its blocks."""


@dataclass(frozen=True)
class Value(Bare):
    """An array in blocks, as the graph knows it.

    Parameters
    ----------
    cuts : tuple of tuple of int
        Where each axis is cut, from 0 to its length.
    dtype : str
        The dtype of the blocks.
    blocks : tuple of tuple of int, optional
        The blocks that there are, in row-major order; by default all.
    container : str, optional
        The type of the blocks as their user knows it; collectives compute on copies in
        the device's memory if that is another.
    """

    cuts: tuple[Cuts, ...]
    dtype: str
    blocks: tuple[Index, ...] | None = None
    container: str = "numpy.ndarray"

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return tuple(len(cuts) - 1 for cuts in self.cuts)

    def indices(self) -> Sequence[Index]:
        """Return the blocks that there are, in row-major order."""
        if self.blocks is not None:
            return self.blocks
        return list(cartesian(*map(range, self.grid)))

    @cached_property
    def _lengths(self) -> list[list[int]]:
        return [[hi - lo for lo, hi in pairwise(cuts)] for cuts in self.cuts]

    @cached_property
    def _itemsize(self) -> int:
        return dtype_named(self.dtype).itemsize

    def nbytes(self, index: Index) -> int:
        """Return the bytes of a block."""
        if index not in self._sizes:
            self._sizes[index] = prod(self.block_shape(index)) * self._itemsize
        return self._sizes[index]

    @cached_property
    def _sizes(self) -> dict[Index, int]:
        """Bytes of blocks that were asked for."""
        return {}

    def block_shape(self, index: Index) -> tuple[int, ...]:
        """Return the lengths of a block."""
        return tuple([along[at] for along, at in zip(self._lengths, index, strict=True)])

    def placed(self, owners: Sequence[int]) -> Placed:
        """Return the value with the rank that holds each block there is."""
        if self.blocks is None:
            return Placed(Layout(self.cuts, tuple(owners)), self.dtype)
        holders = dict(zip(self.blocks, owners, strict=True))
        everywhere = cartesian(*map(range, self.grid))
        return Placed(
            Layout(self.cuts, tuple(holders.get(index, -1) for index in everywhere)), self.dtype
        )


@dataclass(frozen=True)
class Placed:
    """A value whose blocks have a place.

    Parameters
    ----------
    layout : Layout
        Which rank holds which block.
    dtype : str
        The dtype of the blocks.
    spent : bool, optional
        Whether the program itself has made it and nobody reads it after the step that is
        planned, which may then let go of blocks before its end.
    """

    layout: Layout
    dtype: str
    spent: bool = False

    def owners(self) -> Iterator[tuple[Index, int]]:
        """Yield each block there is with the rank that holds it."""
        for index, owner in zip(self.layout.indices(), self.layout.owners, strict=True):
            if owner >= 0:
                yield index, owner

    def transposed(self, axes: tuple[int, ...]) -> Placed:
        """Return the place of the transpose, whose blocks stay where they are."""
        return Placed(self.layout.transposed(axes), self.dtype, self.spent)


@dataclass(frozen=True)
class Local:
    """Make each block of a value from whole blocks of others, by a function of Dask's own.

    Parameters
    ----------
    inputs : tuple of str
        The values it reads.
    output : str
        The value it makes.
    result : Value
        What that is, as the graph declares it.
    needs : tuple of tuple of (int, tuple of int)
        For each block of the result those that it is made from: which of the inputs, and
        place. Steps of a loop differ by names, and not in this.
    once : bool, optional
        Whether each block is to be made on one rank only, whoever reads it.
    """

    inputs: tuple[str, ...]
    output: str
    result: Value
    needs: tuple[tuple[Need, ...], ...]
    once: bool = False

    def blocks(self) -> dict[Index, tuple[Need, ...]]:
        """Return what each block of the result is made from."""
        return dict(zip(self.result.indices(), self.needs, strict=True))


@dataclass(frozen=True)
class Collective:
    """Run an operation: ``output = operation(inputs)``.

    Parameters
    ----------
    operation : str
        A key of :data:`dask_dgpu.operations.OPERATIONS`.
    inputs : tuple of str
        The values it reads.
    output : str
        The value it makes.
    result : Value
        What that is; the plan chooses where its blocks are.
    task : object, optional
        What the operation must know beside its inputs and its result.
    """

    operation: str
    inputs: tuple[str, ...]
    output: str
    result: Value
    task: Any = None


def shared(steps: Iterable[Local | Collective]) -> tuple[Local | Collective, ...]:
    """Have what is equal in steps be one object, which is described and sent once."""
    known: dict[Any, Any] = {}
    found: list[Local | Collective] = []
    for step in steps:
        parts = {"result": known.setdefault(step.result, step.result)}
        if isinstance(step, Local):
            parts["needs"] = known.setdefault(step.needs, step.needs)
        found.append(replace(step, **parts))
    return tuple(found)


def step_of(member: Member) -> Collective | Local:
    """Return the step for a piece or a layer of Dask's; values have the arrays' names."""
    output, result = member.output.name, value_of(member.output, member.computed)
    names = tuple(node.name for node in member.inputs)
    if not isinstance(member, Blockwork):
        return Collective(member.operation, names, output, result, member.task)
    at = {name: place for place, name in enumerate(names)}
    needs = tuple(
        tuple((at[name], need) for name, need in needs) for needs in member.needs.values()
    )
    return Local(names, output, result, needs, member.once)


def value_of(node: ArrayNode, blocks: tuple[Index, ...]) -> Value:
    """Return an array as a value of a program, with all of its blocks or some."""
    some = None if len(blocks) == node.blocks else blocks
    cuts = tuple(cuts_of(sizes) for sizes in node.chunks)
    return Value(cuts, node.dtype, some, node.container)


def conforming(
    block: Array, name: str, dtype: str, shape: tuple[int, ...], container: str
) -> Array:
    """Return a block of array ``name`` as what the graph declares, or say what it is instead.

    A block without elements says nothing but that it is one: Dask's ``min`` and ``max`` make such
    blocks in other shapes than they declare.
    """
    kind = f"{type(block).__module__.split('.')[0]}.{type(block).__name__}"
    if kind != container:
        arraylike = hasattr(block, "__array__") or isinstance(block, list | tuple)
        if container != "numpy.ndarray" or not arraylike:
            raise UndeclaredTypeError(f"a block of {name} is declared as {container} but is {kind}")
        if isinstance(block, np.ma.MaskedArray):
            raise UndeclaredTypeError(
                f"a block of {name} is declared as {container} but is a masked array"
            )
        block = np.asarray(block)
    if block.size == 0 and 0 in shape:
        alike = block.shape == shape and block.dtype == dtype
        return block if alike else np.empty(shape, dtype_named(dtype), like=block)
    if block.shape != shape:
        raise UndeclaredShapeError(
            f"a block of {name} is declared with shape {shape} but has {block.shape}"
        )
    if block.dtype != dtype:
        try:
            return block.astype(dtype_named(dtype), casting="same_kind")
        except TypeError:
            raise UndeclaredTypeError(
                f"a block of {name} is declared as {dtype} but is {block.dtype}"
            ) from None
    return block
