"""Who multiplies what: the frozen plan of one product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from itertools import product as cartesian
from math import prod

import numpy as np

from graph_opt.model.layout import Cuts, Span, block_spans, even_spans

Mesh = tuple[int, int, int]

WIDE = 512
"""Columns from which on a product is no slower for being cut into several."""


@dataclass(frozen=True)
class Operand:
    """A matrix in blocks.

    Parameters
    ----------
    rows, columns : tuple of int
        Where the axes are cut, from 0 to their length.
    dtype : str
        The dtype of the blocks.
    owners : tuple of int
        The rank that holds each block, in row-major order of the blocks.
    """

    rows: Cuts
    columns: Cuts
    dtype: str
    owners: tuple[int, ...]

    def owner(self, row: int, column: int) -> int:
        """Return the rank that holds a block."""
        return self.owners[row * (len(self.columns) - 1) + column]

    @property
    def cuts(self) -> tuple[Cuts, Cuts]:
        """Where the rows and the columns are cut."""
        return self.rows, self.columns

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    def share(self, rank: int) -> int:
        """Return the bytes of the blocks that a rank holds."""
        return int(self.sizes()[self.ranks == rank].sum())

    @cached_property
    def ranks(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """The rank that holds each block, as a matrix."""
        return np.array(self.owners, np.int64).reshape(self.grid)

    @property
    def grid(self) -> tuple[int, int]:
        """Number of blocks along each axis."""
        return len(self.rows) - 1, len(self.columns) - 1

    def sizes(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Return the bytes of each block."""
        heights, widths = np.diff(self.rows), np.diff(self.columns)
        return np.outer(heights, widths).astype(float) * self.itemsize


