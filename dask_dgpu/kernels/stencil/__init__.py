"""Stencils: weighted sums of the elements around each position, for NumPy and CuPy alike.

::

        .  4  .                   taps: the offset of each weight that is not zero
        4 -20 4      ---->
        .  4  .

A *sweep* computes a region of one array from another of the same shape. The arrays need ghost
cells: all positions that the taps read. The same sweep is a step of Jacobi's iteration, with an
``added`` array, and sums the squares of the changes for the residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
Region = tuple[slice, ...]

LAPLACIAN_5PT = np.array([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
LAPLACIAN_9PT = np.array([[1.0, 4.0, 1.0], [4.0, -20.0, 4.0], [1.0, 4.0, 1.0]]) / 6
for _weights in (LAPLACIAN_5PT, LAPLACIAN_9PT):
    _weights.setflags(write=False)

PAD_MODES = {"periodic": "wrap", "reflect": "symmetric", "mirror": "reflect", "nearest": "edge"}
"""NumPy's names of the boundaries."""

CACHE_BYTES = 1 << 19
"""Bytes of a band of three arrays, which stays in the cache of a core."""

MIN_BAND = 8
"""Minimum number of rows of a band."""

MOST_SWEEPS = 4
"""Sweeps of a GPU's pass: more would need too many registers for enough warps."""


@dataclass(frozen=True)
class Taps:
    """The non-zero weights of a stencil, and their offsets from the position of the result.

    ``radius`` is how far the stencil reaches along each axis.
    """

    offsets: tuple[tuple[int, ...], ...]
    weights: tuple[complex, ...]
    radius: tuple[int, ...]

    @classmethod
    def of(cls, weights: Array) -> Taps:
        """Return the taps of an array of weights, of odd lengths, for a correlation."""
        array = np.asarray(weights)
        radius = tuple(length // 2 for length in array.shape)
        places = np.argwhere(array)
        offsets = tuple(map(tuple, (places - radius).tolist()))
        return cls(offsets, tuple(array[tuple(places.T)].tolist()), radius)


def neighbours_mean(ndim: int) -> Taps:
    """Return the taps of the mean of the 2 ``ndim`` neighbours."""
    offsets = np.concatenate([-np.eye(ndim, dtype=int), np.eye(ndim, dtype=int)])
    return Taps(tuple(map(tuple, offsets.tolist())), (0.5 / ndim,) * (2 * ndim), (1,) * ndim)


def weighted(padded: Array, taps: Taps) -> Array:
    """Return the weighted sums, smaller than the padded array by twice the radius along each axis.

    The dtype of ``padded`` must hold the weights.
    """
    shape = tuple(n - 2 * reach for n, reach in zip(padded.shape, taps.radius, strict=True))
    result = np.zeros_like(padded, shape=shape)
    for offset, weight in zip(taps.offsets, taps.weights, strict=True):
        part = tuple(
            slice(reach + by, reach + by + length)
            for reach, by, length in zip(taps.radius, offset, shape, strict=True)
        )
        result += padded.dtype.type(weight) * padded[part]
    return result


def padded(array: Array, axis: int, width: tuple[int, int], boundary: complex | str) -> Array:
    """Pad an array along one axis by widths before and after; the same array if both are 0.

    ``boundary`` is ``"periodic"``, ``"reflect"``, ``"mirror"``, ``"nearest"`` or a number.
    """
    if not any(width):
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = width
    if isinstance(boundary, str):
        mode: Any = PAD_MODES[boundary]
        return np.pad(array, widths, mode)
    return np.pad(array, widths, constant_values=array.dtype.type(boundary))


def sweeps_at_once(kind: str, taps: Taps) -> int:
    """Return the number of sweeps of one pass on a kind of device; a pass keeps its source."""
    marches = kind != "cpu" and len(taps.radius) == 2 and max(taps.radius) <= 1
    return MOST_SWEEPS if marches else 1


def sweeps(
    source: Array,
    target: Array,
    taps: Taps,
    regions: Sequence[Region],
    added: Array | None = None,
    change: Array | None = None,
) -> bool:
    """Sweep back and forth between two arrays, ``target`` first.

    Return whether ``target`` has the result of the last sweep. On a kind of device it depends on
    the number of regions, the taps and the dtype only.

    The arrays are C-contiguous, of one shape and dtype: float32, float64, complex64 or complex128.
    Each sweep has a region, with start and stop, at least the radius away from the ends of the
    arrays. It reads the result of the one before, or elements equal in both arrays. ``added`` is
    added to the sums. To ``change``, one float64, the last sweep adds the sum of the squares of its
    changes.

    In NumPy memory, every row is computed in parts that stay in the L1 cache, by Numba, without the
    GIL. Several sweeps go over the arrays in bands of rows that stay in the L2 cache ([1]_)::

        sweep 1    |___band 0___|___band 1___|___ ...     each sweep lags behind the one
        sweep 2    |__band 0__|___band 1___|___ ...       before by the radius
        sweep 3    |_band 0_|___band 1___|___ ...

    References
    ----------
    .. [1] D. Wonnacott, "Using time skewing to eliminate idle time due to memory bandwidth and
       network limitations", IPDPS (2000).
    """
    if not isinstance(source, np.ndarray):
        from dask_dgpu.kernels.stencil.cuda import sweeps_cuda

        return sweeps_cuda(source, target, taps, regions, added, change)
    from dask_dgpu.kernels.stencil.host import sweep_bands

    steps = np.array(source.strides, np.int64) // source.itemsize
    offsets = np.array(taps.offsets, np.int64).reshape(len(taps.weights), source.ndim) @ steps
    edges = np.array([[(along.start, along.stop) for along in region] for region in regions])
    row_bytes = 3 * source.nbytes // max(1, len(source))
    total = sweep_bands(
        source.reshape(-1),
        target.reshape(-1),
        (source if added is None else added).reshape(-1),
        np.array(source.shape),
        edges,
        max(MIN_BAND, CACHE_BYTES // max(1, row_bytes)),
        taps.radius[0],
        offsets,
        np.array(taps.weights).astype(source.dtype),
        added is not None,
        change is not None,
    )
    if change is not None:
        change += total
    return len(regions) % 2 == 1
