"""Arguments of a call as one transform per axis, or an error at the call."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from dask.array.core import Array
from numpy.lib.array_utils import normalize_axis_index

from dask_dgpu.algorithms.pencil_fft import Transform
from dask_dgpu.arguments import check_choice, expected, integer, integers, sequence
from dask_dgpu.array.inputs import check_dtype

NORMS = ("backward", "ortho", "forward")
REAL_INPUT = ("rfft", "ihfft")
REAL_OUTPUT = ("irfft", "hfft")
TRANSPOSED = {1: 1, 2: 3, 3: 2, 4: 4}
"""Types of cosine and sine transforms, and the types of their inverses."""
OTHER_WAY = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
UNKNOWN = 1
"""Stands for the length of a transform along an axis of unknown length; Dask determines it."""


def along_axis(
    kind: str, x: Array, n: int | None, axis: int | None, norm: str | None
) -> tuple[Transform, ...]:
    """Return the transform along one axis, the last one by default."""
    _check_dtype(kind, x)
    axes = _axes("axis", (integer("axis", -1 if axis is None else axis),), x.ndim)
    return _transforms((kind,), x, axes, (n,), _norm(norm), argument="n")


def along_axes(
    kind: str,
    x: Array,
    s: Sequence[int | None] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    *,
    default: Sequence[int] | None,
) -> tuple[Transform, ...]:
    """Return the transforms along several axes, in their order.

    ``kind`` is that of the last axis; the other transforms are complex. ``default`` are the
    axes if none are given; ``None`` means all, or the last ones if ``s`` has fewer entries.
    """
    _check_dtype(kind, x)
    lengths = None if s is None else _lengths(s)
    axes = None if axes is None else integers("axes", axes)
    if axes is None:
        if default is None and lengths is not None:
            warnings.warn(
                "`axes` should not be `None` if `s` is not `None` (Deprecated in NumPy 2.0)",
                DeprecationWarning,
                stacklevel=3,
            )
        count = x.ndim if lengths is None else len(lengths)
        axes = range(-count, 0) if default is None else default
    at = _axes("axes", axes, x.ndim)
    if not at and kind not in ("fft", "ifft"):
        raise IndexError(f"expected axes to have at least one entry for {kind}n, got {axes!r}")
    if lengths is not None and None in lengths:
        warnings.warn(
            "`s` should not have an entry of `None` (Deprecated in NumPy 2.0)",
            DeprecationWarning,
            stacklevel=3,
        )
    others = {"rfft": "fft", "irfft": "ifft"}.get(kind, kind)
    kinds = [*[others] * (len(at) - 1), kind][: len(at)]
    return _transforms(kinds, x, at, lengths, _norm(norm))


def along_axes_trigonometric(
    function: str,
    x: Array,
    type: int,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    *,
    names: tuple[str, str],
) -> tuple[Transform, ...]:
    """Return the cosine or sine transforms along several axes, in their order.

    ``function`` is ``"dct"``, ``"dst"`` or an inverse. An inverse is the transform of the
    transposed type with the norm of the other direction. ``names`` are the caller's names of
    ``s`` and ``axes``. As in SciPy, ``s`` without ``axes`` is of the last ones.
    """
    check_dtype("x", x)
    type = integer("type", type)
    if type not in TRANSPOSED:
        expected("type", "one of 1, 2, 3, 4", type)
    lengths = None if s is None else integers(names[0], s)
    if axes is None:
        axes = range(-(x.ndim if lengths is None else len(lengths)), 0)
    at = _axes(names[1], integers(names[1], axes), x.ndim)
    scaling = _norm(norm)
    if function.startswith("i"):
        type, scaling = TRANSPOSED[type], OTHER_WAY[scaling]
    kinds = [f"{function.removeprefix('i')}{type}"] * len(at)
    return _transforms(kinds, x, at, lengths, scaling, array="x", argument=names[0])


def _transforms(
    kinds: Sequence[str],
    x: Array,
    axes: Sequence[int],
    lengths: Sequence[int | None] | None,
    norm: str,
    *,
    array: str = "a",
    argument: str = "s",
) -> tuple[Transform, ...]:
    """Return one transform per axis; ``array`` and ``argument`` are names for messages."""
    if lengths is None:
        lengths = (None,) * len(axes)
    if len(lengths) != len(axes):
        raise ValueError(
            f"expected s and axes of the same length, got {len(lengths)} and {len(axes)}"
        )
    return tuple(
        Transform(kind, axis, _length(kind, x, axis, n, array, argument), norm)
        for kind, axis, n in zip(kinds, axes, lengths, strict=True)
    )


def _length(kind: str, x: Array, axis: int, n: int | None, array: str, argument: str) -> int:
    """Return the length of a transform; ``None``, and -1 in ``s``, select that of the axis."""
    least = 2 if kind == "dct1" else 1
    if n is not None and (argument != "s" or n != -1):
        return integer(f"each of {argument}" if argument == "s" else argument, n, least)
    length = x.shape[axis]
    if math.isnan(length):
        return max(UNKNOWN, least)
    default = 2 * (length - 1) if n is None and kind in REAL_OUTPUT else length
    if default < least:
        raise ValueError(
            f"expected {argument} of at least {least}, got {default} by default: "
            f"{array} has {length} elements along axis {axis}"
        )
    return default


def _lengths(s: Any) -> tuple[int | None, ...]:
    """Return lengths; as in NumPy, some may be ``None``."""
    each = sequence("s", s, "a sequence of integers")
    return tuple(None if n is None else integer("each of s", n) for n in each)


def _axes(name: str, axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    at = tuple(normalize_axis_index(axis, ndim, name) for axis in axes)
    if len(set(at)) < len(at):
        raise ValueError(f"expected {name} to be different, got {tuple(axes)}")
    return at


def _norm(norm: str | None) -> str:
    if norm is None:
        return "backward"
    check_choice("norm", norm, NORMS)
    return norm


def _check_dtype(kind: str, x: Array) -> None:
    if kind in REAL_INPUT:
        check_dtype("a", x, kinds="biuf", what="real numbers")
    else:
        check_dtype("a", x)
