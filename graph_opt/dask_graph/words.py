"""The operations of a graph in the user's words: which layers are one, and its name."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from graph_opt.dask_graph.calls import bound
from graph_opt.dask_graph.parse import (
    CONTRACTIONS,
    ArrayGraph,
    block_function,
    is_stored,
    row_of,
    unwrapped,
)
from graph_opt.model.piece import Piece
from graph_opt.model.reader import OperationLayers
from graph_opt.passes import depth_first

SYMBOLS: Mapping[Any, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
}

OPERANDS = "xyz"
"""Names of arrays in a formula."""

NAMES: Mapping[str, str] = {
    "ones_like": "ones",
    "zeros_like": "zeros",
    "full_like": "full",
    "empty_like": "empty",
    "random_sample": "random",
    "getitem": "x[...]",
    "neg": "-x",
    "invert": "~x",
    "trim": "trim overlap",
    "gradient_kernel": "gradient",
    "searchsorted_block": "searchsorted",
    "topk_aggregate": "topk",
    "histogram-sum": "histogram",
    "histogramdd-sum": "histogramdd",
    "cholesky-upper": "cholesky",
    **dict.fromkeys(("unique_internal", "unique-aggregate-unique_internal"), "unique"),
    **dict.fromkeys(("lu-l", "lu-p", "lu-u"), "lu"),
}
"""What users call what Dask has another name for."""

RUNNING = ("cumsum", "cumprod", "nancumsum", "nancumprod")
"""Dask composes them of two layers of the same name."""

LONGEST = 12
"""Most characters of a number in a formula."""

PARTS = re.compile(r"-(aggregate|partial|merge|split)$")
"""What Dask adds to the name of an operation for its parts."""

CHUNKS = re.compile(r"^_?chunk_|_(chunk|agg|combine)$")
"""What Dask adds to the name of a function of chunks."""

TOKEN = re.compile(r"-[0-9a-f]{32}")

STEP = re.compile(r"-([0-9a-f]{32})-")
"""The token of a call in the name of one of its steps: ``getitem-...-q2-aux`` of ``qr-...``."""

HASH = re.compile(r"[0-9a-f]{32}")
"""What Dask names the first step of ``bincount``."""

DECOMPOSITIONS = ("svd", "qr")
"""Calls of many layers, as one of these is named; a singular value decomposition begins with QR."""


def steps_of(arrays: ArrayGraph, pieces: Iterable[Piece]) -> list[OperationLayers]:
    """Return the operations of a graph, each after those that it reads.

    Blocks that exist, such as those of a persisted array, are no operation.
    """
    piece_of = {name: piece for piece in pieces for name in piece.layers}
    last: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    calls: dict[str, str] = {}
    for name in depth_first(arrays.dependencies):
        if _is_given(arrays, name):
            continue
        piece = piece_of.get(name)
        before = None if piece is not None else _first_part(arrays, name)
        step = STEP.search(name)
        if step is not None and piece is None:
            before = calls.get(step[1], before)
        calls[name.rpartition("-")[2] if step is None else step[1]] = name
        end = name if piece is None else piece.output.name
        layers = groups.pop(last[before]) if before in last else groups.pop(end, [])
        groups[end] = [*layers, name]
        last.update(dict.fromkeys(groups[end], end))
    results = {end: _result(arrays, layers, end) for end, layers in groups.items()}
    steps = []
    for end, layers in groups.items():
        piece = piece_of.get(end)
        layers = sorted(layers, key=lambda name: name == results[end])
        word = _word(arrays, layers) if piece is None else word_of(piece.title)
        read = set().union(*(arrays.dependencies[name] for name in layers)) - set(layers)
        inputs = dict.fromkeys(results[last[name]] for name in sorted(read) if name in last)
        steps.append(OperationLayers(word, tuple(layers), arrays.node(layers[-1]), tuple(inputs)))
    return steps


def word_of(name: str) -> str:
    """Return the operation in the name of a layer, without Dask's additions."""
    word = PARTS.sub("", name.rpartition("-")[0] or name)
    return CHUNKS.sub("", word).strip("_") or name


def _result(arrays: ArrayGraph, layers: list[str], end: str) -> str:
    """Return the last layer that others read; graphs may have steps that nobody needs."""
    for name in [end, *reversed(layers)]:
        if name in arrays.requested or arrays.dependents[name] - {*layers}:
            return name
    return end


