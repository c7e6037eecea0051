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
    names = {each.name for each in operations}
    for gang in dict.fromkeys(each.gang for each in operations):
        frame = Digraph(None if gang is None else f"cluster_{gang}")
        if gang is not None:
            frame.attr(label=f"gang {gang + 1}", color=BLUE, fontcolor=BLUE, fontname="sans-serif")
        for each in operations:
            if each.gang == gang:
                text = "\n".join(filter(None, (each.operation, each.summary, each.why)))
                frame.node(each.name, escape(text), color=COLOURS[each.by])
        graph.subgraph(frame)
    for each in operations:
        for name in each.inputs:
            if name in names:
                graph.edge(name, each.name, quantity(each.moved_bytes or None, "B"))
    return graph
