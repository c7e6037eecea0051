"""How kernels walk through blocks: axes by falling stride, merged where all operands allow it.

A :class:`Walk` is over several axes with one running index. A :class:`Domain` has a walk over the
axes that a thread or a group of threads keeps, and one over those that it goes along. What can be
known when the kernel is compiled (one axis, a stride of 0 or 1) is written into its source; lengths
and other strides are parameters, so that one kernel serves all blocks of a kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.fused.device_functions import stored_type, value_type
from dask_dgpu.kernels.fused.kernel import Entry, Launch, Output
from dask_dgpu.kernels.fused.prelude import PRELUDE
from dask_dgpu.kernels.fused.source import Context, Known, Operand

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

    @property
    def numbers(self) -> dict[str, int]:
        """The kernel parameters: lengths, and strides other than 0 and 1."""
        parameters = {f"n_{self.name}{axis}": n for axis, n in enumerate(self.lengths) if axis}
        for operand, strides in enumerate(self.strides):
            named = {self.stride(axis, operand): stride for axis, stride in enumerate(strides)}
            parameters |= {name: stride for name, stride in named.items() if not name.isdigit()}
        return parameters

    def stride(self, axis: int, operand: int) -> str:
        """Return C++ for the stride of an operand along an axis."""
        stride = self.strides[operand][axis]
        return str(stride) if stride in (0, 1) else f"s_{self.name}{axis}_{operand}"

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
        pairs = ((f"i_{self.name}{i}", self.stride(i, operand)) for i in range(len(self.lengths)))
        terms = [index if by == "1" else f"{index} * {by}" for index, by in pairs if by != "0"]
        return " + ".join(terms) or "0"


class Domain(Context):
    """The elements that a kernel goes through, along axes that are kept or reduced.

    Elementwise work goes along all axes, and reduces none.
    """

    def __init__(self, known: Known, shape: tuple[int, ...], axes: Collection[int]) -> None:
        super().__init__(known)
        self.shape = shape
        self.everywhere = tuple(axis if length != 1 else None for axis, length in enumerate(shape))
        self.outer = [axis for axis in range(len(shape)) if axis not in axes]
        self.inner = sorted(axes)

    def walk(self, ordered: bool = False) -> None:
        """Choose the walks, when all operands are known; ``ordered`` counts reduced elements."""
        strides = list(map(self._strides_along, self.read))
        self.outer = by_stride(self.outer, strides)
        if not ordered:
            self.inner = by_stride(self.inner, strides)
        self.kept = walk_of("k", self.outer, self.shape, strides)
        self.reduced = walk_of("r", self.inner, self.shape, strides)
        reach = [self.kept.size * self.reduced.size]
        for along in strides:
            pairs = zip(along, self.shape, strict=True)
            reach.append(sum(abs(stride) * (length - 1) for stride, length in pairs))
        self.index = "int" if max(reach) < LARGEST_INDEX else "long long"

    @property
    def read(self) -> list[Operand]:
        """The operands."""
        return list(self.operands.values())

    @property
    def sizes(self) -> dict[str, int]:
        """The kernel parameters of its size."""
        return {"results": self.kept.size, "length": self.reduced.size}

    def kinds(self, nodes: Sequence[int]) -> list[str]:
        """Return the C++ types of the elements of nodes in memory."""
        return [stored_type(self.node_types[at].dtype) for at in nodes]

    def _strides_along(self, operand: Operand) -> list[int]:
        """Return the strides of an operand along the axes of the domain."""
        along = [0] * len(self.shape)
        array = operand.array
        for axis, stride, length in zip(operand.axes, array.strides, array.shape, strict=True):
            if axis is not None and length != 1:
                along[axis] += stride
        return along

    def lanes_along(
        self, inner: Walk, outer: Walk, *, whole: bool, results: Sequence[int] = ()
    ) -> int:
        """Return how many neighbours along the innermost axis of a walk a thread reads at once.

        ``whole`` says that every run along that axis must be a whole number of vectors; else only
        those before the last. ``results`` are nodes of which it writes an element for each.
        """
        sizes = [operand.array.dtype.itemsize for operand in self.read]
        written = [self.node_types[at].dtype.itemsize for at in results]
        lanes = VECTOR_BYTES // max((*sizes, *written), default=VECTOR_BYTES)
        if lanes <= 1 or not inner.lengths or not any(step == 1 for step in inner.inner):
            return 1
        if (whole or len(inner.lengths) > 1) and inner.lengths[-1] % lanes:
            return 1
        for i, step in enumerate(inner.inner):
            others = [*inner.strides[i][:-1], *outer.strides[i]]
            aligned = self.read[i].array.aligned % (lanes * sizes[i])
            if step == 1 and (aligned or any(stride % lanes for stride in others)):
                return 1
        return lanes

    def load(self, operand: Operand, into: str, along: Walk) -> str:
        """Return C++ that reads the ``L`` lanes of an operand, neighbours along a walk."""
        at, name = operand.at, f"b_{operand.name}"
        step, place = along.inner[at], self.reduced.offset(at)
        if step == 1:
            return f"{into} = *(const Vector<{operand.kind}, L>*) ({name} + ({place}));"
        if step:
            place = f"{place} + j * {along.stride(len(along.lengths) - 1, at)}"
        return f'_Pragma("unroll") for (int j = 0; j < L; ++j) {into}.lane[j] = {name}[{place}];'

    def scalars(self, numbers: Mapping[str, int]) -> dict[str, Any]:
        """Return kernel parameters of the type of indices, in C++, and their values."""
        kind = np.int32 if self.index == "int" else np.int64
        return {f"const Index {name}": kind(value) for name, value in numbers.items()}

    def entry(
        self,
        name: str,
        outputs: Sequence[str],
        numbers: Mapping[str, int],
        grid: tuple[int, int],
        **options: Any,
    ) -> Entry:
        """Return a kernel of operands, outputs, constants, the walks, and more numbers."""
        operands = [f"const {each.kind}* __restrict__ p_{each.name}" for each in self.read]
        given = {f"const {value_type(n.dtype)} {name}": n for name, n in self.constants.values()}
        given |= self.scalars({**self.kept.numbers, **self.reduced.numbers, **numbers})
        return Entry(name, (*operands, *outputs), given, grid, **options)

    def macros(self, entry: Entry) -> dict[str, Any]:
        """Return what all templates of kernels have."""
        return {
            "index": self.index,
            "name": entry.name,
            "bounds": entry.bounds,
            "threads": entry.threads,
            "signature": entry.signature,
            "split_kept": self.kept.split("where_kept"),
            "split_reduced": self.reduced.split("where"),
            "bases": " ".join(
                f"const {each.kind}* b_{each.name} = p_{each.name} + ({self.kept.offset(each.at)});"
                for each in self.read
            ),
        }

    def launch(
        self, source: str, entries: Sequence[Entry], outputs: Sequence[Output], *workspace: int
    ) -> Launch:
        """Return the launch of kernels."""
        text = f"typedef {self.index} Index;\n{PRELUDE}{source}"
        nodes = tuple(operand.node for operand in self.read)
        return Launch(text, tuple(entries), nodes, tuple(outputs), *workspace)

    def output(self, at: int, whole: bool) -> Output:
        """Return the output of a node, one element for each position or only for each kept one.

        Its axes lie as the operands' do.
        """
        dtype, shape, *_ = self.node_types[at]
        order = [*self.outer, *(self.inner if whole else ())]
        places = tuple(sorted(range(len(order)), key=order.__getitem__))
        if places == tuple(range(len(order))):
            return Output(at, dtype, shape, None, shape)
        return Output(at, dtype, tuple(self.shape[axis] for axis in order), places, shape)


def written(kinds: Sequence[str]) -> list[str]:
    """Return the parameters of arrays of these types that a kernel writes."""
    return [f"{kind}* __restrict__ out{i}" for i, kind in enumerate(kinds)]


def stores(results: Sequence[tuple[int, str, str]], place: str) -> dict[str, str]:
    """Return C++ that declares, assigns and writes the lanes of results.

    ``results`` are their numbers, types and values.
    """
    return {
        "results": " ".join(f"Vector<{kind}, L> r{at};" for at, kind, _ in results),
        "values": " ".join(f"r{at}.lane[j] = stored<{kind}>({x});" for at, kind, x in results),
        "stores": " ".join(
            f"*(Vector<{kind}, L>*) (out{at} + {place}) = r{at};" for at, kind, _ in results
        ),
    }


def by_stride(axes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """Return axes by falling stride of the operands, where these agree."""
    return sorted(axes, key=lambda axis: -max((abs(along[axis]) for along in strides), default=0))


def walk_of(
    name: str, axes: Sequence[int], lengths: Sequence[int], strides: Sequence[Sequence[int]]
) -> Walk:
    """Return the walk over some axes of a domain in this order; neighbours are merged."""
    merged: list[tuple[int, list[int]]] = []
    for axis in axes:
        length, here = lengths[axis], [along[axis] for along in strides]
        if length == 1:
            continue
        if merged and merged[-1][1] == [stride * length for stride in here]:
            length *= merged.pop()[0]
        merged.append((length, here))
    every = [tuple(here[i] for _, here in merged) for i in range(len(strides))]
    return Walk(name, tuple(length for length, _ in merged), tuple(every))
