"""Matrix products by SUMMA."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_dgpu.algorithms.summa.choose import (
    cost,
    owners_along,
    plan_summa,
    summed,
    traffic,
    transfers_of,
    workspace,
)
from dask_dgpu.algorithms.summa.plan import (
    DEFAULTS,
    Operand,
    Options,
    SummaPlan,
    share_of,
)
from dask_dgpu.algorithms.summa.rank import summa_rank
from dask_dgpu.algorithms.summa.wire import (
    Exact,
    Half,
    Sent,
    Sparse,
    encoding,
)
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import (
    Blocks,
    Cost,
    Operation,
    Placed,
    Progress,
    Request,
    product_flops,
)
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Bare, Cuts, Layout, counted, cuts_of


@dataclass(frozen=True)
class PartProduct(Bare):
    """The block rows and columns of a product that are made, by a plan that knows no others.

    They are ordered by owner, and so are the blocks along the contraction, ``inner``, which is
    empty if the operands have different chunks there.
    """

    plan: SummaPlan
    cuts: tuple[Cuts, Cuts]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: tuple[int, ...]
    options: Options = DEFAULTS

    @property
    def names(self) -> tuple[tuple[Sequence[int], Sequence[int]], ...]:
        """The places in each array of the plan's block rows and columns: left, right, result."""
        depths = self.plan.a.grid[1], self.plan.b.grid[0]
        left, right = (self.inner or range(depth) for depth in depths)
        return (self.rows, left), (right, self.columns), (self.rows, self.columns)


def _plan(request: Request) -> PartProduct:
    (a, b), result, (rows, columns, depth, given) = request.inputs, request.result, request.task
    options = given or DEFAULTS
    plain = (depth or range(a.layout.grid[1])), (depth or range(b.layout.grid[0]))
    wire, machine = options.wire_dtype or "exact", request.machine
    forms = [encoding(wire, axis, options.sparse_threshold, machine) for axis in (0, 1)]
    left, right = _operand(a, forms[0], rows, plain[0]), _operand(b, forms[1], plain[1], columns)
    by_row, by_column, by_inner = owners_along(left, right, request.size)
    rows, columns = _sorted(rows, by_row), _sorted(columns, by_column)
    inner = _sorted(plain[0], by_inner) if len(by_inner) else ()
    left = _operand(a, forms[0], rows, inner or plain[0])
    right = _operand(b, forms[1], inner or plain[1], columns)
    limits, strategy = (request.size, machine), options.strategy
    plan = plan_summa(left, right, result.dtype, *limits, strategy=strategy, room=request.room)
    height, width = result.cuts
    return PartProduct(plan, (height, width), rows, columns, inner, options)


def _sorted(blocks: Sequence[int], owners: Any) -> tuple[int, ...]:
    """Order blocks by owner, so that a part of the mesh can have the blocks of one rank."""
    return tuple(np.array(blocks, np.int64)[np.argsort(owners, kind="stable")].tolist())


def _operand(placed: Placed, form: Exact, *kept: Sequence[int]) -> Operand:
    """Return the matrix of some block rows and columns, in this order."""
    layout = placed.layout
    chunks = zip(layout.lengths, kept, strict=True)
    sizes = [[lengths[at] for at in blocks] for lengths, blocks in chunks]
    owners = np.array(layout.owners, np.int64).reshape(layout.grid)[np.ix_(*kept)]
    ranks, cuts = tuple(owners.reshape(-1).tolist()), tuple(map(cuts_of, sizes))
    return Operand(cuts, ranks, placed.dtype, form)


def _layout(part: PartProduct) -> Layout:
    return part.plan.result.within(part.cuts, np.ix_(part.rows, part.columns))


def _run(part: PartProduct, comm: Comm, *given: Any, progress: Progress) -> Any:
    return _prepare(part, comm.rank)(comm, *given, progress=progress)


