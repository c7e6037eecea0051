"""Expressions: elementwise work and reductions on blocks, as one graph of typed-at-call nodes.

``(x - x.mean(axis=0, keepdims=True)) ** 2`` on blocks is::

    0  Input(0)
    1  Reduce("mean", 0, axes=(0,), keepdims=True)
    2  Apply("subtract", (0, 1))
    3  Constant(2)
    4  Apply("power", (2, 3))

Nodes have no dtype and no shape: both follow from the blocks at the call, by NumPy's rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """A block, by its number among the arguments."""

    at: int

    @property
    def arguments(self) -> tuple[int, ...]:
        """None."""
        return ()


@dataclass(frozen=True)
class Constant:
    """A scalar. A Python number has no dtype of its own, a NumPy scalar keeps its dtype.

    In a graph that is optimized for all numbers, the value may be a ``Parameter``.
    """

    value: Any

    @property
    def arguments(self) -> tuple[int, ...]:
        """None."""
        return ()


@dataclass(frozen=True)
class Apply:
    """An elementwise function of NumPy, by name; its arguments broadcast.

    ``options`` are keyword arguments that are no arrays: ``dtype`` of a ufunc, ``decimals``.
    """

    function: str
    arguments: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Cast:
    """``astype``."""

    argument: int
    dtype: str

    @property
    def arguments(self) -> tuple[int, ...]:
        """The only one."""
        return (self.argument,)


@dataclass(frozen=True)
class View:
    """A view: axis ``i`` of the result is axis ``axes[i]`` of the argument.

    ``None`` is a new axis of length 1. Axes of the argument that are not named have length 1.
    """

    argument: int
    axes: tuple[int | None, ...]

    @property
    def arguments(self) -> tuple[int, ...]:
        """The only one."""
        return (self.argument,)


@dataclass(frozen=True)
class Reduce:
    """A reduction of NumPy, by name, along some axes.

    ``options`` are its other keyword arguments: ``dtype``, ``ddof``. ``argmin`` and ``argmax``
    reduce one axis or all; their result counts in row-major order of the reduced axes.
    """

    function: str
    argument: int
    axes: tuple[int, ...]
    keepdims: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def arguments(self) -> tuple[int, ...]:
        """The only one."""
        return (self.argument,)


Node = Input | Constant | Apply | Cast | View | Reduce


@dataclass(frozen=True, eq=False)
class Expression:
    """Nodes, each after its arguments, and the numbers of the nodes that are results.

    Expressions are equal if constants have the same type too: 1 and 1.0 give other dtypes.
    """

    nodes: tuple[Node, ...]
    results: tuple[int, ...]

    def __post_init__(self) -> None:
        for i, node in enumerate(self.nodes):
            if any(argument not in range(i) for argument in node.arguments):
                raise ValueError(f"expected arguments of node {i} before it, got {node}")
        if any(result not in range(len(self.nodes)) for result in self.results):
            raise ValueError(f"expected results among {len(self.nodes)} nodes, got {self.results}")

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.identity == other.identity

    @cached_property
    def identity(self) -> str:
        """A text that is the same for equal expressions only; its hash is computed once."""
        kinds = [type(node.value).__name__ for node in self.nodes if isinstance(node, Constant)]
        return repr((self.nodes, self.results, kinds))

    @cached_property
    def inputs(self) -> int:
        """The number of blocks that the expression is called with."""
        return 1 + max((node.at for node in self.nodes if isinstance(node, Input)), default=-1)

    @cached_property
    def has_views(self) -> bool:
        """Whether any node is a view."""
        return any(isinstance(node, View) for node in self.nodes)

    @cached_property
    def released(self) -> tuple[tuple[int, ...], ...]:
        """For each node its arguments that no later node and no result needs."""
        needed = set(self.results)
        released: list[tuple[int, ...]] = []
        for node in reversed(self.nodes):
            released.append(tuple({*node.arguments} - needed))
            needed.update(node.arguments)
        return tuple(reversed(released))

    def shapes(self, blocks: Sequence[Shape]) -> list[Shape]:
        """Return the shape of each node, given those of the blocks."""
        shapes: list[Shape] = []
        for node in self.nodes:
            of = [shapes[argument] for argument in node.arguments]
            match node:
                case Apply():
                    shapes.append(_broadcast(of))
                case Input(at):
                    shapes.append(tuple(blocks[at]))
                case Constant():
                    shapes.append(())
                case View(_, axes):
                    shapes.append(tuple([1 if axis is None else of[0][axis] for axis in axes]))
                case Reduce(_, _, axes, keepdims):
                    kept = enumerate(of[0])
                    lengths = [(1 if axis in axes else length, axis) for axis, length in kept]
                    shapes.append(tuple([n for n, axis in lengths if keepdims or axis not in axes]))
                case Cast():
                    shapes.append(of[0])
        return shapes

    def cone(self, *results: int) -> Iterator[int]:
        """Yield the numbers of the nodes that these depend on, and their own, in order."""
        needed = set(results)
        for i in range(len(self.nodes) - 1, -1, -1):
            if i in needed:
                needed.update(self.nodes[i].arguments)
        yield from sorted(needed)


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """Broadcast shapes; most are equal or shapes of scalars, and NumPy's function is slow."""
    (first, *others) = shapes
    for other in others:
        if not first or other[len(other) - len(first) :] == first:
            first = other
        elif other and first[len(first) - len(other) :] != other:
            first = np.broadcast_shapes(first, other)
    return first
