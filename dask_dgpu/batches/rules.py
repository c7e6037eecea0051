"""For each kind of operation the index notation of a call, from shapes and arguments.

A rule returns ``None`` if no axis can be cut without changing the operation. Rules trust their
arguments: the operation itself has checked them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.arguments import per_axis
from dask_dgpu.array.conv2d import parameters
from dask_dgpu.array.einsum.parse import arguments as einsum_arguments
from dask_dgpu.array.einsum.parse import parse
from dask_dgpu.array.stencil import taps_of
from dask_dgpu.batches.notation import Axes, Combine, Halo, Notation
from dask_dgpu.batches.sources import Shape, Slot
from graph_opt.model.window import Sliding


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call by name, and the shapes of its arrays and of its result.

    ``values`` has for each parameter the position of an array in ``shapes`` as a :class:`Slot`,
    or a plain value.
    """

    shapes: tuple[Shape, ...]
    values: Mapping[str, Any]
    result: Shape


Rule = Callable[[Arguments], Notation | None]


def elementwise(call: Arguments) -> Notation | None:
    """Every axis can be cut; axes of length one are broadcast."""
    if any(np.ndim(value) for value in call.values.values() if not isinstance(value, Slot)):
        return None
    inputs = tuple(_broadcast(shape, call.result) for shape in call.shapes)
    return _notation(inputs, tuple(range(len(call.result))), call)


def matmul(call: Arguments) -> Notation | None:
    """Rows, columns, stacks, and the contraction."""
    left, right = call.shapes
    inner = len(call.result)
    rows, columns = inner - 2 + (len(right) == 1), inner - 1
    stack = call.result[: inner - (len(left) > 1) - (len(right) > 1)]
    first = (rows, inner) if len(left) > 1 else (inner,)
    second = (inner, columns) if len(right) > 1 else (inner,)
    inputs = (*_broadcast(left[:-2], stack), *first), (*_broadcast(right[:-2], stack), *second)
    return _notation(inputs, tuple(range(inner)), call)


def dot(call: Arguments) -> Notation | None:
    """As ``numpy.dot``: the last axis of the first, the last but one of the second."""
    left, right = call.shapes
    return _contraction(call, (len(left) - 1,), (max(0, len(right) - 2),))


def tensordot(call: Arguments) -> Notation | None:
    """The axes of ``axes`` are contracted, the others follow each other in the result."""
    left, right = map(len, call.shapes)
    first, second = contracted_axes(call.values["axes"], left)
    return _contraction(call, tuple(at % left for at in first), tuple(at % right for at in second))


def contracted_axes(axes: Any, ndim: int) -> tuple[list[int], list[int]]:
    """Return the axes of both operands of ``tensordot``; the first operand has ``ndim``."""
    if isinstance(axes, int | np.integer):
        return list(range(ndim - int(axes), ndim)), list(range(int(axes)))
    first, second = (np.atleast_1d(np.asarray(axis, int)).tolist() for axis in axes)
    return first, second


def einsum(call: Arguments) -> Notation | None:
    """The subscripts themselves."""
    operands = [_shape_of(value, call) for value in call.values["operands"]]
    text, shapes = einsum_arguments(_shape_of(call.values["subscripts"], call), operands)
    if len(shapes) != len(call.shapes):
        return None
    subscripts = parse(text, [tuple(shape) for shape in shapes])
    numbers = {letter: i for i, letter in enumerate(subscripts.sizes)}
    inputs = tuple(
        tuple(
            numbers[letter] if size == subscripts.sizes[letter] else None
            for letter, size in zip(term, shape, strict=True)
        )
        for term, shape in zip(subscripts.inputs, shapes, strict=True)
    )
    return _notation(inputs, tuple(numbers[letter] for letter in subscripts.output), call)


def transform(call: Arguments) -> Notation | None:
    """All axes that are not transformed."""
    (shape,) = call.shapes
    transformed = transformed_axes(call.values, len(shape))
    labels = tuple(None if axis in transformed else axis for axis in range(len(shape)))
    return _notation((labels,), labels, call)


