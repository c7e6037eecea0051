"""Values and nodes of a program, and what an operation is: plan, rank program and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product as cartesian
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.algorithms.cells import Axis, Cells, Ints, table_of
from dask_dgpu.algorithms.redistribute.plan import settled
from dask_dgpu.errors import UndeclaredShapeError, UndeclaredTypeError
from graph_opt.model.cost import Machine
from graph_opt.model.layout import (
    NUMPY,
    ArrayNode,
    Blocked,
    Cuts,
    Index,
    Layout,
    cuts_of,
    dealt,
    dtype_named,
)
from graph_opt.model.names import label

Array = Any
Blocks = dict[Index, Array]
Plan = Any
Progress = Callable[[int, int], None]
"""Called with the number of finished steps and of all."""
Need = tuple[int, Index]
"""An input of a step, and the index of one of its blocks."""


@dataclass(frozen=True)
class Value(Blocked):
    """An array in blocks, as the graph declares it.

    ``blocks`` are the existing blocks in row-major order, ``None`` for all, and ``container`` is
    their type; collectives compute on copies in the device's memory if that is another.
    """

    cuts: tuple[Cuts, ...]
    dtype: str
    blocks: tuple[Index, ...] | None = None
    container: str = NUMPY

    def indices(self) -> Sequence[Index]:
        """Return the existing blocks, in row-major order."""
        if self.blocks is not None:
            return self.blocks
        return list(cartesian(*map(range, self.grid)))

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
        """Cache of :meth:`nbytes`."""
        return {}

    def placed(self, owners: Sequence[int]) -> Placed:
        """Return the value with the rank of each existing block."""
        if self.blocks is not None:
            holders = dict(zip(self.blocks, owners, strict=True))
            owners = [holders.get(index, -1) for index in cartesian(*map(range, self.grid))]
        return Placed(Layout(self.cuts, tuple(owners)), self.dtype)


@dataclass(frozen=True)
class Placed:
    """A value whose blocks have ranks.

    It is ``spent`` if the program itself has created it and no later step reads it: the planned
    step may free its blocks early.
    """

    layout: Layout
    dtype: str
    spent: bool = False

    def owners(self) -> Iterator[tuple[Index, int]]:
        """Yield each existing block and its rank."""
        for index, owner in zip(self.layout.indices(), self.layout.owners, strict=True):
            if owner >= 0:
                yield index, owner

    def transposed(self, axes: tuple[int, ...]) -> Placed:
        """Return the transpose; its blocks stay on their ranks."""
        return Placed(self.layout.transposed(axes), self.dtype, self.spent)


@dataclass(frozen=True)
class Shipment:
    """A whole block that one rank sends to another."""

    value: int
    index: Index
    source: int
    target: int

    @property
    def block(self) -> tuple[int, Index]:
        """The number of the value, and the place of the block."""
        return self.value, self.index


def shipped_to(
    shipments: Iterable[Shipment], values: Sequence[Value], size: int
) -> tuple[int, ...]:
    """Return the bytes that each rank receives; shipments have numbers of values."""
    total = [0] * size
    for shipment in shipments:
        total[shipment.target] += values[shipment.value].nbytes(shipment.index)
    return tuple(total)


def place(source: Layout, result: Value, size: int) -> Layout:
    """Give every rank about its share of a result, most of it from its own blocks.

    No rank has more elements than the fullest would if contiguous blocks were dealt out evenly, or
    little more if block sizes differ much. Blocks choose in the order of their largest part on one
    rank. Each takes the rank with most of it that still has room; among equals the one that it
    would be dealt to.
    """
    sizes = [prod(result.block_shape(index)) for index in result.indices()]
    owners = settled(_held(source, result, size), sizes, dealt(len(sizes), size, sizes))
    return result.placed(owners).layout


def _held(source: Layout, result: Value, size: int) -> Ints:
    """Return the elements of each existing block that each rank has, (blocks, ranks)."""
    target = result.placed((0,) * len(result.indices())).layout
    axes = list(map(Axis.common, source.cuts, target.cuts))
    cells = Cells(axes, (source.grid, source.owners), (target.grid, target.owners))
    there, shape = cells.sender >= 0, (len(target.owners), size)
    held = table_of(cells.target[there], cells.sender[there], cells.length[there], shape)
    return held[np.array(target.owners) >= 0]


@dataclass(frozen=True)
class Node:
    """What computes one value of a program from others, which have numbers.

    An ``operation`` is one of :data:`dask_dgpu.operations.OPERATIONS`, with ``task`` as its other
    parameters; its plan places the blocks of the ``value``. Without one, functions of Dask's own
    compute each block from whole blocks of others: its ``needs``. With ``once`` each block is
    computed on one rank only. One that ``merges`` adds parts of sums, in any grouping. Tasks of
    equal nodes are ``spelled`` alike: 0.0 is not -0.0.
    """

    operation: str | None
    reads: tuple[int, ...]
    value: Value
    task: Any = None
    needs: tuple[tuple[Need, ...], ...] = ()
    once: bool = False
    merges: bool = False
    spelled: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelled", repr(self.task))

    def blocks(self) -> dict[Index, tuple[Need, ...]]:
        """Return the blocks that functions compute each block from."""
        return dict(zip(self.value.indices(), self.needs, strict=True))


@dataclass(frozen=True)
class Cost:
    """What a plan takes.

    ``moved_bytes`` are received by the busiest rank. ``peak_bytes`` are the most on one rank: its
    share of inputs and output, and the workspace. ``text`` is the plan in a few words, and
    ``details`` are its plain values by name.
    """

    seconds: float
    moved_bytes: int
    peak_bytes: int
    text: str
    details: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Request:
    """All that a plan depends on.

    ``result`` is as the graph declares it, ``task`` is that of the piece, ``size`` the number of
    ranks, and ``room`` the free bytes on a rank's device, ``None`` for no limit. Requests are equal
    if their tasks are ``spelled`` alike: 0.0 is not -0.0, and 1 is not True.
    """

    inputs: tuple[Placed, ...]
    result: Value
    task: Any
    size: int
    machine: Machine
    room: float | None
    spelled: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelled", repr(self.task))

    def excess(self, peak_bytes: float) -> float:
        """Return the bytes of a plan beyond those that are free."""
        return 0.0 if self.room is None else max(0.0, peak_bytes - self.room)


def product_flops(products: float, dtype: str) -> float:
    """Return the operations on real numbers for multiplications and additions of a dtype."""
    return products * (8 if dtype_named(dtype).kind == "c" else 2)


@dataclass(frozen=True)
class Operation:
    """All that gangs know of an operation.

    - ``plan(request)`` returns the plan.
    - ``layout(plan)`` returns the layout of the result.
    - ``run(plan, comm, device, *inputs, progress)`` computes this rank's blocks of the result from
      its blocks of the inputs. It may empty the mapping of an input that is ``spent``. It may
      return a pair: the blocks, and a small picklable detail for the user; that of rank 0 counts.
    - ``cost(plan, machine)`` predicts the cost.
    - ``prepare(plan, rank)`` returns ``run`` for one plan and one rank, for many runs.
    - ``flops(plan)`` returns the floating-point operations of all ranks, on real numbers, if these
      limit the operation and are known before it runs.
    - ``repeats(plan)`` says whether ``run`` has the same launches for all blocks, so a GPU may
      record them; by default so. It has not if the host reads results, or waits for other ranks.
    """

    plan: Callable[[Request], Plan]
    layout: Callable[[Plan], Layout]
    run: Callable[..., Blocks | tuple[Blocks, Any]]
    cost: Callable[[Plan, Machine], Cost]
    prepare: Callable[[Plan, int], Callable[..., Blocks | tuple[Blocks, Any]]] | None = None
    flops: Callable[[Plan], float] | None = None
    repeats: Callable[[Plan], bool] | None = None


def value_of(node: ArrayNode, blocks: tuple[Index, ...]) -> Value:
    """Return an array as a value of a program, with all of its blocks or some."""
    some = None if len(blocks) == node.blocks else blocks
    cuts = tuple(cuts_of(sizes) for sizes in node.chunks)
    return Value(cuts, node.dtype, some, node.container)


def container_of(block: Any) -> str:
    """Return the package and the name of a block's class, as graphs declare it."""
    return f"{type(block).__module__.split('.')[0]}.{type(block).__name__}"


