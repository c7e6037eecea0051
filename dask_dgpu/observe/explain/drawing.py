"""A drawing of operations: what computes each one, its layout, and what is exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_dgpu.cost.table import BLUE, GREEN, GREY, quantity
from dask_dgpu.errors import DgpuError
from dask_dgpu.observe.explain.operations import DASK, FUSED, GANG, Operation

COLOURS = {GANG: BLUE, FUSED: GREEN, DASK: GREY}


def drawn(operations: Sequence[Operation]) -> Any:
    """Return a ``graphviz.Digraph``: a box for each operation, a frame around those of a gang.

    Its colours are visible on light and on dark pages.
    """
    try:
        from graphviz import Digraph, escape
    except ImportError as error:
        raise DgpuError(
            "expected graphviz to be installed to draw a program: pip install graphviz, and your "
            "system's package graphviz"
        ) from error
    font = {"fontname": "sans-serif", "fontcolor": GREY}
    graph = Digraph(
        graph_attr={"bgcolor": "transparent"},
        node_attr=font | {"shape": "box", "style": "rounded", "fontsize": "11"},
        edge_attr=font | {"fontsize": "10", "color": GREY},
    )
    names = {operation.name for operation in operations}
    for gang in dict.fromkeys(operation.gang for operation in operations):
        frame = Digraph(None if gang is None else f"cluster_{gang}")
        if gang is not None:
            frame.attr(label=f"gang {gang + 1}", color=BLUE, fontcolor=BLUE, fontname="sans-serif")
        for operation in operations:
            if operation.gang == gang:
                text = "\n".join(
                    filter(None, (operation.operation, operation.summary, operation.why))
                )
                frame.node(operation.name, escape(text), color=COLOURS[operation.by])
        graph.subgraph(frame)
    for operation in operations:
        for name in operation.inputs:
            if name in names:
                graph.edge(name, operation.name, quantity(operation.moved_bytes or None, "B"))
    return graph
