"""How a reduction walks through a block: rows of lanes, for any axes and any strides.

A lane is an accumulator. Neighbours in memory belong to neighbouring lanes, so that one
instruction adds to many lanes. Each lane adds its values in a fixed order::

    axis 0 of (n, 3)      a b c | a b c | a b c      lanes of three sums, folded
                          a b c | a b c | a b c      rows add to the same lanes
                          -----------------------
                          a b c   a b c   a b c      then lanes of one sum are added
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from numpy.lib.stride_tricks import as_strided

from dask_dgpu.kernels.fused.layout import by_stride, walk_of

Array = Any

LANES = 1024  # most lanes of a walk; these accumulators fit the L1 cache
STRIDED_LANES = 256  # the same if neighbouring lanes read from different cache lines
SHORT = 128  # shorter axes do not benefit from several lanes for one sum
NARROW = 16  # minimum number of adjacent kept elements for lanes
SUMS = 4096  # most sums of a step; accumulators of any size fit the cache
FEW_ROWS = 8  # minimum number of values for each lane of one sum; makes folding the lanes cheap
SMALL_WALK = 4096  # walks with fewer elements are mostly overhead


class Axis(NamedTuple):
    """An axis of a block, or several merged axes: length, and stride in elements."""

    length: int
    stride: int


class Walk(NamedTuple):
    """One pass over a part of a block; all numbers count elements."""

    start: int  # offset in memory from the first element of the block
    outer: int  # repetitions of the walk for other sums
    across: int  # stride between repetitions
    rows: int  # rows that add to the same lanes
    down: int  # stride between rows
    width: int  # elements of a row, one for each lane
    along: int  # stride between elements of a row
    lanes: int  # lanes that walk through all rows together; >= ``width`` if lanes share sums
    kept: int  # lanes of different sums; lane ``j`` belongs to the sum ``j % kept``


Step = tuple[tuple[Any, ...], list[Walk]]
"""The place of some sums among the sums of a block, (outer, kept), and all walks for them."""


class Form(NamedTuple):
    """A block as kept axes and summed axes, each by falling stride.

    These axes are longer than one element, and merged if possible.
    """

    kept: tuple[Axis, ...]
    summed: tuple[Axis, ...]
    shape: tuple[int, ...]  # lengths of the kept axes of the block, by falling stride
    order: tuple[int, ...]  # the position in ``shape`` of each kept axis of the block
    turned: tuple[slice, ...] = ()  # which of them the block reverses

    def restored(self, sums: Array, leading: int = 0) -> Array:
        """Return sums in the order of the form with the axes of the block.

        The first ``leading`` axes belong to each sum and stay first.
        """
        sums = sums.reshape(sums.shape[:leading] + self.shape)
        sums = sums.transpose(*range(leading), *(leading + at for at in self.order))
        return sums[(..., *self.turned)]


def form_of(shape: Sequence[int], strides: Sequence[int], axes: Sequence[int]) -> Form:
    """Return the form of a block with non-negative strides, in elements."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    falling, summed = (by_stride(each, [strides]) for each in (kept, axes))
    order = sorted(range(len(kept)), key=falling.__getitem__)
    return Form(
        _merged(falling, shape, strides),
        _merged(summed, shape, strides),
        tuple(shape[axis] for axis in falling),
        tuple(order),
    )


def _merged(axes: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> tuple[Axis, ...]:
    walk = walk_of("", axes, shape, [strides])
    return tuple(map(Axis, walk.lengths, *walk.strides))


def in_elements(x: Array) -> tuple[int, ...]:
    """Return the strides of a block in elements."""
    return tuple(stride // x.itemsize for stride in x.strides)


def steps_of(x: Array, axes: Sequence[int]) -> tuple[Array, Form, tuple[int, ...], list[Step]]:
    """Return the flat memory of a NumPy block, its form, the shape of its sums, and the steps.

    Each sum belongs to one step. A block is copied if it is not aligned, not in native byte order,
    or so scattered that walks would be tiny.
    """
    if any(stride % x.itemsize for stride in x.strides) or not x.flags.aligned:
        x = x.copy()
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    turned = [slice(None, None, -1 if stride < 0 else None) for stride in x.strides]
    x = x[(..., *turned)]
    form = form_of(x.shape, in_elements(x), axes)
    shape, steps = _steps(form)
    count = sum(len(walks) for _, walks in steps)
    if count > 1 and x.size < SMALL_WALK * count:
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        x = x.transpose(*kept, *axes).copy()  # the summed axes are last
        form = form_of(x.shape, in_elements(x), range(len(kept), x.ndim))
        shape, steps = _steps(form)
    form = form._replace(turned=tuple(s for axis, s in enumerate(turned) if axis not in axes))
    span = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, in_elements(x), strict=True))
    return as_strided(x, (span,), (x.itemsize,), writeable=False), form, shape, steps


def _steps(form: Form) -> tuple[tuple[int, ...], list[Step]]:
    """Walk along the kept axis with the smallest stride, or along the summed one."""
    one = Axis(1, 0)
    kept, summed = form.kept or (one,), form.summed or (one,)
    nearest, rows = kept[-1], summed[-1]
    near = nearest.stride < rows.stride or rows.length == 1
    follow = near and rows.stride == nearest.length * nearest.stride and nearest.length <= LANES
    if not follow and not (nearest.length >= NARROW and (near or rows.length < SHORT)):
        kept, nearest, follow = (*kept, Axis(1, rows.stride)), Axis(1, rows.stride), True
    left = [axis for axis in summed if axis is not rows]
    *others, outer, _ = (one, one, *kept)
    wide = min(nearest.length, SUMS)
    high = SUMS // wide
    steps = []
    for at in product(*(range(axis.length) for axis in others)):
        for lo, top in product(range(0, nearest.length, wide), range(0, outer.length, high)):
            first = _offset((*at, top, lo), (*others, outer, nearest))
            across = Axis(min(high, outer.length - top), outer.stride)
            along = Axis(min(wide, nearest.length - lo), nearest.stride)
            walks: list[Walk] = []
            for corner in product(*(range(axis.length) for axis in left)):
                walks += _walks(first + _offset(corner, left), across, rows, along, follow)
            steps.append(((*at, slice(top, top + high), slice(lo, lo + wide)), walks))
    return (*(axis.length for axis in (*others, outer)), nearest.length), steps


def _walks(start: int, outer: Axis, rows: Axis, along: Axis, follow: bool) -> Iterator[Walk]:
    """Walk through rows; fold several into one if they are adjacent in memory."""
    several = min(LANES // along.length, rows.length // FEW_ROWS) if follow else 1
    fold = 1 << max(0, several.bit_length() - 1)  # a power of two, for a tree
    count, rest = divmod(rows.length, fold)
    down = fold * rows.stride
    sums, stride = along
    lanes = LANES if follow or stride == 1 else STRIDED_LANES
    yield Walk(start, *outer, count, down, fold * sums, stride, lanes, sums)
    if rest:
        yield Walk(start + count * down, *outer, 1, 0, rest * sums, stride, lanes, sums)


def _offset(at: Sequence[int], axes: Sequence[Axis]) -> int:
    return sum(i * axis.stride for i, axis in zip(at, axes, strict=True))
