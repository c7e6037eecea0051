"""The grid of threads of a kernel: how it addresses a block, and which thread adds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.sums.lanes import Axis, Form, form_of, in_elements

Array = Any

THREADS = 256
"""Threads of a thread block."""

BLOCKS = 2048
"""Thread blocks that keep a device busy to the end."""

ROWS = 16
"""Minimum number of elements of a thread, if there are as many."""

INDEXING = r"""
typedef long long Long;

// CuPy compiles with -ftz=true, by which a conversion takes subnormal numbers for zero.
__device__ __forceinline__ double widened(double value) { return value; }
__device__ __forceinline__ double widened(float value) {
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(value));
    return wide;
}

struct Layout {
    Long kept, kept_inner, kept_outer_stride, kept_inner_stride;
    Long summed, summed_inner, summed_outer_stride, summed_inner_stride;
    int across;   // neighbouring threads: sums, of which a block has so many
    int down;     // numbers of one sum that a block adds at a time
    int near;     // whether neighbouring threads are of different sums
    int segments; // blocks that share a sum
};

#define LAYOUT Long kept, Long kept_inner, Long kept_outer_stride, Long kept_inner_stride, \
    Long summed, Long summed_inner, Long summed_outer_stride, Long summed_inner_stride, \
    int across, int down, int near, int segments
#define LAYOUT_OF {kept, kept_inner, kept_outer_stride, kept_inner_stride, \
    summed, summed_inner, summed_outer_stride, summed_inner_stride, across, down, near, segments}

__device__ __forceinline__ Long offset_of(Long at, Long inner, Long outer_stride, Long stride) {
    if (outer_stride == 0) return at * stride;
    const Long outer = at / inner;
    return outer * outer_stride + (at - outer * inner) * stride;
}
"""
"""The kernel parameters ``LAYOUT`` are the arguments of a :class:`Grid`."""


@dataclass(frozen=True)
class Grid:
    """The axes of a block, and their distribution to threads.

    Parameters
    ----------
    form : Form
        The block as axes.
    kept, summed : tuple of Axis
        Two axes each, the outer first.
    across, down : int
        Sums of a thread block, and threads that share one of them.
    near : bool
        Whether neighbouring threads belong to different sums.
    segments : int
        Thread blocks that share a sum.
    """

    form: Form
    kept: tuple[Axis, ...]
    summed: tuple[Axis, ...]
    across: int
    down: int
    near: bool
    segments: int

    @property
    def sums(self) -> int:
        """Number of sums."""
        return prod(axis.length for axis in self.kept)

    @property
    def launch(self) -> tuple[tuple[int, int], tuple[int]]:
        """The grid and the block of a launch."""
        return (-(-self.sums // self.across), self.segments), (THREADS,)

    @property
    def length(self) -> int:
        """Numbers of each sum."""
        return prod(axis.length for axis in self.summed)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments ``LAYOUT``."""
        wide: list[int] = []
        for outer, inner in (self.kept, self.summed):
            lonely = outer.length == 1
            wide += [outer.length * inner.length, inner.length]
            wide += [0 if lonely else outer.stride, inner.stride]
        narrow = (self.across, self.down, int(self.near), self.segments)
        return (*map(np.int64, wide), *map(np.int32, narrow))


def grid_of(x: Array, axes: Sequence[int]) -> tuple[Array, Grid]:
    """Return a CuPy block with non-negative strides, and its grid.

    The block is copied if more than two axes of either kind remain.
    """
    form = form_of(x.shape, in_elements(x), axes)
    if len(form.kept) > 2 or len(form.summed) > 2 or any(s % x.itemsize for s in x.strides):
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        x = cupy.ascontiguousarray(x.transpose(*kept, *axes))
        form = form_of(x.shape, in_elements(x), range(len(kept), x.ndim))
    one = Axis(1, 0)
    kept_axes = (one, one, *form.kept)[-2:]
    summed_axes = (one, one, *form.summed)[-2:]
    sums = prod(axis.length for axis in kept_axes)
    length = prod(axis.length for axis in summed_axes)
    near = bool(form.kept) and (not form.summed or form.kept[-1].stride < form.summed[-1].stride)
    if near:
        across = min(sums, THREADS if length < ROWS else 32 if sums > THREADS else sums)
        down = THREADS // across
    else:
        down = min(THREADS, 1 << max(0, length - 1).bit_length())
        across = THREADS // down
    wanted = -(-BLOCKS // -(-sums // across))
    segments = max(1, min(wanted, length // (down * ROWS), 65535))
    return x, Grid(form, kept_axes, summed_axes, across, down, near, segments)


def kernel_of(source: str, constants: Mapping[str, object], name: str) -> Any:
    """Compile a kernel with constants as macros; CuPy caches it on disk."""
    options = tuple(f"-D{key}={value}" for key, value in constants.items())
    return cupy.RawModule(code=source, options=options).get_function(name)