def transformed_axes(values: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
    """Return the axes of a transform, in their order."""
    axes: Sequence[int] | None = (values["axis"],) if "axis" in values else values.get("axes")
    if axes is None:
        s = values.get("s")
        axes = range(ndim) if s is None else range(ndim - len(s), ndim)
    return tuple(int(axis) % ndim for axis in axes)


def reduction(combine: Combine) -> Rule:
    """Return the rule of a reduction: kept axes, and reduced ones with partial results."""

    def rule(call: Arguments) -> Notation | None:
        (shape,) = call.shapes
        values = call.values
        if values.get("method") == "reproducible" or prod(shape) == 0:
            return None  # other parts would give other bits
        if combine == "mean" and np.dtype(values.get("dtype")).kind in "biu":
            return None  # means of parts are rounded to integers
        axis = values.get("axis")
        each = range(len(shape)) if axis is None else np.atleast_1d(np.asarray(axis, int)).tolist()
        reduced = {at % len(shape) for at in each}
        labels: Axes = tuple(range(len(shape)))
        output: Axes = tuple(label for label in labels if label not in reduced)
        if values.get("keepdims"):
            output = tuple(None if label in reduced else label for label in labels)
        return _notation((labels,), output, call, combine=combine)

    return rule


def conv2d(call: Arguments) -> Notation | None:
    """Images, rows and columns with halos, and without groups the output channels."""
    values = call.values
    x, weight = (call.shapes[values[name].at] for name in ("x", "weight"))
    options = (values[name] for name in ("stride", "padding", "dilation", "groups"))
    convolution = parameters(weight[2:], *options)
    image, rows, columns, channel = 0, 2, 3, None if convolution.groups > 1 else 1
    named: dict[str, Axes] = {
        "x": (image, None, rows, columns),
        "weight": (channel, None, None, None),
        "bias": (channel,),
    }
    at = {values[name].at: axes for name, axes in named.items() if values[name] is not None}
    inputs = tuple(at[place] for place in range(len(call.shapes)))
    pairs = zip((rows, columns), convolution.axes, x[2:], strict=True)
    halos = {label: _windows(axis, size) for label, axis, size in pairs}
    return _notation(inputs, (image, channel, rows, columns), call, halos=halos)


def _windows(axis: Sliding, size: int) -> Halo:
    """Return the halo of windows on an axis: parts begin at multiples of the stride.

    The operation pads each part. Results whose windows begin in these zeros are trimmed, unless the
    part is the first. Windows that are in the padding alone still need an element to read.
    """
    before = -(-axis.padding[0] // axis.stride)
    last = axis.results(size) - 1
    return Halo(
        max(before, last - (size - 1) // axis.stride),
        max(axis.reach - axis.padding[0], 1) - axis.stride,
        axis.stride,
    )


def stencil(call: Arguments) -> Notation | None:
    """Every axis, with as many elements beyond as all iterations reach."""
    if len(call.shapes) != 1:
        return None
    (shape,) = call.shapes
    taps = taps_of(call.values["kernel"], shape)
    kinds = per_axis("boundary", call.values["boundary"], len(shape))
    reaches = [radius * int(call.values["iterations"]) for radius in taps.radius]
    halos = {
        axis: Halo(reach, reach, periodic=kind == "periodic")
        for axis, (reach, kind) in enumerate(zip(reaches, kinds, strict=True))
        if reach
    }
    labels = tuple(range(len(shape)))
    return _notation((labels,), labels, call, halos=halos)


def _notation(
    inputs: tuple[Axes, ...],
    output: Axes,
    call: Arguments,
    *,
    combine: Combine = "add",
    halos: Mapping[int, Halo] | None = None,
) -> Notation:
    sizes: dict[int, int] = {}
    for axes, shape in zip((*inputs, output), (*call.shapes, call.result), strict=True):
        sizes.update({label: n for label, n in zip(axes, shape, strict=True) if label is not None})
    return Notation(inputs, output, sizes, combine, halos or {})


def _contraction(call: Arguments, first: Shape, second: Shape) -> Notation:
    left, right = (len(shape) for shape in call.shapes)
    inner = {axis: len(call.result) + i for i, axis in enumerate(first)}
    other = {axis: len(call.result) + i for i, axis in enumerate(second)}
    free = iter(range(len(call.result)))
    a = tuple(inner[axis] if axis in inner else next(free) for axis in range(left))
    b = tuple(other[axis] if axis in other else next(free) for axis in range(right))
    return _notation((a, b), tuple(range(len(call.result))), call)


def _broadcast(shape: Shape, result: Shape) -> Axes:
    """Return the labels of the last axes of a result, without those of axes that are broadcast."""
    first = len(result) - len(shape)
    return tuple(i if size == result[i] else None for i, size in enumerate(shape, first))


def _shape_of(value: Any, call: Arguments) -> Any:
    return call.shapes[value.at] if isinstance(value, Slot) else value
