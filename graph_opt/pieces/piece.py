"""A piece: a part of a graph that one gang can compute. Each kind has a file of its own."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol, Self

from graph_opt.model.cost import Machine
from graph_opt.model.layout import Index
from graph_opt.model.node import ArrayNode


class Piece(Hashable, Protocol):
    """``output``, computed from ``inputs`` by one gang.

    A piece is whole when a rule finds it. :meth:`restrict` makes of it the piece
    that computes only what somebody wants; the numbers of blocks stay those of the
    whole arrays.
    """

    @property
    def output(self) -> ArrayNode:
        """The array that is made."""

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        """The arrays that are read."""

    @property
    def inner(self) -> tuple[str, ...]:
        """The layers that Dask built for it, the output's included; a rewrite replaces them."""

    @property
    def label(self) -> str:
        """The name that a user is told."""

    @property
    def summary(self) -> str:
        """What is computed, in a few words."""

    @property
    def facts(self) -> dict[str, Any]:
        """What is computed, as plain values: name, shape, dtype, and what the kind adds."""

    @property
    def computed(self) -> tuple[Index, ...]:
        """The blocks of the output that are made, in row-major order."""

    @property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """For each input the blocks that are read, in row-major order."""

    def restrict(self, wanted: frozenset[Index]) -> Self:
        """Return the piece that makes these blocks, and as few others as its kind can."""

    def fault(self) -> str | None:
        """Return why it cannot be right, ``None`` if it can."""

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask on so many workers."""
