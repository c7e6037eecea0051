"""A generated kernel with its arguments, before anything is on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.fused.source import Context, Operand

THREADS = 256
"""Threads of a thread block."""


class Array(NamedTuple):
    """What a kernel is told of an array: strides count elements, ``aligned`` is modulo 16."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: int


class Output(NamedTuple):
    """An array that a kernel writes, contiguous in memory: a node's result, perhaps transposed."""

    node: int
    dtype: np.dtype[Any]
    lying: tuple[int, ...]  # the shape as it lies in memory
    order: tuple[int, ...]  # the axes of the result among these
    shape: tuple[int, ...]  # of the result, which may have more axes of length 1

    @property
    def array(self) -> Array:
        """The result as later kernels find it."""
        steps, size = [], 1
        for length in reversed(self.lying):
            steps.append(size)
            size *= length
        steps.reverse()
        left = [(self.lying[at], steps[at]) for at in self.order]
        strides = []
        for length in self.shape:
            found = next((at for at, (n, _) in enumerate(left) if n == length), None)
            if length == 1 or found is None:
                strides.append(0)
                continue
            strides.append(left[found][1])
            del left[: found + 1]
        return Array(self.dtype, self.shape, tuple(strides), 0)


class Entry(NamedTuple):
    """A kernel in a source: its parameters, arrays first, and the arguments of its bounds."""

    name: str
    signature: str
    bounds: str


class Fold(NamedTuple):
    """A second launch, on the outputs and the workspace of the first."""

    entry: Entry
    grid: tuple[int, ...]
    scalars: tuple[Any, ...]


class Launch(NamedTuple):
    """One launch; its arguments are operands, outputs, a workspace, then constants and scalars.

    ``workspace`` counts bytes and is None for kernels that have none.
    """

    source: str
    entry: Entry
    grid: tuple[int, ...]
    operands: tuple[Operand, ...]
    constants: tuple[Any, ...]
    outputs: tuple[Output, ...]
    scalars: tuple[Any, ...]
    workspace: int | None = None
    fold: Fold | None = None
    threads: int = THREADS

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self.entry.name

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The arguments that are not arrays."""
        return (*self.constants, *self.scalars)

    @property
    def arrays(self) -> int:
        """The number of arguments that are arrays."""
        return len(self.operands) + len(self.outputs) + (self.workspace is not None)


def output(
    node: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    lengths: Sequence[int],
    order: Sequence[int],
) -> Output:
    """Return an output whose axes of the domain lie in memory in this order."""
    places = sorted(range(len(order)), key=order.__getitem__)
    return Output(node, dtype, tuple(lengths[axis] for axis in order), tuple(places), shape)


def constants(context: Context) -> tuple[Any, ...]:
    """Return the values of the constants that are kernel parameters."""
    return tuple(value for value, _ in context.constants.values())
