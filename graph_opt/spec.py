"""What a legal graph is; checked after each pass."""

from __future__ import annotations

from dask.highlevelgraph import HighLevelGraph

from graph_opt.emit import GangLayer


class IllegalGraphError(Exception):
    """A pass left a graph that cannot be right."""


def check(graph: HighLevelGraph) -> HighLevelGraph:
    """Return ``graph`` if it is legal, raise :class:`IllegalGraphError` if not."""
    for name, needed in graph.dependencies.items():
        if name not in graph.layers:
            raise IllegalGraphError(f"layer {name} has dependencies but does not exist")
        missing = needed - graph.layers.keys()
        if missing:
            raise IllegalGraphError(f"layer {name} reads {sorted(missing)}, which do not exist")
    for layer in graph.layers.values():
        if isinstance(layer, GangLayer):
            _check_gang(layer)
    return graph


def _check_gang(layer: GangLayer) -> None:
    product = layer.product
    left, right, output = product.left, product.right, product.output
    if left.shape[1] != right.shape[0]:
        raise IllegalGraphError(f"{output.name}: {left.shape} and {right.shape} do not conform")
    if output.chunks != (left.chunks[0], right.chunks[1]):
        raise IllegalGraphError(f"{output.name}: its chunks are not those of its operands")
    if not set(layer.rows) <= set(range(len(output.chunks[0]))):
        raise IllegalGraphError(f"{output.name}: block rows {layer.rows} do not exist")
    if not set(layer.columns) <= set(range(len(output.chunks[1]))):
        raise IllegalGraphError(f"{output.name}: block columns {layer.columns} do not exist")