def unboxed(block: Array) -> Array:
    """Return a block without axes as NumPy's functions do: a scalar, not an array."""
    return block[()] if type(block) is np.ndarray and not block.ndim else block


def conforming(
    block: Array, name: str, dtype: str, shape: tuple[int, ...], container: str
) -> Array:
    """Return a block of array ``name`` as the graph declares it, or raise.

    An empty block may have any shape and dtype: those of Dask's ``min`` and ``max`` differ from
    the declaration.
    """
    kind = container_of(block)
    if kind != container:
        arraylike = hasattr(block, "__array__") or isinstance(block, list | tuple)
        masked = isinstance(block, np.ma.MaskedArray)
        got = "a masked array" if masked else kind
        refusal = UndeclaredTypeError(
            f"a block of {label(name)} is declared as {container} but is {got}"
        )
        if masked or container != NUMPY or not arraylike:
            raise refusal
        try:
            block = np.asarray(block)
        except TypeError:  # CuPy's do not leave their device unasked
            raise refusal from None
    if block.size == 0 and 0 in shape:
        alike = block.shape == shape and block.dtype == dtype
        return block if alike else np.empty(shape, dtype_named(dtype), like=block)
    if block.shape != shape:
        raise UndeclaredShapeError(
            f"a block of {label(name)} is declared with shape {shape} but has {block.shape}"
        )
    if block.dtype != dtype:
        try:
            return block.astype(dtype_named(dtype), casting="same_kind")
        except TypeError:
            raise UndeclaredTypeError(
                f"a block of {label(name)} is declared as {dtype} but is {block.dtype}"
            ) from None
    return block
