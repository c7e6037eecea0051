"""Calls: their arguments as one transform per axis, computed by Dask's own function or by a plan.

A plan makes an axis whole and splits others instead. If the others are too short, or there are
none, blocks would be much larger than those of the input. Such an axis is transformed separately
(``long_axis.py``).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

import dask
import numpy as np
from dask.array.core import Array
from dask.utils import typename
from numpy.lib.array_utils import normalize_axis_index

from dask_dgpu.algorithms.pencil_fft.plan import PencilPlan, plan_pencil_fft
from dask_dgpu.arguments import (
    check_choice,
    check_chunk_sizes,
    check_container,
    check_dtype,
    expected,
    integer,
    integers,
    sequence,
)
from dask_dgpu.array.fft import long_axis
from dask_dgpu.array.fft.fallback import apply, moved
from dask_dgpu.environment.settings import read
from dask_dgpu.kernels.fft import TO_HALF_COMPLEX, TO_REAL, TRIGONOMETRIC, Transform
from graph_opt.model.layout import CUPY, Chunks

NAMES = (
    *("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"),
    *("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"),
)
# dask.array.fft is another object while array.query-planning is on
DASK_FFT = import_module("dask.array.fft")
DASKS_OWN = {name: getattr(DASK_FFT, name) for name in NAMES}
FFT_LAYOUT = "dgpu.fft.output-layout"

OTHER_WAY = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""Each norm, and the same of the other direction."""
TRANSPOSED = {1: 1, 2: 3, 3: 2, 4: 4}
"""Types of cosine and sine transforms, and the types of their inverses."""
UNKNOWN = 1
"""Stands for the length of a transform along an axis of unknown length; Dask determines it."""

TOO_LARGE = 2
"""A block is too large if it exceeds the average input block by this factor ..."""
MUCH_MORE = 1.5
"""... and the largest input block by this factor."""


def along_axis(
    kind: str, x: Array, n: int | None, axis: int, norm: str | None, *, array: str = "a"
) -> tuple[Transform, ...]:
    """Return the transform along one axis; ``array`` is the user's name of ``x``."""
    _check_dtype(kind, x, array)
    (at,) = _axes("axis", (integer("axis", axis),), x.ndim)
    return (Transform(kind, at, _length(kind, x, at, n, array, "n"), _norm(norm)),)


def along_axes(
    kind: str,
    x: Array,
    s: Sequence[int | None] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    *,
    default: Sequence[int] | None = None,
    array: str = "a",
) -> tuple[Transform, ...]:
    """Return the transforms along several axes, in their order.

    ``kind`` is that of the last axis; the other transforms are complex. ``default`` are the
    axes if none are given; ``None`` means all, or the last ones if ``s`` has fewer entries.
    """
    _check_dtype(kind, x, array)
    of_numpy = kind not in TRIGONOMETRIC
    lengths: tuple[int | None, ...] | None = None
    if s is not None:
        each = sequence("s", s, "a sequence of integers")
        lengths = tuple(n if n is None and of_numpy else integer("each of s", n) for n in each)
    if axes is not None:
        axes = integers("axes", axes)
    elif default is not None:
        axes = default
    else:
        if of_numpy and lengths is not None:
            warnings.warn(
                "`axes` should not be `None` if `s` is not `None` (Deprecated in NumPy 2.0)",
                DeprecationWarning,
                stacklevel=4,
            )
        axes = range(-(x.ndim if lengths is None else len(lengths)), 0)
    at = _axes("axes", axes, x.ndim)
    if not at and kind in TO_HALF_COMPLEX + TO_REAL:
        raise IndexError(f"expected axes to have at least one entry for {kind}n, got {axes!r}")
    if lengths is None:
        lengths = (None,) * len(at)
    elif None in lengths:
        warnings.warn(
            "`s` should not have an entry of `None` (Deprecated in NumPy 2.0)",
            DeprecationWarning,
            stacklevel=4,
        )
    if len(lengths) != len(at):
        got = f"{len(lengths)} and {len(at)}"
        raise ValueError(f"expected s and axes of the same length, got {got}")
    others = {"rfft": "fft", "irfft": "ifft"}.get(kind, kind)
    kinds = [*[others] * (len(at) - 1), kind][: len(at)]
    scaling = _norm(norm)
    return tuple(
        Transform(kind, axis, _length(kind, x, axis, n, array, "s"), scaling)
        for kind, axis, n in zip(kinds, at, lengths, strict=True)
    )


def trigonometric(function: str, type: int, norm: str | None) -> tuple[str, str]:
    """Return the kind and the norm of a cosine or sine transform, or of an inverse.

    An inverse is the transform of the transposed type with the norm of the other direction.
    """
    type, norm = integer("type", type), _norm(norm)
    if type not in TRANSPOSED:
        expected("type", "one of 1, 2, 3, 4", type)
    if function.startswith("i"):
        type, norm = TRANSPOSED[type], OTHER_WAY[norm]
    return f"{function.removeprefix('i')}{type}", norm


def _length(kind: str, x: Array, axis: int, n: int | None, array: str, argument: str) -> int:
    """Return the length of a transform; ``None``, and -1 in ``s``, select that of the axis."""
    least = 2 if kind == "dct1" else 1
    if n is not None and (argument != "s" or n != -1):
        return integer(f"each of {argument}" if argument == "s" else argument, n, least)
    length = x.shape[axis]
    if math.isnan(length):
        return max(UNKNOWN, least)
    default = 2 * (length - 1) if n is None and kind in TO_REAL else length
    if default < least:
        raise ValueError(
            f"expected {argument} of at least {least}, got {default} by default: "
            f"{array} has {length} elements along axis {axis}"
        )
    return default


