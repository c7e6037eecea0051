"""Layers under other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dask.array.core import Array
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer, MaterializedLayer

from graph_opt.dask_graph.internals import Alias, DataNode, GraphNode, Task

MOST_TASKS = 256
"""Layers with more tasks are left to Dask, whose time they take anyway."""


def new_layers(found: Array, inputs: Sequence[str]) -> dict[str, Layer]:
    """Return the layers between an array and inputs, dependencies first."""
    layers: dict[str, Layer] = {}
    order = {name: i for i, name in enumerate(found.dask.layers)}

    def visit(name: str) -> None:
        if name not in layers and name not in inputs:
            for each in sorted(found.dask.dependencies[name], key=order.__getitem__):
                visit(each)
            layers[name] = found.dask.layers[name]

    visit(found.name)
    return layers


def reads_several(layer: Layer) -> bool:
    """Whether a layer reads more than one array, or one more than once."""
    return type(layer) is Blockwise and sum(ind is not None for _, ind in layer.indices) > 1


def is_renamable(layer: Any, numbers: Sequence[float]) -> bool:
    """Whether all names in a layer are found, and these numbers among what it passes on."""
    if type(layer) is Blockwise:
        literals: list[Any] = [value for value, ind in layer.indices if ind is None]
        floats = {value for value in literals if type(value) is float}
        plain = type(layer.task) is Task and not (layer.io_deps or layer.output_blocks)
        return plain and floats.issuperset(numbers) and layer.annotations is None
    if type(layer) is MaterializedLayer and not numbers and len(layer.mapping) <= MOST_TASKS:
        return layer.annotations is None and all(map(_is_plain, layer.mapping.values()))
    return False


def _is_plain(value: Any) -> bool:
    """Whether the keys in a task are found: in tuples and lists, and in Dask's nodes."""
    if isinstance(value, GraphNode):
        return type(value) in (Task, Alias, DataNode)
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return not isinstance(value, dict | set | frozenset)


def bare_layer(layer: Any) -> Any:
    """Return a copy of a layer without what Dask has derived from it."""
    bare = object.__new__(type(layer))
    bare.__dict__ = {name: each for name, each in vars(layer).items() if name[0] != "_"}
    return bare


def renamed_layer(layer: Any, names: Mapping[str, str], numbers: Mapping[float, float]) -> Any:
    """Return a copy of a layer with other names, and other numbers as literals."""
    new = object.__new__(type(layer))
    new.__dict__ = changed = vars(layer).copy()
    if layer.collection_annotations is not None:
        changed["collection_annotations"] = dict(layer.collection_annotations)
    if isinstance(layer, MaterializedLayer):
        changed["mapping"] = {
            _renamed(key, names): _renamed(task, names) for key, task in layer.mapping.items()
        }
        return new
    task = layer.task
    changed["output"] = name = names[layer.output]
    changed["task"] = Task(name, task.func, *task.args, **task.kwargs)
    changed["numblocks"] = {names[old]: each for old, each in layer.numblocks.items()}
    changed["indices"] = tuple(
        [
            (names[each], ind) if ind is not None else (numbers.get(each, each), ind)
            for each, ind in layer.indices
        ]
    )
    return new


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    kind = type(value)
    if kind is str:
        return names.get(value, value)
    if kind is tuple:
        return tuple([_renamed(each, names) for each in value])
    if kind is list:
        return [_renamed(each, names) for each in value]
    if isinstance(value, GraphNode):
        keys = {key: _renamed(key, names) for key in value.dependencies}
        return value.substitute(keys, key=_renamed(value.key, names))
    return value
