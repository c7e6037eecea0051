"""What the arguments of a call mean: one transform an axis, or an error at once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from dask.array.core import Array
from numpy.lib.array_utils import normalize_axis_index

from dask_dgpu.algorithms.pencil_fft import Transform
from dask_dgpu.arguments import check_choice, expected, integer, integers, sequence

NORMS = ("backward", "ortho", "forward")
REAL_INPUT = ("rfft", "ihfft")
REAL_OUTPUT = ("irfft", "hfft")
TRANSPOSED = {1: 1, 2: 3, 3: 2, 4: 4}
"""Types of cosine and sine transforms, and those of their inverses."""
OTHER_WAY = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
UNKNOWN = 1
"""The length of a transform along an axis of unknown length, which Dask will find out."""


def along_axis(
    kind: str, x: Array, n: int | None, axis: int | None, norm: str | None
) -> tuple[Transform, ...]:
    """Return the transform along one axis, the last one by default."""
    _check_dtype(kind, x)
    (at,) = _axes("axis", (integer("axis", -1 if axis is None else axis),), x.ndim)
    length = _default_length(kind, x, at) if n is None else _length("n", n)
    return (Transform(kind, at, length, _norm(norm)),)


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

    ``kind`` is that of the last axis; it is a complex one along the others. ``default``
    are the axes when none are given; ``None`` stands for all, or for as many from the
    end as ``s`` has entries.
    """
    _check_dtype(kind, x)
    s = None if s is None else _lengths(s)
    axes = None if axes is None else integers("axes", axes)
    if axes is None:
        if default is None and s is not None:
            warnings.warn(
                "`axes` should not be `None` if `s` is not `None` (Deprecated in NumPy 2.0)",
                DeprecationWarning,
                stacklevel=4,
            )
        count = x.ndim if s is None else len(s)
        axes = range(-count, 0) if default is None else default
    at = _axes("axes", axes, x.ndim)
    if s is not None and len(s) != len(at):
        raise ValueError(f"s has {len(s)} entries and axes has {len(at)}, they must be as many")
    if not at and kind not in ("fft", "ifft"):
        raise IndexError(f"axes is empty, {kind}n needs at least one axis")
    kinds = [*[{"rfft": "fft", "irfft": "ifft"}.get(kind, kind)] * (len(at) - 1), kind]
    if s is not None and any(n is None for n in s):
        warnings.warn(
            "`s` should not have an entry of `None` (Deprecated in NumPy 2.0)",
            DeprecationWarning,
            stacklevel=4,
        )
    transforms = []
    for index, (one, axis) in enumerate(zip(kinds, at, strict=False)):
        n = None if s is None else s[index]
        if n is None:
            length = _default_length(one, x, axis)
        elif n == -1:
            length = _default_length("fft", x, axis)
        else:
            length = _length("s", n)
        transforms.append(Transform(one, axis, length, _norm(norm)))
    return tuple(transforms)


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

    ``function`` is ``"dct"``, ``"dst"``, or an inverse, which is the transform of the transposed
    type with the norm of the other direction. ``names`` are those of ``s`` and ``axes`` for the
    caller, whose array is ``x``. As in SciPy, ``s`` without ``axes`` is of the last ones.
    """
    if np.dtype(x.dtype).kind not in "biufc":
        raise TypeError(f"x has the dtype {x.dtype}, {function} takes real or complex numbers")
    type = integer("type", type)
    if type not in TRANSPOSED:
        expected("type", "one of 1, 2, 3, 4", type)
    if s is not None:
        s = integers(names[0], s)
    if axes is None:
        axes = range(-(x.ndim if s is None else len(s)), 0)
    at = _axes(names[1], integers(names[1], axes), x.ndim)
    if s is not None and len(s) != len(at):
        raise ValueError(f"s has {len(s)} entries and axes has {len(at)}, they must be as many")
    scaling = _norm(norm)
    if function.startswith("i"):
        type, scaling = TRANSPOSED[type], OTHER_WAY[scaling]
    kind = f"{function.removeprefix('i')}{type}"
    least = 2 if kind == "dct1" else 1
    transforms = []
    for axis, n in zip(at, [None] * len(at) if s is None else s, strict=True):
        whole = n is None or (n == -1 and names[0] == "s")
        length = (
            _default_length(kind, x, axis, "x", least) if whole else _length(names[0], n, least)
        )
        transforms.append(Transform(kind, axis, length, scaling))
    return tuple(transforms)


def _default_length(kind: str, x: Array, axis: int, name: str = "a", least: int = 1) -> int:
    length = x.shape[axis]
    if math.isnan(length):
        return max(UNKNOWN, least)
    n = 2 * (length - 1) if kind in REAL_OUTPUT else length
    if n < least:
        raise ValueError(
            f"{name} has {length} elements along axis {axis}, so n would be {n}; "
            f"it must be at least {least}"
        )
    return n


def _length(name: str, n: Any, least: int = 1) -> int:
    return integer(f"each of {name}" if name == "s" else name, n, least)


def _lengths(s: Any) -> tuple[int | None, ...]:
    """Return lengths, of which NumPy lets some be ``None``."""
    each = sequence("s", s, "a sequence of integers")
    return tuple(None if n is None else integer("each of s", n) for n in each)


def _axes(name: str, axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    at = tuple(normalize_axis_index(axis, ndim, name) for axis in axes)
    if len(set(at)) < len(at):
        raise ValueError(f"{name} is {tuple(axes)}. Duplicate axes not allowed.")
    return at


def _norm(norm: str | None) -> str:
    if norm is None:
        return "backward"
    check_choice("norm", norm, NORMS)
    return norm


def _check_dtype(kind: str, x: Array) -> None:
    kinds = "biuf" if kind in REAL_INPUT else "biufc"
    if np.dtype(x.dtype).kind not in kinds:
        allowed = "real" if kind in REAL_INPUT else "real or complex"
        raise TypeError(f"a has the dtype {x.dtype}, {kind} takes {allowed} numbers")
