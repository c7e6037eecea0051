"""How kernels walk through blocks: axes by falling stride, merged where all operands allow it.

A :class:`Walk` is over several axes with one running index. What can be known when the kernel is
compiled (one axis, a stride of 0 or 1) is written into its source; lengths and other strides are
parameters, so that one kernel serves all blocks of a kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_dgpu.kernels.fused.source import Axes

VECTOR_BYTES = 16
LARGEST_INDEX = 2**31 - 2**20
"""Most elements for indices of 32 bits; a batch may reach past the end."""


class Walk(NamedTuple):
    """Axes of a domain, outermost first, and the stride in elements of each operand along each."""

    name: str  # of its variables in a kernel
    lengths: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """The number of positions."""
        size = 1
        for length in self.lengths:
            size *= length
        return size

    @property
    def inner(self) -> tuple[int, ...]:
        """The stride of each operand along the innermost axis."""
        return tuple(strides[-1] if strides else 0 for strides in self.strides)

    def pattern(self, operand: int) -> tuple[int, ...]:
        """Return the strides that a kernel knows when it is compiled, and -1 for others."""
        return tuple(stride if stride in (0, 1) else -1 for stride in self.strides[operand])

    def declared(self) -> str:
        """Return the kernel parameters."""
        names = [f"n_{self.name}{axis}" for axis in range(1, len(self.lengths))]
        for operand in range(len(self.strides)):
            names += [
                f"s_{self.name}{axis}_{operand}"
                for axis, stride in enumerate(self.pattern(operand))
                if stride < 0
            ]
        return "".join(f"const Index {name}, " for name in names)

    def arguments(self) -> list[int]:
        """Return the values of the kernel parameters."""
        values = list(self.lengths[1:])
        for operand, strides in enumerate(self.strides):
            known = self.pattern(operand)
            values += [s for s, fixed in zip(strides, known, strict=True) if fixed < 0]
        return values

    def split(self, index: str) -> str:
        """Return C++ that splits a running index into one index for each axis."""
        name, lines = self.name, [f"Index rest_{self.name} = {index};"]
        for axis in range(len(self.lengths) - 1, 0, -1):
            length, rest = f"n_{name}{axis}", f"rest_{name}"
            lines.append(f"const Index i_{name}{axis} = {rest} % {length}; {rest} /= {length};")
        if self.lengths:
            lines.append(f"const Index i_{name}0 = rest_{name};")
        return " ".join(lines)

    def offset(self, operand: int) -> str:
        """Return C++ for the distance of an operand's element, in elements."""
        terms = []
        for axis, stride in enumerate(self.pattern(operand)):
            index = f"i_{self.name}{axis}"
            if stride:
                factor = "" if stride == 1 else f" * s_{self.name}{axis}_{operand}"
                terms.append(index + factor)
        return " + ".join(terms) or "0"

    def step(self, operand: int) -> str:
        """Return C++ for the stride of an operand along the innermost axis."""
        stride = self.pattern(operand)[-1] if self.lengths else 0
        return f"s_{self.name}{len(self.lengths) - 1}_{operand}" if stride < 0 else str(stride)


def strides_along(
    axes: Axes, strides: Sequence[int], shape: Sequence[int], ndim: int
) -> tuple[int, ...]:
    """Return the strides of an array along the axes of a domain."""
    along = [0] * ndim
    for axis, stride, length in zip(axes, strides, shape, strict=True):
        if axis is not None and length != 1:
            along[axis] += stride
    return tuple(along)


def order_of(axes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """Return axes by falling stride of the operands, where these agree."""
    return sorted(axes, key=lambda axis: -max((abs(along[axis]) for along in strides), default=0))


def walk_of(
    name: str,
    axes: Sequence[int],
    lengths: Sequence[int],
    strides: Sequence[Sequence[int]],
) -> Walk:
    """Return the walk over some axes of a domain in this order; neighbours are merged."""
    merged: list[tuple[int, tuple[int, ...]]] = []
    for axis in axes:
        length, here = lengths[axis], tuple(along[axis] for along in strides)
        if length == 1:
            continue
        if merged and all(
            outer == inner * length for outer, inner in zip(merged[-1][1], here, strict=True)
        ):
            merged[-1] = merged[-1][0] * length, here
        else:
            merged.append((length, here))
    return Walk(
        name,
        tuple(length for length, _ in merged),
        tuple(tuple(here[operand] for _, here in merged) for operand in range(len(strides))),
    )


def lanes_of(
    inner: Walk,
    outer: Walk | None,
    itemsizes: Sequence[int],
    aligned: Sequence[int],
    *,
    whole: bool,
    results: Sequence[int] = (),
) -> int:
    """Return how many neighbours along the innermost axis a thread reads at once.

    ``aligned`` are the operands' addresses modulo 16, and ``whole`` says that every run along the
    innermost axis must be a whole number of vectors; else only those before the last.
    """
    lanes = VECTOR_BYTES // max((*itemsizes, *results), default=VECTOR_BYTES)
    if lanes <= 1 or not inner.lengths or not any(step == 1 for step in inner.inner):
        return 1
    if (whole or len(inner.lengths) > 1) and inner.lengths[-1] % lanes:
        return 1
    for operand, step in enumerate(inner.inner):
        others = [*inner.strides[operand][:-1], *(outer.strides[operand] if outer else ())]
        if step == 1 and (
            aligned[operand] % (lanes * itemsizes[operand]) or any(s % lanes for s in others)
        ):
            return 1
    return lanes


def index_type(*walks: Walk) -> str:
    """Return the C++ type of indices and distances: 32 bits wide where that is enough."""
    size, reach = 1, 0
    for walk in walks:
        size *= walk.size
    for operand in range(len(walks[0].strides)):
        far = sum(
            abs(stride) * (length - 1)
            for walk in walks
            for stride, length in zip(walk.strides[operand], walk.lengths, strict=True)
        )
        reach = max(reach, far)
    return "int" if max(size, reach) < LARGEST_INDEX else "long long"


def scalars(kind: str, values: Sequence[int]) -> list[np.int32] | list[np.int64]:
    """Return kernel arguments of a type of indices."""
    return [np.int32(v) for v in values] if kind == "int" else [np.int64(v) for v in values]


def loads(
    name: str, kind: str, offset: str, step: int, stride: str, *, lanes: str, pointer: str
) -> str:
    """Return C++ that reads the lanes of an operand."""
    if step == 1:
        return f"{name} = *(const Vector<{kind}, {lanes}>*) ({pointer} + ({offset}));"
    at = f"{offset}" if step == 0 else f"{offset} + j * {stride}"
    return f'_Pragma("unroll") for (int j = 0; j < {lanes}; ++j) {name}.lane[j] = {pointer}[{at}];'
