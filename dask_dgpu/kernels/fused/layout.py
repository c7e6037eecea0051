"""How kernels walk through blocks: axes by falling stride, merged where all operands allow it.

A :class:`Walk` is over several axes with one running index. A :class:`Domain` has a walk over the
axes that are kept, and one over those that are reduced, which elementwise work has none of. What
can be known when the kernel is compiled (one axis, a stride of 0 or 1) is written into its source;
lengths and other strides are parameters, so that one kernel serves all blocks of a kind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.fused.device_functions import stored_type, value_type
from dask_dgpu.kernels.fused.kernel import Array, Entry, Output
from dask_dgpu.kernels.fused.source import Axes, Context, Known

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
        return prod(self.lengths)

    @property
    def inner(self) -> tuple[int, ...]:
        """The stride of each operand along the innermost axis."""
        return tuple(strides[-1] if strides else 0 for strides in self.strides)

    def pattern(self, operand: int) -> tuple[int, ...]:
        """Return the strides that a kernel knows when it is compiled, and -1 for others."""
        return tuple(stride if stride in (0, 1) else -1 for stride in self.strides[operand])

    def declared(self) -> list[str]:
        """Return the kernel parameters."""
        names = [f"n_{self.name}{axis}" for axis in range(1, len(self.lengths))]
        for operand in range(len(self.strides)):
            names += [
                f"s_{self.name}{axis}_{operand}"
                for axis, stride in enumerate(self.pattern(operand))
                if stride < 0
            ]
        return [f"const Index {name}" for name in names]

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


class Domain(Context):
    """The elements that a kernel goes through, along axes that are kept or reduced."""

    def __init__(
        self, known: Known, shape: tuple[int, ...], axes: Collection[int] = frozenset()
    ) -> None:
        super().__init__(known)
        self.shape = shape
        self.everywhere = tuple(axis if length != 1 else None for axis, length in enumerate(shape))
        self.order = [axis for axis in range(len(shape)) if axis not in axes]
        self.inner = sorted(axes)

    def walk(self, ordered: bool = False) -> None:
        """Choose the walks, when all operands are known; ``ordered`` counts reduced elements."""
        self.names = list(self.operands.values())
        self.described = [self.arrays[operand.node] for operand in self.operands]
        self.kinds = [stored_type(array.dtype) for array in self.described]
        strides = [
            self._strides_along(operand.axes, array)
            for operand, array in zip(self.operands, self.described, strict=True)
        ]
        self.order = _by_stride(self.order, strides)
        if not ordered:
            self.inner = _by_stride(self.inner, strides)
        self.kept = _walk("k", self.order, self.shape, strides)
        self.reduced = _walk("r", self.inner, self.shape, strides)
        self.index = self._index_type()

    def _strides_along(self, axes: Axes, array: Array) -> list[int]:
        """Return the strides of an array along the axes of the domain."""
        along = [0] * len(self.shape)
        for axis, stride, length in zip(axes, array.strides, array.shape, strict=True):
            if axis is not None and length != 1:
                along[axis] += stride
        return along

    def _index_type(self) -> str:
        """Return the C++ type of indices and distances: 32 bits wide where that is enough."""
        reach = self.kept.size * self.reduced.size
        for operand in range(len(self.names)):
            far = sum(
                abs(stride) * (length - 1)
                for walk in (self.kept, self.reduced)
                for stride, length in zip(walk.strides[operand], walk.lengths, strict=True)
            )
            reach = max(reach, far)
        return "int" if reach < LARGEST_INDEX else "long long"

    def lanes_along(
        self, inner: Walk, outer: Walk, *, whole: bool, results: Sequence[int] = ()
    ) -> int:
        """Return how many neighbours along the innermost axis of a walk a thread reads at once.

        ``whole`` says that every run along that axis must be a whole number of vectors; else only
        those before the last. ``results`` are the bytes of the elements that it writes.
        """
        sizes = [array.dtype.itemsize for array in self.described]
        lanes = VECTOR_BYTES // max((*sizes, *results), default=VECTOR_BYTES)
        if lanes <= 1 or not inner.lengths or not any(step == 1 for step in inner.inner):
            return 1
        if (whole or len(inner.lengths) > 1) and inner.lengths[-1] % lanes:
            return 1
        for operand, step in enumerate(inner.inner):
            others = [*inner.strides[operand][:-1], *outer.strides[operand]]
            aligned = self.described[operand].aligned % (lanes * sizes[operand])
            if step == 1 and (aligned or any(stride % lanes for stride in others)):
                return 1
        return lanes

    def loads(self, at: int, into: str, along: Walk, pointer: str = "b") -> str:
        """Return C++ that reads the ``L`` lanes of an operand, neighbours along a walk.

        ``pointer`` is that of a result, or of all of them.
        """
        name, step, stride = f"{pointer}_{self.names[at]}", along.inner[at], along.step(at)
        place = (self.reduced if pointer == "b" else self.kept).offset(at)
        if step == 1:
            return f"{into} = *(const Vector<{self.kinds[at]}, L>*) ({name} + ({place}));"
        place = place if step == 0 else f"{place} + j * {stride}"
        return f'_Pragma("unroll") for (int j = 0; j < L; ++j) {into}.lane[j] = {name}[{place}];'

    def bases(self) -> str:
        """Return C++ of pointers to the operands' elements of one result."""
        return " ".join(
            f"const {kind}* b_{name} = p_{name} + ({self.kept.offset(at)});"
            for at, (name, kind) in enumerate(zip(self.names, self.kinds, strict=True))
        )

    def scalars(self, *values: int) -> list[Any]:
        """Return kernel arguments of the type of indices."""
        return [(np.int32 if self.index == "int" else np.int64)(value) for value in values]

    def entry(
        self,
        name: str,
        outputs: Sequence[str],
        declared: Sequence[str],
        values: Sequence[int],
        grid: tuple[int, int],
        **options: Any,
    ) -> Entry:
        """Return a kernel of operands, outputs, constants, the walks, and more numbers."""
        pairs = zip(self.names, self.kinds, strict=True)
        operands = [f"const {kind}* __restrict__ p_{name}" for name, kind in pairs]
        constants = self.constants.values()
        numbers = [f"const {value_type(number.dtype)} {name}" for name, number in constants]
        numbers += [*self.kept.declared(), *self.reduced.declared(), *declared]
        given = [number for _, number in constants]
        given += self.scalars(*self.kept.arguments(), *self.reduced.arguments(), *values)
        return Entry(name, (*operands, *outputs), tuple(numbers), tuple(given), grid, **options)

    def output(self, at: int, inner: Sequence[int] = ()) -> Output:
        """Return the output of a node; its axes lie as the operands' do."""
        dtype, shape, *_ = self.found[at]
        order = [*self.order, *inner]
        places = tuple(sorted(range(len(order)), key=order.__getitem__))
        if places == tuple(range(len(order))):
            return Output(at, dtype, shape, None, shape)
        return Output(at, dtype, tuple(self.shape[axis] for axis in order), places, shape)

    def read(self) -> tuple[int, ...]:
        """Return the nodes of the operands."""
        return tuple(operand.node for operand in self.operands)


def written(kinds: Sequence[str]) -> list[str]:
    """Return the parameters of arrays of these types that a kernel writes."""
    return [f"{kind}* __restrict__ out{at}" for at, kind in enumerate(kinds)]


def _by_stride(axes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """Return axes by falling stride of the operands, where these agree."""
    return sorted(axes, key=lambda axis: -max((abs(along[axis]) for along in strides), default=0))


def _walk(
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
