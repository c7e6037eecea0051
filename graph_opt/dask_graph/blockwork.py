r"""Dask's layers as the work of a gang, in several steps if their tasks depend on each other.

::

    m0   m1   m2   m3     A running sum: sums within blocks, the total before each block, and the
     \    \    \          results. Each total is a step, because it depends on the one before it.
      t1 ->t2 ->t3        All results are the last step.
       \    \    \
    r0  r1   r2   r3

Blocks of the steps before the last are declared in bytes, and numbered within their step.

Dask declares the arrays that users get. The factors between them, as in QR, and the tasks that
other tasks of the same layer read have no declaration, so their sizes are found by functions. A
form is an array without memory, a list of forms, or any other value as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import MaterializedLayer

from graph_opt.dask_graph.gathering import Together, gathered
from graph_opt.dask_graph.internals import Alias, DataNode, GraphNode, Task, TaskRef, apply
from graph_opt.dask_graph.layers import renamed
from graph_opt.dask_graph.parse import (
    ArrayGraph,
    Culled,
    calls_others,
    container_of,
    full_name,
    is_block,
    once,
    tasks_of,
    unwrapped,
)
from graph_opt.dask_graph.returned import MODULE
from graph_opt.dask_graph.work import array, passes_of
from graph_opt.model.layout import ArrayNode, dtype_named
from graph_opt.model.piece import OPAQUE, Block, Blockwork
from graph_opt.passes import in_order

Form = Any
Key = Any

SMALL = 0.25
"""A task is small if it reads and returns at most this fraction of the largest result block."""

Tasks = Mapping[Key, GraphNode]

MERGING = {f"{MODULE}.added", f"{MODULE}.finished"}
"""Functions that add parts in any grouping, in lists of any depth."""

CONTAINERS = ("to_container", "_identity_cast", "list", "tuple")
"""Functions that only collect their arguments."""


def blockwork(
    name: str, culled: Culled, arrays: ArrayGraph, output: ArrayNode | None = None
) -> Blockwork:
    """Return a layer as a member of a region, with a better declaration of its array if given."""
    graph = culled.graph
    layer, output, merges = graph.layers[name], output or node_of(arrays, name), False
    inputs = tuple(node_of(arrays, other) for other in sorted(graph.dependencies[name]))
    if not isinstance(layer, Blockwise):
        tasks = dict(tasks_of(graph, name))
        needs = {key: task.dependencies for key, task in tasks.items()}
        levels = in_levels(needs, output)
        if levels:
            joined = _gathered(tasks, levels, output, arrays)
            read = {key: task.dependencies for key, task in joined.items()}
            work = _in_steps(output, inputs, joined, in_levels(read, output), arrays)
            return replace(work, inner=sum(map(len, levels)), depth=waits(needs, levels))
        layer = MaterializedLayer(tasks)
        merges = all(full_name(getattr(task, "func", None)) in MERGING for task in tasks.values())
    blocks = {key[1:]: _blocks(keys) for key, keys in sorted(culled.needs[name].items())}
    return Blockwork(output, inputs, blocks, layer, calls_others(layer), merges)


def in_levels(needs: Mapping[Key, Iterable[Key]], output: ArrayNode) -> list[list[Key]]:
    """Return the tasks of a layer that others of it read: each level reads levels before it.

    ``needs`` are the keys that each task of the array ``output`` reads.
    """
    own = {key: [each for each in read if each in needs] for key, read in needs.items()}
    inner = {key for key in own if not is_block(key, output.name, output)}.union(*own.values())
    if not inner:
        return []
    depths: dict[Key, int] = {}
    for key in in_order(own):
        if key in inner:
            depths[key] = max((depths[each] + 1 for each in own[key]), default=0)
    levels: list[list[Key]] = [[] for _ in range(1 + max(depths.values()))]
    for key in sorted(depths, key=_order):
        levels[depths[key]].append(key)
    return levels


def waits(needs: Mapping[Key, Collection[Key]], levels: Iterable[Iterable[Key]]) -> int:
    """Return how often tasks wait for others: Dask fuses a task with the only reader of its block.

    Of the blocks of other layers it is not known who reads them.
    """
    readers = Counter(chain.from_iterable(needs.values()))

    def follows(key: Key) -> bool:
        single = len(needs[key]) <= 1
        return single and all(need in needs and readers[need] == 1 for need in needs[key])

    return sum(not all(map(follows, level)) for level in levels)


def _gathered(
    tasks: Tasks, levels: Iterable[Iterable[Key]], output: ArrayNode, arrays: ArrayGraph
) -> Tasks:
    """Return the tasks of a layer with fewer ones in place of those that are small."""
    forms = _outside(tasks, arrays)
    for key in chain.from_iterable(levels):
        forms[key] = form_of(tasks[key], forms)
    results = {key for key in tasks if is_block(key, output.name, output)}
    largest = output.itemsize * max(prod(output.block_shape(key[1:])) for key in results)

    def size(argument: Any) -> float:
        known = isinstance(argument, GraphNode)
        return nbytes_of(form_of(argument, forms) if known else forms[argument])

    return gathered(tasks, results, size, SMALL * largest)


def _outside(tasks: Tasks, arrays: ArrayGraph) -> dict[Key, Form]:
    """Return the forms of the blocks that tasks read of other layers."""
    read = set().union(*(task.dependencies for task in tasks.values())) - tasks.keys()
    return {key: block_form(arrays, key) for key in read}


def _in_steps(
    output: ArrayNode,
    inputs: tuple[ArrayNode, ...],
    tasks: Tasks,
    levels: Sequence[Sequence[Key]],
    arrays: ArrayGraph,
) -> Blockwork:
    """Return a layer with a step for each level, and the last for the blocks of its array."""
    forms = _outside(tasks, arrays)
    operation, _, token = output.name.rpartition("-")
    names: dict[Key, Key] = {}
    before: list[Blockwork] = []
    for level, keys in enumerate(levels):
        name = f"{operation}.{level}-{token}"
        forms |= {key: form_of(tasks[key], forms) for key in keys}
        copied = _copied(keys, tasks, forms)
        step = {(name, i): renamed(tasks[key], names, (name, i)) for i, key in enumerate(keys)}
        node = ArrayNode(
            name, (tuple(nbytes_of(forms[key]) for key in keys),), OPAQUE, output.container
        )
        known = (*inputs, *(each.output for each in before))
        before.append(_step(node, known, step, copied))
        names |= dict(zip(keys, step, strict=True))
    results = sorted(key for key in tasks if is_block(key, output.name, output))
    last = {
        key: Alias(key, target=names[key]) if key in names else renamed(tasks[key], names, key)
        for key in results
    }
    own = [key for key in results if key not in names]
    forms |= {key: form_of(tasks[key], forms) for key in own}
    return _step(output, inputs, last, _copied(own, tasks, forms), tuple(before))


def _copied(keys: Sequence[Key], tasks: Tasks, forms: Mapping[Key, Form]) -> float:
    """Return the bytes of a copy that takes as long as one of these tasks, on average."""
    nbytes = 0.0
    for key in keys:
        task: Any = tasks[key]
        function = getattr(task, "func", None)
        function = task.args[0] if function is apply else function
        read = sum(nbytes_of(forms[dependency]) for dependency in task.dependencies)
        nbytes += passes_of(function, getattr(task, "kwargs", {})) * (nbytes_of(forms[key]) + read)
    return nbytes / max(1, len(keys))


def _step(
    output: ArrayNode,
    inputs: tuple[ArrayNode, ...],
    tasks: Tasks,
    copied: float,
    before: tuple[Blockwork, ...] = (),
) -> Blockwork:
    needs = {key[1:]: _blocks(task.dependencies) for key, task in tasks.items()}
    layer = MaterializedLayer(dict(tasks))
    once = calls_others(layer)
    return Blockwork(output, inputs, needs, layer, once, before=before, copied=copied)


def _blocks(keys: Iterable[Key]) -> tuple[Block, ...]:
    return tuple((key[0], key[1:]) for key in sorted(keys))


def _order(key: Key) -> list[tuple[bool, Any]]:
    """Order keys of any kind, the same in every process."""
    parts = key if isinstance(key, tuple) else (key,)
    return [(isinstance(part, str), part) for part in parts]


def unmade(shape: Sequence[int], dtype: Any) -> Form:
    """Return an array of any size that takes no memory."""
    return np.broadcast_to(np.empty((), dtype), tuple(shape))


def nbytes_of(form: Form) -> int:
    """Return the bytes of a block of this form."""
    return sum(array.nbytes for array in _arrays(form))


def _item(form: Form, index: Any) -> Form:
    parts = index if isinstance(index, tuple) else (index,)
    if all(part is None or isinstance(part, int | slice) for part in parts):
        return form[index]
    sizes = zip(parts, form.shape, strict=True)
    return unmade([len(each) if hasattr(each, "__len__") else n for each, n in sizes], form.dtype)


def _qr(a: Form, *_: Any, **__: Any) -> Form:
    (m, n), k = a.shape, min(a.shape)
    return [unmade((m, k), a.dtype), unmade((k, n), a.dtype)]


def _svd(a: Form, *_: Any, **__: Any) -> Form:
    q, r = _qr(a)
    return [q, unmade(q.shape[1:], a.real.dtype), r]


def _stack(arrays: Sequence[Form]) -> Form:
    return unmade((sum(array.shape[0] for array in arrays), *arrays[0].shape[1:]), arrays[0].dtype)


FORMS: Mapping[str, Callable[..., Form]] = {
    "getitem": _item,
    "_getitem": lambda form, index: _item(form, index[1]),
    "transpose": np.transpose,
    "_conj_transpose": np.transpose,
    "dot": lambda a, b: unmade((*a.shape[:-1], *b.shape[1:]), a.dtype),
    "vstack": _stack,
    "qr": _qr,
    "_wrapped_qr": _qr,
    "svd": _svd,
    "percentile": lambda a, q, *_: [unmade(q.shape, a.dtype), 0],
    "_solve_triangular_lower": lambda a, b: b,
    "solve_triangular_safe": lambda a, b, *_, **__: b,
}
"""The forms that functions return from those of their arguments. Others work element by element."""


def form_of(argument: Any, known: Mapping[Key, Form]) -> Form:
    """Return the form of a task's result, or of an argument.

    ``known`` are the forms of the blocks that it reads.
    """
    if isinstance(argument, TaskRef | Alias):
        return known[argument.key if isinstance(argument, TaskRef) else argument.target]
    if isinstance(argument, DataNode):
        return argument.value
    if isinstance(argument, list | tuple):
        return type(argument)([form_of(each, known) for each in argument])
    if isinstance(argument, Mapping):
        return {key: form_of(argument[key], known) for key in argument}
    if not isinstance(argument, Task):
        return argument
    if isinstance(argument.func, Together):
        forms = dict(known)
        for task in argument.func.tasks:
            forms[task.key] = form_of(task, forms)
        return [forms[key] for key in argument.func.wanted]
    given = form_of(list(argument.args), known)
    function, options = argument.func, dict(argument.kwargs)
    if function is apply:
        function, given, options = (*given, {})[:3]
    options |= getattr(function, "keywords", None) or {}
    name = getattr(unwrapped(function), "__name__", "")
    if name in CONTAINERS:
        return given[0] if name in ("list", "tuple") else given
    return _made(name, given, options)


def _made(name: str, given: Sequence[Form], options: Mapping[str, Any]) -> Form:
    """Return the form of a function's result, in general that of its arguments broadcast."""
    arrays = list(_arrays(given))
    dtype = max(arrays, key=lambda each: each.size).dtype if arrays else "f8"
    if options.get("shape") is not None:
        named = (each for each in (options.get("dtype"), *given) if isinstance(each, np.dtype))
        return unmade(options["shape"], next(named, dtype))
    try:
        return FORMS[name](*given) if name in FORMS else _broadcast(arrays, dtype)
    except (AttributeError, IndexError, TypeError, ValueError):
        return max(arrays, key=nbytes_of, default=unmade((), dtype))


