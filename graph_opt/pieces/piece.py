"""The base of pieces: parts of a graph that one gang computes by a collective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from graph_opt.model.cost import Machine
from graph_opt.model.layout import ArrayNode, Index, label


@dataclass(frozen=True)
class Piece(ABC):
    """An array, computed from others by one gang.

    A rule finds a whole piece. :meth:`restrict` returns a piece for some of the blocks, with
    the same arrays and block indices.

    Parameters
    ----------
    output : ArrayNode
        The result.
    inner : tuple of str, optional
        Dask's layers for the piece, which a rewrite replaces; by default that of the output.
    """

    output: ArrayNode
    inner: tuple[str, ...] = field(default=(), kw_only=True)

    only_moves: ClassVar[bool] = False
    """Whether the piece transfers blocks and computes nothing."""

    @property
    @abstractmethod
    def operation(self) -> str:
        """The name of the operation, a key of ``dask_dgpu.operations.OPERATIONS``."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[ArrayNode, ...]:
        """The input arrays."""

    @property
    def task(self) -> Any:
        """Parameters of the operation beyond its inputs and its output."""
        return None

    @property
    def layers(self) -> tuple[str, ...]:
        """Dask's layers that a rewrite replaces, including that of the output."""
        return self.inner or (self.output.name,)

    @property
    def label(self) -> str:
        """Name in messages."""
        return label(self.output.name)

    @property
    @abstractmethod
    def summary(self) -> str:
        """The computation in a few words."""

    @property
    def facts(self) -> dict[str, Any]:
        """The computation as plain values."""
        node = self.output
        return {"name": node.name, "shape": node.shape, "dtype": node.dtype}

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The computed blocks of the output, in row-major order; by default all."""
        return tuple(self.output.indices)

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """The blocks of each input that are read, in row-major order; by default all."""
        return tuple(tuple(node.indices) for node in self.inputs)

    def restrict(self, wanted: frozenset[Index]) -> Self:
        """Return the piece for these blocks and as few others as possible; by default all."""
        return self

    @abstractmethod
    def fault(self) -> str | None:
        """Return the error of an invalid piece, ``None`` if it is valid."""

    @abstractmethod
    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask on ``ranks`` workers."""


@dataclass(frozen=True)
class SeparablePiece(Piece):
    """A piece with one input that can compute any of its blocks alone.

    Parameters
    ----------
    source : ArrayNode
        The input.
    wanted : tuple of tuple of int, optional
        The computed blocks of the output, in row-major order; by default all.
    """

    source: ArrayNode
    wanted: tuple[Index, ...] | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        """The source."""
        return (self.source,)

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The wanted blocks."""
        return tuple(self.output.indices) if self.wanted is None else self.wanted

    def restrict(self, wanted: frozenset[Index]) -> Self:
        """Return the piece for these blocks."""
        return replace(self, wanted=tuple(sorted(wanted)))

    def fault(self) -> str | None:
        """Return which wanted block does not exist, ``None`` if all do."""
        grid = self.output.grid
        for index in self.wanted or ():
            if len(index) != len(grid) or any(
                at not in range(count) for at, count in zip(index, grid, strict=True)
            ):
                return f"block {index} does not exist"
        return None