def _prepare(part: PartProduct, rank: int) -> Callable[..., Any]:
    """Return the product as one rank; its plan has blocks in another order than the arrays."""
    plan, (*names, (rows, columns)) = part.plan, part.names
    share = share_of(plan, rank)  # found before the first run
    owned = [
        [((i, j), (down[i], along[j])) for i, j in np.argwhere(matrix.ranks == rank).tolist()]
        for matrix, (down, along) in zip(plan.operands, names, strict=True)
    ]

    def run(comm: Comm, device: Device, *arrays: Blocks, progress: Progress) -> Any:
        pairs = zip(owned, arrays, strict=True)
        a, b = ({at: given[index] for at, index in some} for some, given in pairs)
        sent = Sent() if plan.encoded else None
        made = summa_rank(plan, comm, device, a, b, progress, sent, share)
        blocks = {(rows[i], columns[j]): block for (i, j), block in made.items()}
        return blocks if sent is None else (blocks, sent.total(comm, device))

    return run


def _cost(part: PartProduct, machine: Machine) -> Cost:
    plan, steps = part.plan, traffic(part.plan)[:, 1]
    received = steps.sum(axis=0)
    busiest = int(received.max())
    machine = transfers_of(plan, machine, busiest)
    strategy, wanted = _strategy(plan), part.options.strategy
    if wanted != "auto":
        strategy = f"strategy {wanted!r}, {strategy}"
    return Cost(
        seconds=cost(plan, machine, busiest, int(steps[0].max())),
        moved_bytes=int((received + summed(plan)).max()),
        peak_bytes=_peak(plan),
        text=f"{strategy}, mesh {plan.mesh}, {counted(plan.steps, 'panel')}{_in_place(plan)}"
        f"{_precision(plan)}{_zeros(part)}",
        details=(
            ("mesh", plan.mesh),
            ("strategy", strategy),
            ("steps", plan.steps),
            ("in_place", plan.in_place),
            ("wire_dtype", part.options.wire_dtype or "exact"),
            ("sparse_threshold", part.options.sparse_threshold),
        ),
    )


def _flops(part: PartProduct) -> float:
    plan = part.plan
    return product_flops(plan.a.rows[-1] * plan.a.columns[-1] * plan.b.columns[-1], plan.dtype)


def _in_place(plan: SummaPlan) -> str:
    named = [name for name, there in zip(("left", "right"), plan.in_place, strict=True) if there]
    return f", {' and '.join(named)} in place" if named else ""


def _precision(plan: SummaPlan) -> str:
    """Return the precision of messages and the error that it causes; nothing if none."""
    wire, k = plan.a.encoding, plan.a.columns[-1]
    if not isinstance(wire, Half):
        return ""
    bound = 2 * wire.eps * math.sqrt(k)
    return (
        f", {wire.dtype} in messages: errors of at most 2 eps sqrt(K) |row of a| |column of b| = "
        f"{bound:.2g} |row| |column| (eps {wire.eps:.3g}, K {k})"
    )


def _zeros(part: PartProduct) -> str:
    """Return which messages travel without zeros; nothing if none was asked for."""
    wire, threshold = part.plan.a.encoding, part.options.sparse_threshold
    if threshold is None:
        return ""
    if not isinstance(wire, Sparse):
        return ", zeros travel: on this network leaving them out saves no time"
    if threshold == "auto":
        return f", no zeros in messages if this saves over {wire.saving:.0%} of a part"
    return f", no zeros in messages of parts below density {wire.threshold:g}"


def _strategy(plan: SummaPlan) -> str:
    """Name the corner of the family of meshes that a plan is."""
    rows, columns, depth = plan.mesh
    if depth > 1:
        name = "inner" if rows == columns == 1 else "summa with layers"
    elif columns == 1:
        name = "one rank" if rows == 1 else "ring over rows"
    else:
        name = "ring over columns" if rows == 1 else "summa"
    return f"{name}, one-sided" if plan.one_sided and plan.size > 1 else name


def _peak(plan: SummaPlan) -> int:
    shares = plan.result.shares(plan.size, plan.itemsize)
    for operand in plan.operands:
        shares += operand.shares(plan.size, operand.itemsize)
    return int(shares.max()) + workspace(plan)


def _repeats(part: PartProduct) -> bool:
    """Whether the host neither reads counts of zeros nor opens windows."""
    plan = part.plan
    return not plan.sparse and (plan.size == 1 or not plan.one_sided)


MATMUL = Operation(
    plan=_plan,
    layout=_layout,
    run=_run,
    prepare=_prepare,
    cost=_cost,
    flops=_flops,
    repeats=_repeats,
)