def _broadcast(arrays: Sequence[Form], dtype: Any) -> Form:
    return unmade(np.broadcast_shapes(*(array.shape for array in arrays)), dtype)


def _arrays(form: Form) -> Iterator[Form]:
    """Yield all arrays of a form."""
    if isinstance(form, list | tuple):
        for each in form:
            yield from _arrays(each)
    elif isinstance(form, np.ndarray | np.generic):
        yield form


def block_form(graph: ArrayGraph, key: Key) -> Form:
    """Return the form of a block of a layer."""
    node = array(graph, key[0])
    if node is None:
        return _typical(graph, key[0])
    return unmade(node.block_shape(key[1:]), dtype_named(node.dtype))


@once
def _typical(graph: ArrayGraph, name: str) -> Form:
    """Return the form of the first block of a layer."""
    task = _first(graph, name)
    return form_of(
        task, {dependency: block_form(graph, dependency) for dependency in task.dependencies}
    )


def _first(graph: ArrayGraph, name: str) -> Any:
    layer = graph.layers[name]
    if isinstance(layer, Blockwise):
        key: Key = (name, *(0 for _ in layer.output_indices))
        return layer.cull({key}, set())[0][key]
    return next(tasks_of(graph, name))[1]


@once
def node_of(graph: ArrayGraph, name: str) -> ArrayNode:
    """Return the array of this name; of an undeclared member the blocks, in bytes."""
    node = array(graph, name)
    if node is not None:
        return node
    layer = graph.layers[name]
    if isinstance(layer, Blockwise):
        grid = [layer.dims[letter] for letter in layer.output_indices]
    else:
        keys: Any = list(layer)
        grid = [max(along) + 1 for along in zip(*(key[1:] for key in keys), strict=True)]
    size = nbytes_of(_typical(graph, name))
    chunks = tuple((1 if axis else size,) * blocks for axis, blocks in enumerate(grid))
    return ArrayNode(name, chunks, OPAQUE, str(container_of(graph, name)))
