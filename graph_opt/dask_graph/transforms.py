"""The memory that NumPy's Fourier transforms of a block allocate beside operand and result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from graph_opt.model.layout import real_of

COMPLEX, FROM_REAL, TO_REAL = ("fft", "ifft"), ("rfft", "ihfft"), ("irfft", "hfft")
FORWARD = ("fft", "rfft", "hfft")
KINDS = COMPLEX + FROM_REAL + TO_REAL
SEVERAL = ("fft", "ifft", "rfft", "irfft")
"""The kinds for several axes, with a suffix: ``"2"`` or ``"n"``."""

FUNCTIONS = frozenset({*KINDS, *(kind + end for kind in SEVERAL for end in "2n")})
MODULE = "numpy.fft"

Lengths = Sequence[float]


class Stage(NamedTuple):
    """A transform along one axis; ``n`` is its length, ``None`` for that of the operand."""

    kind: str
    axis: int
    n: int | None


def is_transform(function: Any) -> bool:
    """Whether a function is one of NumPy's Fourier transforms."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    return module == MODULE and name in FUNCTIONS


def beside(
    name: str, values: Sequence[Any], options: Mapping[str, Any], shape: Lengths, dtype: str
) -> float:
    """Return the most bytes of a call beside a block of this ``shape`` and the result.

    ``values`` and ``options`` are its further arguments.
    """
    names = ("n", "axis", "norm") if name in KINDS else ("s", "axes", "norm")
    given = dict(zip(names, values, strict=False)) | dict(options)
    length, along, norm = (given.get(each) for each in names)
    before, most, made = 0.0, 0.0, 0.0
    lengths = list(shape)
    for stage in _stages(name, length, along, len(shape)):
        size = prod(lengths)
        lengths[stage.axis] = _length(stage, lengths[stage.axis])
        result, copies = _stage(stage.kind, norm, size, prod(lengths), dtype)
        made = prod(lengths) * result.itemsize
        most = max(most, before + copies + made)
        before, dtype = made, result.name
    return max(0.0, most - made)


def _stages(name: str, length: Any, along: Any, ndim: int) -> Iterator[Stage]:
    """Yield the transforms of a function along one axis or several, in NumPy's order."""
    if name in KINDS:
        yield Stage(name, -1 if along is None else along, length)
        return
    kind = name[:-1]
    if along is None:
        count = 2 if name.endswith("2") else ndim if length is None else len(length)
        along = range(-count, 0)
    lengths = [None] * len(along) if length is None else list(length)
    pairs = list(zip(along, lengths, strict=True))
    if kind == "irfft":
        yield from (Stage("ifft", *pair) for pair in pairs[:-1])
        yield Stage("irfft", *pairs[-1])
        return
    yield Stage(kind, *pairs[-1])
    yield from (Stage(kind.removeprefix("r"), *pair) for pair in pairs[-2::-1])


def _length(stage: Stage, length: float) -> float:
    """Return the length of a result along the axis of a transform."""
    n = length if stage.n in (None, -1) else float(stage.n or 0)
    if stage.kind in FROM_REAL:
        return n // 2 + 1
    return 2 * (length - 1) if stage.kind in TO_REAL and stage.n is None else n


def _stage(
    kind: str, norm: str | None, size: float, made: float, dtype: str
) -> tuple[np.dtype[Any], float]:
    """Return the dtype of the result and the bytes of copies in other dtypes.

    ``size`` and ``made`` are the elements of operand and result. NumPy computes in single precision
    only if the operand needs no conversion and the result is scaled.
    """
    given, real = np.dtype(dtype), np.result_type(real_of(dtype), 1.0)
    scaled = ("forward", "ortho") if kind in FORWARD else (None, "backward", "ortho")
    exact = norm in scaled and (given.kind == "c") is (kind not in FROM_REAL)
    single = exact and real == np.float32
    working = real if single else np.result_type(real, np.float64)
    read = working if kind in FROM_REAL else np.result_type(working, 1j)
    written = working if kind in TO_REAL else np.result_type(working, 1j)
    result = real if kind in TO_REAL else np.result_type(given, 1j)
    copies = size * read.itemsize * (given != read) + made * written.itemsize * (result != written)
    if kind == "hfft":
        copies += size * given.itemsize  # the conjugate
    return result, copies