def _axes(name: str, axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    at = tuple(normalize_axis_index(axis, ndim, name) for axis in axes)
    if len(set(at)) < len(at):
        raise ValueError(f"expected {name} to be different, got {tuple(axes)}")
    return at


def _norm(norm: str | None) -> str:
    if norm is None:
        return "backward"
    check_choice("norm", norm, OTHER_WAY)
    return norm


def _check_dtype(kind: str, x: Array, array: str) -> None:
    if kind in TO_HALF_COMPLEX:
        check_dtype(array, x, kinds="biuf", what="real numbers")
    else:
        check_dtype(array, x)


def transformed(
    name: str, x: Array, transforms: tuple[Transform, ...], arguments: Mapping[str, Any]
) -> Array:
    """Return the result of a function of ``numpy.fft``, by Dask's own function if possible.

    ``arguments`` are the user's arguments besides ``x``, ``transforms`` their meaning.
    """
    unknown = any(map(math.isnan, x.shape))
    whole = all(len(x.chunks[transform.axis]) == 1 for transform in transforms)
    # Dask's chunks take entries of None and -1 in s literally; with s but no axes Dask counts
    # axes from the start
    s = arguments.get("s")
    same_in_dask = s is None or (arguments["axes"] is not None and not {None, -1} & set(s))
    # Dask's function fails on CuPy: it calls itself on an empty array to infer the result
    if whole and (typename(type(x._meta)) != CUPY or unknown) and (same_in_dask or not unknown):
        if not same_in_dask:
            lengths = tuple(transform.n for transform in transforms)
            axes = tuple(transform.axis for transform in transforms)
            arguments = {**arguments, "s": lengths, "axes": axes}
        result: Array = DASKS_OWN[name](x, **arguments)
        return result
    return planned(name, x, transforms)


def planned(
    name: str, x: Array, transforms: tuple[Transform, ...], *, argument: str = "a"
) -> Array:
    """Return the result by a plan; ``argument`` is the user's name of ``x``."""
    check_chunk_sizes(argument, x)
    check_container(argument, x)
    return transform_axes(x, transforms, name, output_layout=output_layout())


def output_layout() -> Literal["any", "input"]:
    """Return the setting ``dgpu.fft.output-layout``, which each transform reads."""
    layout = dask.config.get(FFT_LAYOUT, "any")
    # to read all settings takes milliseconds, and raises for a value that is not allowed
    return layout if layout in ("any", "input") else read().fft_output_layout


def transform_axes(
    x: Array,
    transforms: tuple[Transform, ...],
    name: str,
    *,
    output_layout: Literal["any", "input"] = "any",
    chunks: Chunks | None = None,
) -> Array:
    """Transform along some axes of any chunking, at most one of them from or to real numbers.

    ``name`` is the prefix of the keys of a plan's layer. The output layout ``"input"`` restores
    ``chunks``, by default those of the input; ``"any"`` restores given chunks only if that moves
    no more bytes. Otherwise an axis that is too long for a plan has about even chunks, as many as
    in the input.
    """
    dtype = x.dtype.name
    plan = plan_pencil_fft(x.chunks, dtype, transforms, output_layout=output_layout)
    if chunks is not None:
        other = plan_pencil_fft(x.chunks, dtype, transforms, output_chunks=chunks)
        if output_layout == "input" or other.moved(x.npartitions) <= plan.moved(x.npartitions):
            plan = other
    axis = too_long(plan, small=long_axis.SMALL)
    if axis is None:
        return apply(x, plan, name)
    (separate,) = (transform for transform in transforms if transform.axis == axis)
    others = tuple(transform for transform in transforms if transform.axis != axis)
    # transforms from real numbers first, to real numbers last
    if separate.kind in TO_REAL or any(other.kind in TO_HALF_COMPLEX for other in others):
        y = long_axis.along_long_axis(transform_axes(x, others, name), separate)
    else:
        y = transform_axes(long_axis.along_long_axis(x, separate), others, name)
    return moved(y, plan.output_chunks) if output_layout == "input" else y


def too_long(plan: PencilPlan, *, small: int) -> int | None:
    """Return the axis to transform without whole blocks, ``None`` if the plan is good.

    It is the longest axis of a stage with too large blocks, among those that the input has in
    several chunks and that are not transformed to cosines or sines. A block is too large if it
    exceeds ``small`` bytes and, relative to padded arrays, ``TOO_LARGE`` average and ``MUCH_MORE``
    largest blocks of the input.
    """
    size = math.prod(map(sum, plan.input_chunks))
    if size == 0:
        return None
    average = size / math.prod(map(len, plan.input_chunks))
    most = max(TOO_LARGE * average, MUCH_MORE * _largest(plan.input_chunks))
    for stage, before, after in zip(plan.stages, plan.exchanges, plan.exchanges[1:], strict=False):
        growth = max(1.0, math.prod(map(sum, stage.output_chunks)) / size)
        nbytes = max(
            _largest(chunks) * np.dtype(exchange.dtype).itemsize
            for chunks, exchange in ((stage.chunks, before), (stage.output_chunks, after))
        )
        elements = max(_largest(stage.chunks), _largest(stage.output_chunks))
        if nbytes > small and elements >= growth * most:
            cut = [
                transform
                for transform in stage.transforms
                if len(plan.input_chunks[transform.axis]) > 1
                and transform.kind not in TRIGONOMETRIC
            ]
            if cut:
                return max(cut, key=lambda each: each.n).axis
    return None


def _largest(chunks: Chunks) -> int:
    return math.prod(map(max, chunks))
