"""The plan of a matrix multiplication: its operands, its mesh, and the work of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import accumulate, pairwise
from itertools import product as cartesian
from math import prod
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from dask_dgpu.algorithms.summa.wire import (
    EXACT,
    Exact,
    Form,
    Sparse,
    SparseThreshold,
    WireDtype,
)
from graph_opt.model.cost import Hosts, host_by_rank
from graph_opt.model.layout import (
    Bare,
    Cuts,
    Layout,
    Span,
    even_spans,
    once_per_rank,
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
    encoding: Exact = EXACT

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


Mesh = tuple[int, int, int]
Spans = tuple[tuple[Span, ...], tuple[Span, ...], tuple[Span, ...]]

WIDE = 512
"""Columns of a block that is multiplied alone: a wider product is not faster."""


@dataclass(frozen=True)
class SummaPlan(Bare):
    """The plan of one product on ``size`` ranks.

    - The cuts of ``a`` and ``b`` along the contraction may differ. ``dtype`` is that of the result
      and of the accumulation (float16 accumulates in float32).
    - ``mesh`` has the ranks along rows, columns and contraction, at most ``size`` together;
      ``places`` are the ranks at its positions, in row-major order.
    - ``spans`` are block rows of C for each row of the mesh, block columns for each column, and
      positions along the contraction for each layer.
    - ``steps`` is the number of panels of a layer, ``nominal_steps`` the optimal one. It is smaller
      if buffers would exceed :attr:`workspace_limit`.
    - ``one_sided``: ranks read pieces from the owners' blocks, if the transport can.
    - ``in_place``: blocks of A, and those of B, are multiplied where they lie. Every rank then owns
      the blocks that it needs, and has no panel of that operand.
    - ``hosts`` has the number of ranks on each host if a host gets each piece from other hosts
      once, and its ranks pass it on.
    """

    a: Operand
    b: Operand
    dtype: str
    size: int
    mesh: Mesh
    spans: Spans
    places: tuple[int, ...]
    steps: int
    nominal_steps: int
    one_sided: bool = False
    in_place: tuple[bool, bool] = (False, False)
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

    @cached_property
    def accumulator(self) -> str:
        """The dtype of panels and sums on a host."""
        return "float32" if self.dtype == "float16" else self.dtype

    @cached_property
    def moves(self) -> tuple[Ints, Moves]:
        """Pieces and moves; see :func:`moves_of`."""
        return moves_of(self)

    @cached_property
    def extents(self) -> tuple[int, int]:
        """Most rows and most columns of C that a rank computes."""
        spans = (self.a.rows, self.spans[0]), (self.b.columns, self.spans[1])
        rows, columns = (max(cuts[hi] - cuts[lo] for lo, hi in parts) for cuts, parts in spans)
        return rows, columns

    @property
    def deepest(self) -> int:
        """Most positions along the contraction of a layer."""
        return max(hi - lo for lo, hi in self.spans[2])

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
        (i0, i1), (j0, j1) = self.spans[0][r], self.spans[1][c]
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
        return even_spans(*self.spans[2][layer], self.steps)

    @cached_property
    def host_of(self) -> Ints:
        """The host of each rank."""
        return host_by_rank(self.hosts)

    @cached_property
    def sharing(self) -> list[tuple[int, int, int, tuple[int, ...]]]:
        """Operand, part and layer of the mesh, and the ranks that share its pieces.

        These are the ranks of a host with this part, in ascending order, or one rank.
        """
        groups: dict[tuple[int, int, int, int], list[int]] = {}
        for rank, (r, c, d) in sorted(self.positions.items()):
            group = int(self.host_of[rank]) if self.hosts else rank
            for operand, part in enumerate((r, c)):
                groups.setdefault((operand, part, d, group), []).append(rank)
        return [(*key[:3], tuple(ranks)) for key, ranks in groups.items()]

    @cached_property
    def result(self) -> Layout:
        """The layout of C."""
        owners = np.empty((self.a.grid[0], self.b.grid[1]), np.int64)
        for r, c in cartesian(range(self.mesh[0]), range(self.mesh[1])):
            for block, d in self.final_layers(r, c).items():
                owners[block] = self.rank_at(r, c, d)
        return Layout((self.a.rows, self.b.columns), tuple(owners.ravel().tolist()))

    def final_layers(self, r: int, c: int) -> dict[Block, int]:
        """Return the final layer of each block in a rectangle of C."""
        (i0, i1), (j0, j1) = self.spans[0][r], self.spans[1][c]
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
        (i0, i1), (j0, j1) = self.spans[0][r], self.spans[1][c]
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
        owners: dict[Block, Ints] = {}
        for (r, rows), (c, columns) in cartesian(
            enumerate(self.spans[0]), enumerate(self.spans[1])
        ):
            nbytes = np.outer(heights[slice(*rows)], widths[slice(*columns)]).ravel()
            layers = self._layers_of(nbytes.size)
            kept = np.bincount(layers, nbytes * self.itemsize, self.mesh[2])
            owners[r, c] = kept.astype(np.int64)
        return owners


Slices = tuple[slice, slice]


class Piece(NamedTuple):
    """A rectangle of one block, for a panel.

    ``operand`` is 0 for A and 1 for B; ``source`` is a place in the block, ``target`` one in the
    panel; ``form`` is that in a message, ``None`` if it travels as it is.
    """

    operand: int
    block: Block
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


class PanelStep:
    """The work of one rank in one step: local pieces, and those for and from each rank.

    On several hosts a rank receives a piece from another host and passes it on to ranks of its own,
    or is ``passed`` it.
    """

    def __init__(self, panel: Span, size: int) -> None:
        self.panel = panel
        self.local: list[Piece] = []
        self.sends, self.receives, self.passes, self.passed = (
            Pieces([] for _ in range(size)) for _ in range(4)
        )


def schedule(plan: SummaPlan, rank: int) -> list[PanelStep]:
    """Return the steps of one rank: its rows of the table of all moves."""
    steps = [PanelStep(plan.panel(rank, i), plan.size) for i in range(plan.steps)]
    rectangles, moves = plan.moves
    known: dict[int, Piece] = {}
    mine = (moves.source == rank) | (moves.target == rank)
    for at, number, passed, source, target, _ in zip(
        *(column[mine].tolist() for column in moves), strict=True
    ):
        if number not in known:
            known[number] = _piece(plan, *rectangles[:, number].tolist())
        step, piece = steps[at], known[number]
        if source == target:
            step.local.append(piece)
        elif source == rank:
            (step.passes if passed else step.sends)[target].append(piece)
        else:
            (step.passed if passed else step.receives)[source].append(piece)
    return steps


def _piece(plan: SummaPlan, operand: int, i: int, j: int, *corners: int) -> Piece:
    """Return a piece, given its corners in its block and in the panel, and its shape."""
    *starts, height, width = corners
    matrix = plan.operands[operand]
    source, target = (
        (slice(top, top + height), slice(left, left + width))
        for top, left in (starts[:2], starts[2:])
    )
    nbytes = matrix.piece_bytes(height, width)
    form = matrix.encoding.form
    return Piece(operand, (i, j), source, target, (height, width), nbytes, form)


class Moves(NamedTuple):
    """What each rank gets in each step, of other ranks and of its own, as columns.

    ``piece`` is a number, ``passed`` whether a rank of the same host passes it on, and ``nbytes``
    are its bytes in a message.
    """

    step: Ints
    piece: Ints
    passed: Ints
    source: Ints
    target: Ints
    nbytes: Ints


def moves_of(plan: SummaPlan) -> tuple[Ints, Moves]:
    """Return a column for each piece, and all moves of pieces.

    The columns are those of :func:`_pieces_of`. Both ends of a message know the order of its
    pieces: that of the moves.
    """
    if not plan.places:
        return np.zeros((0, 0), np.int64), Moves(*np.zeros((len(Moves._fields), 0), np.int64))
    groups, find = plan.sharing, cache(partial(_pieces_of, plan))
    several = [find(operand, part, layer) for operand, part, layer, _ in groups]
    *pieces, owner, panel, nbytes = np.concatenate(several, axis=1)
    group = np.repeat(np.arange(len(groups)), [each.shape[1] for each in several])
    # panels wrap around
    first = np.array([plan.panel_number(ranks[0], 0) for *_, ranks in groups])
    step = (panel - first[group]) % plan.steps
    counts = np.array([len(ranks) for *_, ranks in groups])
    members = np.zeros((len(groups), counts.max()), np.int64)
    for row, (*_, ranks) in zip(members, groups, strict=True):
        row[: len(ranks)] = ranks
    sender, far = owner, np.zeros(len(owner), bool)
    if plan.hosts:  # one rank of a host receives for all
        far = plan.host_of[owner] != plan.host_of[members[group, 0]]
        agent = members[group, (pieces[1] + pieces[2]) % counts[group]]
        sender = np.where(far, agent, owner)
    ways = [
        (far, far & False, owner, sender),
        *((i < counts[group], far, sender, each[group]) for i, each in enumerate(members.T)),
    ]
    rows = []
    for there, passed, source, target in ways:
        some = np.flatnonzero(there & ((source != target) | ~passed))
        rows.append((step[some], some, passed[some], source[some], target[some], nbytes[some]))
    return np.array(pieces), Moves(*map(np.concatenate, zip(*rows, strict=True)))


def _pieces_of(plan: SummaPlan, operand: int, part: int, layer: int) -> Ints:
    """Return the pieces of a part of the mesh in a layer, a column for each.

    It has the operand, the block, the corner in the block and in the panel, the shape, the owner,
    the panel, and the bytes in a message.
    """
    matrix, (lo, hi) = plan.operands[operand], plan.spans[operand][part]
    along, contraction = (np.array(matrix.cuts[axis]) for axis in (operand, 1 - operand))
    panels = plan.panels(layer)
    panel, *inner = _cut_by(contraction, np.array([panels[0][0], *(hi for _, hi in panels)]))
    _, *mine = _cut_by(along, along[[lo, hi]])
    rows, columns = (mine, inner) if operand == 0 else (inner, mine)
    i, top, down, height = (column[:, None] for column in rows)
    j, left, across, width = columns
    panel = panel if operand == 0 else panel[:, None]
    nbytes = aligned(matrix.piece_bytes(height, width))
    place = operand, i, j, top, left, down, across, height, width
    fields = np.broadcast_arrays(*place, matrix.ranks[i, j], panel, nbytes)
    return np.array([field.ravel() for field in fields])


def _cut_by(cuts: Ints, spans: Ints) -> tuple[Ints, ...]:
    """Cut consecutive spans by chunks.

    Return the span of each part, its chunk, its first position in the chunk and in the span, and
    its length.
    """
    inside = cuts[(cuts > spans[0]) & (cuts < spans[-1])]
    edges = np.unique(np.concatenate([spans, inside]))
    starts = edges[:-1]
    chunk, span = (each.searchsorted(starts, "right") - 1 for each in (cuts, spans))
    return span, chunk, starts - cuts[chunk], starts - spans[span], np.diff(edges)


@dataclass(frozen=True)
class Share:
    """What a rank does in a product: its steps, rows and columns of its panels, and strips of C.

    Strips have a block row, a span of block columns, the number of their group, the first row in
    the rank's rectangle, and a shape. ``starts`` are the first columns of groups, ``size`` the most
    elements of a panel.
    """

    steps: list[PanelStep]
    height: int
    width: int
    starts: list[int]
    strips: list[tuple[int, Span, int, int, tuple[int, int]]]
    size: int


@once_per_rank
def share_of(plan: SummaPlan, rank: int) -> Share:
    """Return what a rank does.

    Strips have one block row and as many block columns as the workspace allows.
    """
    (top, bottom), (left, right) = plan.rectangle(rank)
    groups, strips = plan.groups(rank), []
    rows, columns = plan.a.rows, plan.b.columns
    r = plan.positions[rank][0] if rank in plan.positions else None
    for i in range(*plan.spans[0][r]) if r is not None else ():
        for group, (j0, j1) in enumerate(groups):
            shape = rows[i + 1] - rows[i], columns[j1] - columns[j0]
            strips.append((i, (j0, j1), group, rows[i] - top, shape))
    height = 0 if plan.in_place[0] else bottom - top
    width = 0 if plan.in_place[1] else right - left
    return Share(
        schedule(plan, rank),
        height,
        width,
        [columns[j] - left for j, _ in groups],
        strips,
        (height + width) * -(-plan.deepest // plan.steps),
    )
