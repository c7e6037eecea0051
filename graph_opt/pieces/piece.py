"""A piece: a part of a graph that one gang computes by a collective. One file a kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from graph_opt.model.cost import Machine
from graph_opt.model.layout import Index
from graph_opt.model.node import ArrayNode, label


@dataclass(frozen=True)
class Piece(ABC):
    """An array, computed from others by one gang.

    A rule finds a whole piece. :meth:`restrict` makes a piece that computes only the wanted
    blocks; the numbers of blocks stay those of the whole arrays.

    Parameters
    ----------
    output : ArrayNode
        The array that is computed.
    inner : tuple of str, optional
        Dask's layers for the piece, which a rewrite replaces; by default the output's.
    """

    output: ArrayNode
    inner: tuple[str, ...] = field(default=(), kw_only=True)

    only_moves: ClassVar[bool] = False
    """Whether blocks move and nothing is computed."""

    @property
    @abstractmethod
    def operation(self) -> str:
        """The name of the operation, a key of ``dask_dgpu.operations.OPERATIONS``."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[ArrayNode, ...]:
        """The arrays that are read."""

    @property
    def task(self) -> Any:
        """What the operation must know beside its inputs and its output."""
        return None

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that a rewrite replaces, the output's included."""
        return self.inner or (self.output.name,)

    @property
    def label(self) -> str:
        """The name of the piece in messages."""
        return label(self.output.name)

    @property
    @abstractmethod
    def summary(self) -> str:
        """The computation in a few words."""

    @property
    def facts(self) -> dict[str, Any]:
        """The computation as plain values: name, shape, dtype, and what the kind adds."""
        node = self.output
        return {"name": node.name, "shape": node.shape, "dtype": node.dtype}

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The blocks of the output that are computed, in row-major order; by default all."""
        return tuple(self.output.indices)

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """For each input the blocks that are read, in row-major order; by default all."""
        return tuple(tuple(node.indices) for node in self.inputs)

    def restrict(self, wanted: frozenset[Index]) -> Self:
        """Return the piece that computes these blocks and as few others as possible.

        By default the whole piece: each block of the output needs all blocks of the inputs.
        """
        return self

    @abstractmethod
    def fault(self) -> str | None:
        """Return why the piece is wrong, ``None`` if it is right."""

    @abstractmethod
    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask on this number of workers."""


@dataclass(frozen=True)
class SeparablePiece(Piece):
    """A piece that can compute any of its blocks alone.

    Parameters
    ----------
    wanted : tuple of tuple of int, optional
        The blocks of the output that are computed, in row-major order; by default all.
    """

    wanted: tuple[Index, ...] | None = field(default=None, kw_only=True)

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The wanted blocks."""
        return tuple(self.output.indices) if self.wanted is None else self.wanted

    def restrict(self, wanted: frozenset[Index]) -> Self:
        """Return the piece that computes these blocks."""
        return replace(self, wanted=tuple(sorted(wanted)))

    def fault(self) -> str | None:
        """Return the wanted block that does not exist, if there is one."""
        grid = [len(sizes) for sizes in self.output.chunks]
        for index in self.wanted or ():
            if len(index) != len(grid) or any(
                not 0 <= at < n for at, n in zip(index, grid, strict=True)
            ):
                return f"block {index} does not exist"
        return None