def _is_given(arrays: ArrayGraph, name: str) -> bool:
    """Whether a layer has blocks, or whole arrays, in place of tasks."""
    layer = arrays.layers[name]
    return not arrays.dependencies[name] and (is_stored(layer) or arrays.node(name) is None)


def _first_part(arrays: ArrayGraph, name: str) -> str | None:
    """Return the layer before, if it is a part of the same operation that nothing else reads."""
    needed = arrays.dependencies[name]
    if len(needed) != 1:
        return None
    (before,) = needed
    if len(arrays.dependents[before]) != 1 or before in arrays.requested:
        return None
    word, earlier = word_of(name), word_of(before)
    if word == "sqrt" and earlier == "var":
        return before
    if word == "sum" and unwrapped(block_function(arrays, before)) in CONTRACTIONS:
        return before
    is_part = word in RUNNING or PARTS.search(name.rpartition("-")[0])
    same = earlier.removesuffix("-reduce") == word or HASH.fullmatch(earlier)
    return before if is_part and same else None


def _word(arrays: ArrayGraph, layers: list[str]) -> str:
    """Return the name of an operation that is no piece."""
    words = {word_of(f"{TOKEN.sub('', name)}-") for name in layers}
    for known in DECOMPOSITIONS:
        if any(word.partition("-")[0] == known for word in words) and len(layers) > 1:
            return known
    first, layer = layers[0], arrays.layers[layers[0]]
    word = word_of(f"{TOKEN.sub('', first)}-")
    if HASH.fullmatch(word):
        word = word_of(layers[-1])
    if word_of(layers[-1]) == "sqrt" and word == "var":
        word = "std"
    if word == "arg-reduce":
        return _over(_argument(layer), layers, arrays)
    formula = _formula(arrays, first) if len(layers) == 1 else None
    if formula is not None:
        return formula
    return _over(NAMES.get(word, word), layers, arrays)


def _formula(arrays: ArrayGraph, name: str) -> str | None:
    """Return an operator with its operands, as ``x + y``."""
    layer, function = arrays.layers[name], block_function(arrays, name)
    symbol = row_of(SYMBOLS, function)
    if symbol is None or not isinstance(layer, Blockwise) or len(layer.indices) != 2:
        return None
    names: dict[str, str] = {}
    operands = []
    for operand, index in layer.indices:
        if index is None:
            text = str(operand)
            operands.append(text if len(text) <= LONGEST else "c")
        else:
            operands.append(names.setdefault(str(operand), OPERANDS[len(names)]))
    return f" {symbol} ".join(operands)


def _over(word: str, layers: list[str], arrays: ArrayGraph) -> str:
    """Return the name of a reduction with its axes, unless these are all."""
    is_reduction = word == "std" or PARTS.search(layers[-1].rpartition("-")[0])
    if len(layers) < 2 or not is_reduction:
        return word
    (before, *_) = [*arrays.dependencies[layers[0]], ""]
    node, axes = arrays.node(before), _axes(arrays.layers[layers[0]])
    if node is None or not axes or len(axes) >= node.ndim:
        return word
    return f"{word} over {'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))}"


def _axes(layer: Layer) -> tuple[int, ...]:
    """Return the axes that a layer reduces, nothing if they are not known."""
    if isinstance(layer, Blockwise):
        options = dict(getattr(layer.task, "kwargs", {}))
        axes = options.get("axis", bound(getattr(layer.task, "func", None))[2].get("axis"))
    else:
        task: Any = next(iter(layer.values()), ())
        arguments = task[1:] if isinstance(task, tuple) else getattr(task, "args", ())
        axes = arguments[1] if len(arguments) > 1 else None
    axes = axes if isinstance(axes, tuple) else (axes,)
    return axes if all(isinstance(axis, int) for axis in axes) else ()


def _argument(layer: Layer) -> str:
    """Return ``argmax`` or the like, from the function of a chunk."""
    task: Any = next(iter(layer.values()), ())
    function = task[0] if isinstance(task, tuple) and task else getattr(task, "func", None)
    _, arguments, _ = bound(function)
    return str(getattr(arguments[-1], "__name__", "arg")).strip("_") if arguments else "arg"
