"""Apply the rules: find the pieces that can run as a gang, and put them in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dask.highlevelgraph import HighLevelGraph, Layer

from graph_opt.node import Declined, Product
from graph_opt.parse import ArrayGraph
from graph_opt.rules import RULES


@dataclass(frozen=True)
class Matches:
    """What the rules found: pieces to rewrite, and pieces left to Dask."""

    products: tuple[Product, ...]
    declined: tuple[Declined, ...]


def find(graph: ArrayGraph) -> Matches:
    """Try every rule on every layer."""
    products: list[Product] = []
    declined: list[Declined] = []
    for name in graph.layers:
        for rule in RULES:
            found = rule(graph, name)
            if isinstance(found, Product):
                products.append(found)
            elif isinstance(found, Declined):
                declined.append(found)
    return Matches(tuple(products), tuple(declined))


def replace(
    graph: HighLevelGraph,
    products: Iterable[Product],
    make_layer: Callable[[Product], Layer],
) -> HighLevelGraph:
    """Put the layer made for each product in the place of those that Dask built."""
    layers: dict[str, Layer] = dict(graph.layers)
    dependencies: dict[str, set[str]] = {k: set(v) for k, v in graph.dependencies.items()}
    for product in products:
        layer = make_layer(product)
        layer.annotations = _annotations(graph.layers, product)
        for name in product.inner:
            del layers[name], dependencies[name]
        layers[product.output.name] = layer
        dependencies[product.output.name] = {product.left.name, product.right.name}
    return HighLevelGraph(layers, dependencies)


def _annotations(layers: Mapping[str, Layer], product: Product) -> dict[str, object] | None:
    merged: dict[str, object] = {}
    for name in product.inner:
        merged.update(layers[name].annotations or {})
    return merged or None
