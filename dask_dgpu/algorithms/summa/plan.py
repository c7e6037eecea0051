"""The plan of a matrix multiplication: its operands, its mesh, and the work of each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise
from itertools import product as cartesian
from math import prod
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from dask_dgpu.algorithms.summa.wire import (
    EXACT,
    Encoding,
    Form,
    Sparse,
    SparseThreshold,
    WireDtype,
)
from graph_opt.model.cost import Hosts, host_by_rank
from graph_opt.model.layout import (
    Bare,
    Cuts,
    Index,
    Layout,
    Span,
    block_spans,
    even_spans,
    overlaps,
)

Strategy = Literal["auto", "row", "column", "summa", "inner"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True)
class Options:
    """The family of meshes to choose from, and the form of pieces in messages.

    ``wire_dtype`` is None for that of the settings. Below ``sparse_threshold`` zeros are left out.
    """

    strategy: Strategy = "auto"
    wire_dtype: WireDtype | None = None
    sparse_threshold: SparseThreshold = None


DEFAULTS = Options()


Block = tuple[int, int]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Matrix = Mapping[Any, Any]
"""Blocks of a matrix, by their places in its array."""

ALIGN = 16
"""Pieces in a message start at multiples of this, in bytes; views of any dtype are aligned."""


def aligned(nbytes: Any) -> Any:
    """Round bytes up to a multiple of ``ALIGN``."""
    return -(-nbytes // ALIGN) * ALIGN


@dataclass(frozen=True)
class Operand(Layout):
    """The layout of a matrix, its dtype, and how its pieces travel."""

    dtype: str
    encoding: Encoding = EXACT

    @property
    def rows(self) -> Cuts:
        """Cuts of the rows."""
        return self.cuts[0]

    @property
    def columns(self) -> Cuts:
        """Cuts of the columns."""
        return self.cuts[1]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @cached_property
    def ranks(self) -> Ints:
        """The rank of each block, as a matrix."""
        return np.array(self.owners, np.int64).reshape(self.grid)

    @cached_property
    def sizes(self) -> Floats:
        """The bytes of each block, as a matrix."""
        heights, widths = map(np.diff, self.cuts)
        return np.outer(heights, widths).astype(float) * self.itemsize

    @property
    def travelling(self) -> Floats:
        """The bytes of the elements of each block in messages, as a matrix."""
        return self.sizes * (self.encoding.element_bytes(self.itemsize) / self.itemsize)

    def piece_bytes(self, heights: Any, widths: Any) -> Any:
        """Return the bytes in messages of pieces of these heights and widths."""
        return self.encoding.piece_bytes(heights, widths, self.itemsize)

    def shares(self, size: int) -> Ints:
        """Return the bytes of the blocks of each of ``size`` ranks."""
        return np.bincount(self.ranks.ravel(), self.sizes.ravel(), size).astype(np.int64)


Mesh = tuple[int, int, int]

WIDE = 512
"""Columns of a block that is multiplied alone: a wider product is not faster."""


@dataclass(frozen=True)
class SummaPlan(Bare):
    """The plan of one product on ``size`` ranks.

    Parameters
    ----------
    a, b : Operand
        The operands; their cuts along the contraction may differ.
    dtype : str
        The dtype of the result and of the accumulation (float16 accumulates in float32).
    size : int
        Number of ranks of the communicator.
    mesh : tuple of int
        Ranks along the rows, the columns and the contraction; their product is at most ``size``.
    places : tuple of int
        The rank at each position of the mesh, in row-major order.
    steps : int
        Number of panels of a layer.
    nominal_steps : int
        The optimal number of panels. ``steps`` is larger if their buffers would exceed
        :attr:`workspace_limit`.
    one_sided : bool
        Whether ranks read their pieces from the owners' blocks, if the transport can.
    in_place : tuple of bool
        Whether the blocks of A, and those of B, are multiplied where they lie. Every rank then owns
        the blocks that it needs, and has no panel of that operand.
    rows, columns, layers : tuple of (int, int)
        Block rows of C for each row of the mesh, block columns of C for each column, and positions
        along the contraction for each layer; even shares if empty.
    hosts : tuple of int
        Number of ranks on each host if a host gets each piece from other hosts once, and its ranks
        pass it on; else empty.
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
    in_place: tuple[bool, bool] = (False, False)
    rows: tuple[Span, ...] = ()
    columns: tuple[Span, ...] = ()
    layers: tuple[Span, ...] = ()
    hosts: Hosts = ()

    @property
    def operands(self) -> tuple[Operand, Operand]:
        """Both operands."""
        return self.a, self.b

    @cached_property
    def encoded(self) -> bool:
        """Whether pieces of an operand do not travel as they are."""
        return any(operand.encoding != EXACT for operand in self.operands)

    @cached_property
    def sparse(self) -> bool:
        """Whether pieces of an operand may travel without their zeros."""
        return any(isinstance(operand.encoding, Sparse) for operand in self.operands)

    @property
    def spans(self) -> tuple[tuple[Span, ...], ...]:
        """Block rows, block columns and positions along the contraction, each by the mesh."""
        return self.row_spans, self.column_spans, self.depth_spans

    @cached_property
    def accumulator(self) -> str:
        """The dtype of panels and sums on a host."""
        return "float32" if self.dtype == "float16" else self.dtype

    @cached_property
    def shares(self) -> dict[tuple[int, Order | None], Share]:
        """Cache of the share of each rank, by the order of blocks."""
        return {}

    @cached_property
    def row_spans(self) -> tuple[Span, ...]:
        """Block rows of C for each row of the mesh."""
        return self.rows or block_spans(self.a.rows, self.mesh[0])

    @cached_property
    def column_spans(self) -> tuple[Span, ...]:
        """Block columns of C for each column of the mesh."""
        return self.columns or block_spans(self.b.columns, self.mesh[1])

    @cached_property
    def extents(self) -> tuple[int, int]:
        """Most rows and most columns of C that a rank computes."""
        spans = (self.a.rows, self.row_spans), (self.b.columns, self.column_spans)
        rows, columns = (max(cuts[hi] - cuts[lo] for lo, hi in parts) for cuts, parts in spans)
        return rows, columns

    @cached_property
    def depth_spans(self) -> tuple[Span, ...]:
        """Positions along the contraction for each layer of the mesh."""
        return self.layers or even_spans(0, self.a.columns[-1], self.mesh[2])

    @property
    def deepest(self) -> int:
        """Most positions along the contraction of a layer."""
        return max(hi - lo for lo, hi in self.depth_spans)

    @property
    def itemsize(self) -> int:
        """Bytes of an element of a panel or sum."""
        return np.dtype(self.accumulator).itemsize

    @cached_property
    def positions(self) -> dict[int, Mesh]:
        """The place in the mesh of each rank that has one."""
        seats = cartesian(*map(range, self.mesh))
        return {rank: (r, c, d) for rank, (r, c, d) in zip(self.places, seats, strict=True)}

    def rank_at(self, r: int, c: int, d: int) -> int:
        """Return the rank at a place of the mesh."""
        _, columns, depth = self.mesh
        return self.places[(r * columns + c) * depth + d]

    def rectangle(self, rank: int) -> tuple[Span, Span]:
        """Return a rank's rows and columns of C, as positions."""
        if rank not in self.positions:
            return (0, 0), (0, 0)
        r, c, _ = self.positions[rank]
        (i0, i1), (j0, j1) = self.row_spans[r], self.column_spans[c]
        return (self.a.rows[i0], self.a.rows[i1]), (self.b.columns[j0], self.b.columns[j1])

    def panel(self, rank: int, step: int) -> Span:
        """Return a rank's positions along the contraction in a step; see :meth:`panel_number`."""
        if rank not in self.positions:
            return 0, 0
        return self.panels(self.positions[rank][2])[self.panel_number(rank, step)]

    def panel_number(self, rank: int, step: int) -> int:
        """Return the panel of a rank in a step, of the panels of its layer.

        Ranks of one layer start at different panels, evenly spread, and wrap around. If ranks of a
        host pass on pieces, they start at the same panel.
        """
        r, c, _ = self.positions[rank]
        if self.hosts:
            shift = int(self.host_of[rank]) * self.steps // len(self.hosts)
        else:
            shift = (r * self.mesh[1] + c) * self.steps // (self.mesh[0] * self.mesh[1])
        return (step + shift) % self.steps

    def panels(self, layer: int) -> tuple[Span, ...]:
        """Return the positions of each panel of a layer."""
        return even_spans(*self.depth_spans[layer], self.steps)

    @cached_property
    def host_of(self) -> Ints:
        """The host of each rank."""
        return host_by_rank(self.hosts)

    @cached_property
    def sharing(self) -> list[tuple[int, int, int, tuple[int, ...]]]:
        """Operand, part and layer of the mesh, and the ranks that share its pieces.

        These are the ranks of a host with this part, in ascending order, or one rank.
        """
        found: dict[tuple[int, int, int, int], list[int]] = {}
        for rank, (r, c, d) in sorted(self.positions.items()):
            group = int(self.host_of[rank]) if self.hosts else rank
            for operand, part in enumerate((r, c)):
                found.setdefault((operand, part, d, group), []).append(rank)
        return [(*key[:3], tuple(ranks)) for key, ranks in found.items()]

    def owners(self) -> dict[Block, int]:
        """Return the owner of each block of C."""
        return {
            block: self.rank_at(r, c, d)
            for r, c in cartesian(range(self.mesh[0]), range(self.mesh[1]))
            for block, d in self.final_layers(r, c).items()
        }

    def final_layers(self, r: int, c: int) -> dict[Block, int]:
        """Return the final layer of each block in a rectangle of C."""
        (i0, i1), (j0, j1) = self.row_spans[r], self.column_spans[c]
        blocks = list(cartesian(range(i0, i1), range(j0, j1)))
        return dict(zip(blocks, self._layers_of(len(blocks)).tolist(), strict=True))

    def _layers_of(self, blocks: int) -> Ints:
        return np.arange(blocks) * self.mesh[2] // max(1, blocks)

    @property
    def panel_extents(self) -> tuple[int, int]:
        """Rows of the largest panel of A, and columns of that of B; 0 for blocks in place."""
        (rows, columns), (left, right) = self.extents, self.in_place
        return (0 if left else rows), (0 if right else columns)

    def panel_bytes(self, steps: int) -> int:
        """Return the bytes of the widest panel: A's part and B's together."""
        return sum(self.panel_extents) * -(-self.deepest // steps) * self.itemsize

    @property
    def sum_bytes(self) -> int:
        """Bytes of the largest rectangle of C."""
        return prod(self.extents) * self.itemsize

    @property
    def workspace_limit(self) -> int:
        """Bytes of a rank beyond its share of A, B and C: four panels, as if none were in place.

        The share of C counts in :attr:`accumulator`.
        """
        return 4 * sum(self.extents) * -(-self.deepest // self.nominal_steps) * self.itemsize

    def groups(self, rank: int) -> tuple[Span, ...]:
        """Return the groups of block columns of C on a rank, as spans.

        A strip is one block row of a group. Cutting it into blocks copies it, so it is smaller than
        a panel. A block wide enough for a product of its own is a group, and is not copied.
        """
        if rank not in self.positions:
            return ((0, 0),)
        r, c, _ = self.positions[rank]
        (i0, i1), (j0, j1) = self.row_spans[r], self.column_spans[c]
        rows, columns = self.a.rows, self.b.columns
        tallest = max((rows[i + 1] - rows[i] for i in range(i0, i1)), default=0)
        row_bytes = tallest * self.itemsize
        edges = [j0]
        for j in range(j0 + 1, j1):
            wide = columns[j] - columns[edges[-1]] >= WIDE
            strip = (columns[j + 1] - columns[edges[-1]]) * row_bytes
            if wide or strip > self.workspace_limit // 4:
                edges.append(j)
        return tuple(zip(edges, [*edges[1:], j1], strict=True))

    @property
    def copied_bytes(self) -> int:
        """Bytes of the largest strip that is copied."""
        rows, columns = self.a.rows, self.b.columns
        largest = 0
        for rank in self.places:
            (top, bottom), _ = self.rectangle(rank)
            heights = [hi - lo for lo, hi in pairwise(rows) if top <= lo and hi <= bottom]
            for j0, j1 in self.groups(rank):
                if j1 - j0 > 1:
                    width = columns[j1] - columns[j0]
                    largest = max(largest, max(heights, default=0) * width * self.itemsize)
        return largest

    @property
    def reduction_bytes(self) -> int:
        """Most bytes for adding the layers beyond the share of C; 0 with one layer.

        These are a rank's partial sums, the same as a message, and the partial sums of its blocks
        from all layers.
        """
        depth = self.mesh[2]
        if depth == 1:
            return 0
        most = (2 * kept.sum() + (depth - 1) * kept.max() for kept in self.kept.values())
        return int(max(most, default=0))

    @cached_property
    def kept(self) -> dict[Block, Ints]:
        """Bytes of each rectangle of C that each of its layers keeps at the end."""
        heights, widths = np.diff(self.a.rows), np.diff(self.b.columns)
        found: dict[Block, Ints] = {}
        for (r, rows), (c, columns) in cartesian(
            enumerate(self.row_spans), enumerate(self.column_spans)
        ):
            nbytes = np.outer(heights[slice(*rows)], widths[slice(*columns)]).ravel()
            layers = self._layers_of(nbytes.size)
            kept = np.bincount(layers, nbytes * self.itemsize, self.mesh[2])
            found[r, c] = kept.astype(np.int64)
        return found


Slices = tuple[slice, slice]


class Order(NamedTuple):
    """The places in their arrays of a plan's block rows and columns of A, and those of B."""

    rows: Sequence[int]
    left: Sequence[int]
    right: Sequence[int]
    columns: Sequence[int]

    def name(self, operand: int, block: Block) -> Index:
        """Return the place in its array of a block of A, or of B."""
        down, along = (self.right, self.columns) if operand else (self.rows, self.left)
        return down[block[0]], along[block[1]]


class Piece(NamedTuple):
    """A rectangle of one block, for a panel.

    ``operand`` is 0 for A and 1 for B; ``source`` is a place in the block, ``target`` one in the
    panel; ``form`` is that in a message, ``None`` if it travels as it is. ``name`` is the place of
    the block in its array, which may be another than in the plan.
    """

    operand: int
    block: Block
    name: Index
    owner: int
    source: Slices
    target: Slices
    shape: tuple[int, int]
    nbytes: int
    form: Form | None


class Pieces(list[list[Piece]]):
    """Pieces to each rank, or from it, in the order of their messages."""

    @cached_property
    def counts(self) -> list[int]:
        """The bytes of each message."""
        return [sum(aligned(piece.nbytes) for piece in some) for some in self]

    @cached_property
    def nbytes(self) -> int:
        """The bytes of all messages."""
        return sum(self.counts)

    @cached_property
    def placed(self) -> list[tuple[Piece, slice]]:
        """Each piece, and its bytes in a buffer of all messages."""
        ordered = [piece for some in self for piece in some]
        starts = accumulate((aligned(piece.nbytes) for piece in ordered), initial=0)
        pairs = zip(ordered, starts, strict=False)
        return [(piece, slice(start, start + piece.nbytes)) for piece, start in pairs]


class Step:
    """The work of one rank in one step: local pieces, and those for and from each rank.

    ``moves`` is whether any rank sends in this step; if not, no rank calls the exchange. On several
    hosts it is whether this rank sends or receives. There a rank receives a piece from another host
    and passes it on to ranks of its own, or is ``passed`` it.
    """

    def __init__(self, panel: Span, size: int) -> None:
        self.panel = panel
        self.local: list[Piece] = []
        self.sends, self.receives, self.passes, self.passed = (
            Pieces([] for _ in range(size)) for _ in range(4)
        )
        self.moves = False

    def add(self, piece: Piece, rank: int, ranks: Sequence[int]) -> None:
        """Add a piece to the work of a rank; each of ``ranks`` needs it from its owner."""
        for destination in ranks:
            if piece.owner == destination:
                if destination == rank:
                    self.local.append(piece)
            elif piece.owner == rank:
                self.sends[destination].append(piece)
            elif destination == rank:
                self.receives[piece.owner].append(piece)

    def add_from_far(self, piece: Piece, rank: int, ranks: Sequence[int]) -> None:
        """Add a piece that one of ``ranks``, which share a host, receives for all."""
        agent = ranks[sum(piece.block) % len(ranks)]
        self.add(piece, rank, [agent])
        if rank == agent:
            for other in ranks:
                if other != rank:
                    self.passes[other].append(piece)
        elif rank in ranks:
            self.passed[agent].append(piece)


def schedule(plan: SummaPlan, rank: int, order: Order | None = None) -> list[Step]:
    """Return the steps of one rank; blocks may be in another order than in their arrays."""
    steps, find = [], pieces_of(plan)
    for at in range(plan.steps):
        step = Step(plan.panel(rank, at), plan.size)
        for operand, part, layer, ranks in plan.sharing:
            found = find(operand, part, layer)
            owner = found.owner[found.panel == plan.panel_number(ranks[0], at)]
            step.moves |= not plan.hosts and bool(np.any(owner != ranks[0]))
            if rank not in ranks and not np.any(owner == rank):
                continue
            for piece in pieces(plan, operand, ranks[0], at):
                if order is not None:
                    piece = piece._replace(name=order.name(operand, piece.block))
                if plan.hosts and plan.host_of[piece.owner] != plan.host_of[ranks[0]]:
                    step.add_from_far(piece, rank, ranks)
                else:
                    step.add(piece, rank, ranks)
        if plan.hosts:
            step.moves = any(map(any, (step.sends, step.receives, step.passes, step.passed)))
        steps.append(step)
    return steps


def pieces(plan: SummaPlan, operand: int, rank: int, step: int) -> Iterator[Piece]:
    """Yield the pieces of an operand for a rank's panel in a step."""
    rows, columns = plan.rectangle(rank)
    panel = plan.panel(rank, step)
    spans = (rows, panel) if operand == 0 else (panel, columns)
    return _cut(operand, plan.operands[operand], *spans)


def _cut(operand: int, matrix: Operand, rows: Span, columns: Span) -> Iterator[Piece]:
    across, width, form = _parts(matrix.columns, columns), matrix.grid[1], matrix.encoding.form
    for i, height, *down in _parts(matrix.rows, rows):
        for j, length, *along in across:
            source, target = zip(down, along, strict=True)
            shape, owner = (height, length), matrix.owners[i * width + j]
            nbytes = matrix.piece_bytes(height, length)
            yield Piece(operand, (i, j), (i, j), owner, source, target, shape, nbytes, form)


def _parts(cuts: Cuts, span: Span) -> list[tuple[int, int, slice, slice]]:
    """Return the chunks in a span of an axis: length, and places in the chunk and in the span."""
    first = span[0]
    return [
        (at, hi - lo, slice(lo - cuts[at], hi - cuts[at]), slice(lo - first, hi - first))
        for at, lo, hi in overlaps(cuts, *span)
    ]


class Found(NamedTuple):
    """The place (block row plus column), panel, owner, and bytes in messages of each piece."""

    place: Ints
    panel: Ints
    owner: Ints
    nbytes: Ints


Find = Callable[[int, int, int], Found]


def pieces_of(plan: SummaPlan) -> Find:
    """Return what finds the pieces of a part of the mesh in a layer."""
    edges = [[np.array(cuts) for cuts in matrix.cuts] for matrix in plan.operands]

    @cache
    def find(operand: int, part: int, layer: int) -> Found:
        matrix, (lo, hi) = plan.operands[operand], plan.spans[operand][part]
        along, across = edges[operand][operand], edges[operand][1 - operand]
        mine, _, lengths = _cut_by(along, np.array([along[lo], along[hi]]))
        panels = plan.panels(layer)
        inner, panel, widths = _cut_by(across, np.array([panels[0][0], *(hi for _, hi in panels)]))
        rows, heights, columns, wide = mine[:, None], lengths[:, None], inner, widths
        if operand == 1:
            rows, heights, columns, wide = inner[:, None], widths[:, None], mine, lengths
        nbytes = aligned(matrix.piece_bytes(heights, wide))
        numbers = np.broadcast_to(panel if operand == 0 else panel[:, None], nbytes.shape)
        found = rows + columns, numbers, matrix.ranks[rows, columns], nbytes
        return Found(*(each.ravel() for each in found))

    return find


def _cut_by(cuts: Ints, spans: Ints) -> tuple[Ints, Ints, Ints]:
    """Cut consecutive spans by chunks; return the chunk, the span and the length of each part."""
    inside = cuts[(cuts > spans[0]) & (cuts < spans[-1])]
    edges = np.unique(np.concatenate([spans, inside]))
    starts = edges[:-1]
    chunk, span = (each.searchsorted(starts, "right") - 1 for each in (cuts, spans))
    return chunk, span, np.diff(edges)


@dataclass(frozen=True)
class Share:
    """What a rank does in a product: its steps, rows and columns of its panels, and strips of C.

    Strips have a block row, a span of block columns, the number of their group, the first row in
    the rank's rectangle, and a shape. ``starts`` are the first columns of groups, ``size`` the most
    elements of a panel.
    """

    steps: list[Step]
    height: int
    width: int
    starts: list[int]
    strips: list[tuple[int, Span, int, int, tuple[int, int]]]
    size: int
    order: Order


def share_of(plan: SummaPlan, rank: int, order: Order | None = None) -> Share:
    """Return what a rank does, found once for a plan: loops run one plan many times.

    Strips have one block row and as many block columns as the workspace allows.
    """
    if (rank, order) in plan.shares:
        return plan.shares[rank, order]
    (top, bottom), (left, right) = plan.rectangle(rank)
    groups, strips = plan.groups(rank), []
    rows, columns = plan.a.rows, plan.b.columns
    r = plan.positions[rank][0] if rank in plan.positions else None
    for i in range(*plan.row_spans[r]) if r is not None else ():
        for group, (j0, j1) in enumerate(groups):
            shape = rows[i + 1] - rows[i], columns[j1] - columns[j0]
            strips.append((i, (j0, j1), group, rows[i] - top, shape))
    height = 0 if plan.in_place[0] else bottom - top
    width = 0 if plan.in_place[1] else right - left
    plan.shares[rank, order] = Share(
        schedule(plan, rank, order),
        height,
        width,
        [columns[j] - left for j, _ in groups],
        strips,
        (height + width) * -(-plan.deepest // plan.steps),
        order or Order(*(range(blocks) for each in plan.operands for blocks in each.grid)),
    )
    return plan.shares[rank, order]
