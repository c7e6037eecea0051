"""Blocks that Dask does not declare: their sizes, and the work of their tasks, before any runs.

Dask declares the arrays that users get. The factors between them, as in QR, and the tasks that
other tasks of the same layer read, as in a running sum, have no declaration.

A form is an array without memory, a list of forms, or any other value as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from dask.blockwise import Blockwise

from graph_opt.dask_graph.internals import Alias, DataNode, Task, TaskRef, apply
from graph_opt.dask_graph.members import container_of, tasks_of
from graph_opt.dask_graph.parse import ArrayGraph, once, unwrapped
from graph_opt.dask_graph.recipes import Together
from graph_opt.dask_graph.work import array, passes_of
from graph_opt.model.cost import Work
from graph_opt.model.layout import ArrayNode, dtype_named
from graph_opt.model.piece import OPAQUE

Form = Any
Key = Any

CONTAINERS = ("to_container", "_identity_cast", "list", "tuple")
"""Functions that only collect their arguments."""


def unmade(shape: Sequence[int], dtype: Any) -> Form:
    """Return an array of any size that takes no memory."""
    return np.broadcast_to(np.empty((), dtype), tuple(shape))


def nbytes_of(form: Form) -> int:
    """Return the bytes of a block of this form."""
    return sum(each.nbytes for each in _arrays(form))


def _item(form: Form, index: Any) -> Form:
    parts = index if isinstance(index, tuple) else (index,)
    if all(each is None or isinstance(each, int | slice) for each in parts):
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
    return unmade((sum(each.shape[0] for each in arrays), *arrays[0].shape[1:]), arrays[0].dtype)


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


def estimate(argument: Any, known: Mapping[Key, Form]) -> tuple[Form, Work]:
    """Return the form of a task's result, or of an argument, and the work for it.

    ``known`` are the forms of the blocks that it reads.
    """
    if isinstance(argument, TaskRef | Alias):
        return known[argument.key if isinstance(argument, TaskRef) else argument.target], Work()
    if isinstance(argument, DataNode):
        return argument.value, Work()
    if isinstance(argument, list | tuple):
        parts = [estimate(each, known) for each in argument]
        made = (tuple if isinstance(argument, tuple) else list)(form for form, _ in parts)
        return made, Work(sum(work.nbytes for _, work in parts))
    if isinstance(argument, Mapping):
        return {key: estimate(argument[key], known)[0] for key in argument}, Work()
    if not isinstance(argument, Task):
        return argument, Work()
    if isinstance(argument.func, Together):
        return _of_together(argument.func, known)
    given, inner = estimate(list(argument.args), known)
    function, options = argument.func, dict(argument.kwargs)
    if function is apply:
        function, given, options = (*given, {})[:3]
    options |= getattr(function, "keywords", None) or {}
    name = getattr(unwrapped(function), "__name__", "")
    if name in CONTAINERS:
        return (given[0] if name in ("list", "tuple") else given), inner
    form = _made(name, given, options)
    copied = passes_of(function, options) * (nbytes_of(form) + nbytes_of(given))
    return form, Work(inner.nbytes + copied)


def _of_together(function: Together, known: Mapping[Key, Form]) -> tuple[Form, Work]:
    forms, nbytes = dict(known), 0.0
    for task in function.tasks:
        forms[task.key], work = estimate(task, forms)
        nbytes += work.nbytes
    return [forms[key] for key in function.wanted], Work(nbytes)


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
    return unmade(np.broadcast_shapes(*(each.shape for each in arrays)), dtype)


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
    return estimate(task, {each: block_form(graph, each) for each in task.dependencies})[0]


def _first(graph: ArrayGraph, name: str) -> Any:
    layer = graph.layers[name]
    if isinstance(layer, Blockwise):
        key: Key = (name, *(0 for _ in layer.output_indices))
        return layer.cull({key}, set())[0][key]
    return next(tasks_of(graph, name))[1]


@once
def node_of(graph: ArrayGraph, name: str) -> ArrayNode:
    """Return the array of this name; of an undeclared member the blocks, in bytes.

    Raises
    ------
    LookupError
        If the name is no layer's.
    """
    node = array(graph, name)
    if node is not None:
        return node
    if name not in graph.layers:
        raise LookupError(f"expected a declaration of the array {name}, got none")
    layer = graph.layers[name]
    if isinstance(layer, Blockwise):
        grid = [layer.dims[letter] for letter in layer.output_indices]
    else:
        keys: Any = list(layer)
        grid = [max(along) + 1 for along in zip(*(key[1:] for key in keys), strict=True)]
    size = nbytes_of(_typical(graph, name))
    chunks = tuple((1 if axis else size,) * blocks for axis, blocks in enumerate(grid))
    return ArrayNode(name, chunks, OPAQUE, str(container_of(graph, name)))
