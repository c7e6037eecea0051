"""Kernels for reductions with the elementwise work before them; several results in one pass.

The axes of the domain are kept or reduced. If neighbours in memory belong to one result, groups of
threads share a result (``along_rows``); if they belong to several, each thread has as many
accumulators as a vector has lanes (``along_columns``)::

    rows       0 0 0 0 1 1 1 1 ...     vectors of a row, by thread; a group adds its threads' sums
    columns    0 0 0 0 1 1 1 1 ...     thread 0 owns the first four columns, and so on down
               0 0 0 0 1 1 1 1 ...

If there are fewer results than threads that keep a device busy, several thread blocks (segments)
share each, and a second launch merges their states in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dask_dgpu.kernels.fused.device_functions import stored_type, value_type
from dask_dgpu.kernels.fused.kernel import THREADS, Array, Entry, Fold, Launch, constants, output
from dask_dgpu.kernels.fused.layout import (
    Walk,
    index_type,
    lanes_of,
    loads,
    order_of,
    scalars,
    strides_along,
    walk_of,
)
from dask_dgpu.kernels.fused.prelude import PRELUDE
from dask_dgpu.kernels.fused.reduce_shape import columns_shape, rows_shape
from dask_dgpu.kernels.fused.reduce_source import COLUMNS, FOLD, ROWS, SEED_COLUMNS, SEED_ROWS
from dask_dgpu.kernels.fused.source import Code, Context, signature_of, written
from dask_dgpu.kernels.fused.states import BYTES, SOURCE, State, limits, result, state_of, taken
from dask_dgpu.kernels.fused.typed import Typed
from graph_opt.model.expression import Node, Reduce


class Domain(NamedTuple):
    """The elements that some reductions read, as a kernel walks through them."""

    context: Context
    code: Code
    values: list[str]  # what each state takes
    states: list[State]
    described: list[Array]  # of each operand
    order: list[int]  # of the kept axes
    kept: Walk
    reduced: Walk


def domain_of(
    reductions: Sequence[int],
    nodes: Sequence[Node],
    found: Sequence[Typed],
    arrays: Mapping[int, Array],
) -> Domain:
    """Return the domain of reductions of one shape along the same axes."""
    context = Context(nodes, found, arrays.keys(), {}, {})
    code, values, states = Code(context), [], []
    shape: tuple[int, ...] = ()
    axes: set[int] = set()
    for at in reductions:
        node = nodes[at]
        if not isinstance(node, Reduce):
            raise TypeError(f"expected a reduction, got {node}")
        argument = found[node.argument]
        shape = argument.shape
        axes = {axis % len(shape) for axis in node.axes}
        state = state_of(node, argument, found[at])
        if state is None:
            raise TypeError(f"expected a reduction with generated code, got {node}")
        lies = tuple(axis if length != 1 else None for axis, length in enumerate(shape))
        value = code.value(node.argument, lies)
        values.append(taken(value, state, argument.dtype))
        states.append(state)
    described = [arrays[operand.node] for operand in context.operands]
    strides = [
        strides_along(operand.axes, array.strides, array.shape, len(shape))
        for operand, array in zip(context.operands, described, strict=True)
    ]
    order = order_of([axis for axis in range(len(shape)) if axis not in axes], strides)
    inner = sorted(axes)
    if not any(state.ordered for state in states):
        inner = order_of(inner, strides)
    kept = walk_of("k", order, shape, strides)
    reduced = walk_of("r", inner, shape, strides)
    return Domain(context, code, values, states, described, order, kept, reduced)


def reduction(
    reductions: Sequence[int],
    nodes: Sequence[Node],
    found: Sequence[Typed],
    arrays: Mapping[int, Array],
) -> Launch:
    """Return the launch of reductions of one shape along the same axes, none of them empty."""
    domain = domain_of(reductions, nodes, found, arrays)
    kept, reduced = domain.kept, domain.reduced
    sizes = [array.dtype.itemsize for array in domain.described]
    aligned = [array.aligned for array in domain.described]
    weight = sum(state.words for state in domain.states)
    down = lanes_of(kept, reduced, sizes, aligned, whole=True)
    near = [k == 1 for k in kept.inner]
    far = [r == 1 for r in reduced.inner]
    if sum(near) > sum(far) or (not any(far) and kept.size >= THREADS):
        shape = columns_shape(kept.size, reduced.size, down, weight)
    else:
        lanes = lanes_of(reduced, kept, sizes, aligned, whole=False)
        shape = rows_shape(kept.size, reduced.size, lanes, weight)
    index = index_type(kept, reduced)
    name, parts = ("rows", ROWS) if "group" in shape.macros else ("columns", COLUMNS)
    if shape.grid[1] > 1:
        parts += FOLD
    outs = [stored_type(found[at].dtype) for at in reductions]
    walks = f"{kept.declared()}{reduced.declared()}{SIZES}, const Index stretch"
    entry = Entry(
        name,
        signature_of(domain.context, outs, walks, "States"),
        ", ".join(str(shape.macros[key]) for key in ("threads", "resident") if key in shape.macros),
    )
    folding = ", ".join((*written(outs, "States"), SIZES, "const int segments"))
    source = parts % {
        **_common(domain),
        **shape.macros,
        "prelude": f"typedef {index} Index;\n" + _prelude(domain, reductions, found, outs),
        "signature": entry.signature,
        "fold_signature": folding,
    }
    segments, sizes = shape.grid[1], [kept.size, reduced.size]
    read = found[nodes[reductions[0]].arguments[0]].shape
    fold = None
    if segments > 1:
        blocks = -(-kept.size * shape.folding // THREADS)
        fold = Fold(
            Entry("fold", folding, str(THREADS)),
            (blocks,),
            (*scalars(index, sizes), np.int32(segments)),
        )
    return Launch(
        source,
        entry,
        shape.grid,
        tuple(domain.context.operands),
        constants(domain.context),
        tuple(
            output(at, found[at].dtype, found[at].shape, read, domain.order) for at in reductions
        ),
        tuple(scalars(index, [*kept.arguments(), *reduced.arguments(), *sizes, shape.stretch])),
        workspace=segments * kept.size * BYTES * len(reductions) if fold else 0,
        fold=fold,
    )


def _prelude(
    domain: Domain, reductions: Sequence[int], found: Sequence[Typed], outs: Sequence[str]
) -> str:
    """Return what is before the kernels: states, and how results are written."""
    nodes = domain.context.nodes
    return (
        PRELUDE
        + SOURCE
        + "".join(sorted({_limits(nodes[at], found) for at in reductions}))
        + states_source(domain.states)
        + FOLD_RESULTS
        % {
            "outs": "".join(f"{kind}* __restrict__ out{at}, " for at, kind in enumerate(outs)),
            "writes": "\n    ".join(
                f"out{at}[kept] = stored<{outs[at]}>("
                + result(domain.states[at], f"all.s{at}", "n", found[node].dtype)
                + ");"
                for at, node in enumerate(reductions)
            ),
        }
    )


def _common(domain: Domain) -> dict[str, str]:
    """Return the parts of the kernels that follow from the expression."""
    context, kept, reduced = domain.context, domain.kept, domain.reduced
    names = list(context.operands.values())
    kinds = [stored_type(array.dtype) for array in domain.described]
    values = "\n".join(f"a{at}[%s] = {value};" for at, value in enumerate(domain.values))
    several = range(len(domain.states))
    shifts = any(state.shifts for state in domain.states)

    def loaded(along: Walk) -> str:
        """Return loads of neighbours along an axis of these."""
        return "\n            ".join(
            loads(
                f"g_{name}[u]",
                kind,
                reduced.offset(at),
                along.inner[at],
                along.step(at),
                lanes="L",
                pointer=f"b_{name}",
            )
            for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
        )

    return {
        "out_names": "".join(f"out{at}, " for at in several),
        "split_kept": kept.split("where_kept"),
        "split_reduced": reduced.split("where"),
        "bases": " ".join(
            f"const {kind}* b_{name} = p_{name} + ({kept.offset(at)});"
            for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
        ),
        "vectors": " ".join(
            f"Vector<{kind}, L> g_{name}[U];" for name, kind in zip(names, kinds, strict=True)
        ),
        "lanes_of_u": " ".join(
            f"const Vector<{kind}, L>& {name} = g_{name}[u];"
            for name, kind in zip(names, kinds, strict=True)
        ),
        "loads_rows": loaded(reduced),
        "loads_columns": loaded(kept),
        "code": "\n                ".join(domain.code.lines),
        "arrays_rows": " ".join(
            f"{value_type(state.taken)} a{at}[U * L];" for at, state in enumerate(domain.states)
        ),
        "arrays_columns": " ".join(
            f"{value_type(state.taken)} a{at}[L][U];" for at, state in enumerate(domain.states)
        ),
        "values_rows": values.replace("%s", "u * L + j"),
        "values_columns": values.replace("[%s]", "[j][u]"),
        "seed_rows": SEED_ROWS if shifts else "",
        "seed_columns": SEED_COLUMNS if shifts else "",
        "take_rows": " ".join(f"into.s{at}.take(a{at}, places);" for at in several),
        "take_columns": " ".join(f"into[j].s{at}.take(a{at}[j], places);" for at in several),
    }


def _limits(node: Node, found: Sequence[Typed]) -> str:
    return limits(node, found[node.argument].dtype) if isinstance(node, Reduce) else ""


def states_source(states: Sequence[State]) -> str:
    """Return the C++ type of all states together."""
    several = range(len(states))
    return (
        "struct States {\n"
        + "".join(f"    {state.kind} s{at};\n" for at, state in enumerate(states))
        + f"    void start() {{ {' '.join(f's{at}.start();' for at in several)} }}\n"
        + "    void merge(const States& other) { "
        + " ".join(f"s{at}.merge(other.s{at});" for at in several)
        + " }\n    void start_unshifted() { start(); "
        + " ".join(f"s{at}.shift = 0;" for at in several if states[at].shifts)
        + " }\n    void shift_by(const States& one) { "
        + " ".join(f"s{at}.shift = one.s{at}.mean;" for at in several if states[at].shifts)
        + " }\n};\n"
    )


SIZES = "const Index results, const Index length"

FOLD_RESULTS = r"""
inline void write(const States& all, const Index kept, const double n, %(outs)sint) {
    %(writes)s
}
"""