@dataclass(frozen=True)
class SummaPlan:
    """The plan of one product on ``size`` ranks.

    Parameters
    ----------
    a, b : Operand
        The operands; their cuts along the contraction may differ.
    dtype : str
        The dtype of the result; products are accumulated in it (float16 in float32).
    size : int
        Number of ranks of the communicator.
    mesh : tuple of int
        Ranks along the rows, the columns and the contraction; their product is
        at most ``size``.
    places : tuple of int
        The rank at each position of the mesh, in row-major order.
    steps : int
        Number of panels that a layer is cut into.
    nominal_steps : int
        The number of panels that would be quickest. ``steps`` is larger where the
        buffers of that many would exceed :attr:`workspace_limit`.
    one_sided : bool
        Whether ranks read their panels' pieces from the owners' blocks instead of being
        sent them, if the transport can.
    """

    a: Operand
    b: Operand
    dtype: str
    size: int
    mesh: Mesh
    places: tuple[int, ...]
    steps: int
    nominal_steps: int
    one_sided: bool = False

    @property
    def accumulator(self) -> str:
        """The dtype in which panels are kept and products are summed on a host."""
        return "float32" if self.dtype == "float16" else self.dtype

    @cached_property
    def row_spans(self) -> tuple[Span, ...]:
        """Block rows of C for each row of the mesh."""
        return block_spans(self.a.rows, self.mesh[0])

    @cached_property
    def column_spans(self) -> tuple[Span, ...]:
        """Block columns of C for each column of the mesh."""
        return block_spans(self.b.columns, self.mesh[1])

    @cached_property
    def extents(self) -> tuple[int, int]:
        """Most rows and most columns of C that a rank computes."""
        spans = (self.a.rows, self.row_spans), (self.b.columns, self.column_spans)
        rows, columns = (max(cuts[hi] - cuts[lo] for lo, hi in parts) for cuts, parts in spans)
        return rows, columns

    @cached_property
    def depth_spans(self) -> tuple[Span, ...]:
        """Positions along the contraction for each layer of the mesh."""
        return even_spans(0, self.a.columns[-1], self.mesh[2])

    def position(self, rank: int) -> tuple[int, int, int] | None:
        """Return the place of a rank in the mesh, ``None`` when it has none."""
        if rank not in self.places:
            return None
        _, columns, depth = self.mesh
        rest, d = divmod(self.places.index(rank), depth)
        r, c = divmod(rest, columns)
        return r, c, d

    def rank_at(self, r: int, c: int, d: int) -> int:
        """Return the rank at a place of the mesh."""
        _, columns, depth = self.mesh
        return self.places[(r * columns + c) * depth + d]

    def rectangle(self, rank: int) -> tuple[Span, Span]:
        """Return the rows and columns of C, as positions, that a rank computes."""
        place = self.position(rank)
        if place is None:
            return (0, 0), (0, 0)
        (i0, i1), (j0, j1) = self.row_spans[place[0]], self.column_spans[place[1]]
        return (self.a.rows[i0], self.a.rows[i1]), (self.b.columns[j0], self.b.columns[j1])

    def panel(self, rank: int, step: int) -> Span:
        """Return the positions along the contraction that a rank multiplies in a step.

        Ranks of one layer start at different panels, evenly spread, and go round.
        """
        place = self.position(rank)
        if place is None:
            return 0, 0
        r, c, d = place
        shift = (r * self.mesh[1] + c) * self.steps // (self.mesh[0] * self.mesh[1])
        return even_spans(*self.depth_spans[d], self.steps)[(step + shift) % self.steps]

    def owners(self) -> dict[tuple[int, int], int]:
        """Return the rank that ends up with each block of C."""
        placed: dict[tuple[int, int], int] = {}
        for r, c in cartesian(range(self.mesh[0]), range(self.mesh[1])):
            for (i, j), d in self.final_layers(r, c).items():
                placed[i, j] = self.rank_at(r, c, d)
        return placed

    def final_layers(self, r: int, c: int) -> dict[tuple[int, int], int]:
        """Return, for the blocks of one rectangle of C, the layer that keeps each."""
        (i0, i1), (j0, j1) = self.row_spans[r], self.column_spans[c]
        blocks = list(cartesian(range(i0, i1), range(j0, j1)))
        return dict(zip(blocks, self._layers_of(len(blocks)).tolist(), strict=True))

    def _layers_of(self, blocks: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the layer that keeps each of so many blocks."""
        return np.arange(blocks) * self.mesh[2] // max(1, blocks)

    def panel_bytes(self, steps: int) -> int:
        """Return the bytes of the widest of so many panels: A's part and B's together."""
        width = max(hi - lo for lo, hi in self.depth_spans)
        width = -(-width // steps)
        return sum(self.extents) * width * np.dtype(self.accumulator).itemsize

    @property
    def sum_bytes(self) -> int:
        """Return the bytes of the largest rectangle of C that a rank sums up."""
        return prod(self.extents) * np.dtype(self.accumulator).itemsize

    @property
    def workspace_limit(self) -> int:
        """Bytes that a rank may use beyond its share of A, B and C: four panels.

        Its share of C counts in :attr:`accumulator`.
        """
        return 4 * self.panel_bytes(self.nominal_steps)

    def groups(self, rank: int) -> tuple[Span, ...]:
        """Return the block columns of C that a rank keeps together, as spans.

        A strip, which is one block row of a group, is copied when it is cut into
        blocks, so it is kept smaller than a panel. Blocks that are wide enough for
        a product of their own are alone in their group, and not copied.
        """
        place = self.position(rank)
        if place is None:
            return ((0, 0),)
        (i0, i1), (j0, j1) = self.row_spans[place[0]], self.column_spans[place[1]]
        rows, columns = self.a.rows, self.b.columns
        tallest = max((rows[i + 1] - rows[i] for i in range(i0, i1)), default=0)
        row_bytes = tallest * np.dtype(self.accumulator).itemsize
        edges = [j0]
        for j in range(j0 + 1, j1):
            wide = columns[j] - columns[edges[-1]] >= WIDE
            strip = (columns[j + 1] - columns[edges[-1]]) * row_bytes
            if wide or strip > self.workspace_limit // 4:
                edges.append(j)
        return tuple(zip(edges, [*edges[1:], j1], strict=True))

    @property
    def copied_bytes(self) -> int:
        """Return the bytes of the largest strip that is copied when it is cut up."""
        itemsize = np.dtype(self.accumulator).itemsize
        rows, columns = self.a.rows, self.b.columns
        largest = 0
        for rank in self.places:
            (top, bottom), _ = self.rectangle(rank)
            heights = [hi - lo for lo, hi in pairwise(rows) if top <= lo and hi <= bottom]
            for j0, j1 in self.groups(rank):
                if j1 - j0 > 1:
                    width = columns[j1] - columns[j0]
                    largest = max(largest, max(heights, default=0) * width * itemsize)
        return largest

    @property
    def partial_bytes(self) -> int:
        """Bytes of the largest partial sum that is no rank's share; 0 with one layer."""
        return self.sum_bytes if self.mesh[2] > 1 else 0

    @property
    def reduction_bytes(self) -> int:
        """Most bytes that adding the layers takes beyond the share of C; 0 with one layer.

        A rank then holds its partial sums, the same as a message, and those that
        all layers have of the blocks it keeps.
        """
        if self.mesh[2] == 1:
            return 0
        return max(2 * sums + (self.mesh[2] - 1) * kept for sums, kept in self._partial_sums())

    def _partial_sums(self) -> Iterator[tuple[int, int]]:
        """Bytes of each rectangle of C, and of the most that one layer keeps of it."""
        itemsize = np.dtype(self.accumulator).itemsize
        heights, widths = np.diff(self.a.rows), np.diff(self.b.columns)
        for (i0, i1), (j0, j1) in cartesian(self.row_spans, self.column_spans):
            nbytes = np.outer(heights[i0:i1], widths[j0:j1]).reshape(-1) * itemsize
            kept = np.bincount(self._layers_of(nbytes.size), nbytes, self.mesh[2])
            yield int(kept.sum()), int(kept.max())
